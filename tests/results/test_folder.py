"""A folder of several files is the old one or the new one, whenever its writer is killed and whatever goes wrong."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyarrow import fs

from raynas.errors import RunDirError
from raynas.results import RunDir, folder
from raynas.results.folder import whole_folder
from tests.killing import killed_at

OLD = {"arch.yaml": b"old arch", "weights": b"old weights" * 1000, "front/a": b"old a", "notes.txt": b"the user's"}
NEW = {"arch.yaml": b"new arch", "weights": b"new weights" * 1000, "front/b": b"new b"}
KEPT = {**NEW, "notes.txt": b"the user's"}


def content(at: Path) -> dict[str, bytes]:
    return {str(file.relative_to(at)): file.read_bytes() for file in at.rglob("*") if file.is_file()}


def put(at: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(data)


def write(at: Path) -> None:
    with whole_folder(fs.LocalFileSystem(), str(at), "arch.yaml", keep=lambda name: name == "notes.txt") as new:
        put(new, NEW)


@pytest.mark.parametrize("exchanges", [True, False])
def test_killed_before_any_write_it_is_whole(tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where folders cannot change places it may be gone for an instant: the next writer makes it whole."""
    if not exchanges:
        monkeypatch.setattr(folder, "_exchange", lambda one, other: False)
    step, seen = 0, []
    while True:
        at = tmp_path / str(step) / "best"
        put(at, OLD)
        killed = killed_at(step, partial(write, at))
        seen.append(content(at))
        assert seen[-1] in ([OLD, KEPT] if exchanges else [OLD, KEPT, {}])
        write(at)
        assert content(at) == KEPT
        assert os.listdir(at.parent) == ["best"]  # what the killed writer left is gone
        if not killed:
            break
        step += 1
    assert step > 10 and OLD in seen and KEPT in seen[:-1]


def test_a_first_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    step = 0
    while killed_at(step, partial(write, tmp_path / str(step) / "best")):
        at = tmp_path / str(step) / "best"
        assert not at.exists() or content(at) == NEW
        step += 1
    assert step > 5


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", create=True)
    put(tmp_path / "run" / "best", OLD)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(RunDirError, match=f"run/best: cannot be written: {os.strerror(errno.EFBIG)}"):  # noqa: SIM117
            with run.folder("best", last="arch.yaml") as new:
                put(new, NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert content(tmp_path / "run" / "best") == OLD
    assert sorted(os.listdir(tmp_path / "run")) == ["best", "raynas.yaml"]


def test_an_error_of_the_writer_leaves_the_old_one(tmp_path: Path) -> None:
    put(tmp_path / "best", OLD)
    with pytest.raises(KeyError), whole_folder(fs.LocalFileSystem(), str(tmp_path / "best"), "arch.yaml") as new:
        put(new, NEW)
        raise KeyError
    assert content(tmp_path / "best") == OLD and os.listdir(tmp_path) == ["best"]


def test_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", OLD)
    (tmp_path / "best").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "best")
    assert not (tmp_path / "best").is_symlink() and content(tmp_path / "best") == NEW
    (tmp_path / "best" / "arch.yaml").unlink()
    (tmp_path / "best" / "arch.yaml").symlink_to(tmp_path / "elsewhere" / "arch.yaml")
    write(tmp_path / "best")
    assert content(tmp_path / "best") == NEW and content(tmp_path / "elsewhere") == OLD


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    with whole_folder(fs.LocalFileSystem(), str(tmp_path / "best"), "arch.yaml") as mine:
        put(mine, OLD)
        write(tmp_path / "best")
        assert content(mine) == OLD and content(tmp_path / "best") == NEW
    assert content(tmp_path / "best") == OLD


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = RunDir(tmp_path / "run", create=True)
    (tmp_path / "run" / "best").write_text("x")
    with pytest.raises(RunDirError, match="cannot be written"), run.folder("best", last="arch.yaml") as new:
        put(new, NEW)
    assert (tmp_path / "run" / "best").read_text() == "x"


def test_on_an_object_store_the_last_file_says_that_the_rest_is_whole(
    s3_server: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(s3_server("folders/run"), create=True)
    for name, data in OLD.items():
        run.write_bytes(f"best/{name}", data)

    def stored() -> dict[str, bytes]:
        found = run.filesystem.get_file_info(fs.FileSelector(run.at("best"), recursive=True))
        names = [info.path.partition("/best/")[2] for info in found if info.is_file]
        return {name: run.read_bytes(f"best/{name}") for name in names}

    def keep(name: str) -> bool:
        return name == "notes.txt"

    with run.folder("best", last="arch.yaml", keep=keep) as new:
        put(new, NEW)
    assert stored() == KEPT
    # Stopped by a store that takes no more than the first file: what is there is mixed, and says so.
    real, calls = folder.write_whole, []

    def stops(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
        calls.append(path)
        if len(calls) > 1:
            raise RunDirError("stopped")
        real(filesystem, path, data)

    with monkeypatch.context() as patched, pytest.raises(RunDirError, match="stopped"):
        patched.setattr(folder, "write_whole", stops)
        with run.folder("best", last="arch.yaml", keep=keep) as new:
            put(new, OLD)
    assert "arch.yaml" not in stored()
    with run.folder("best", last="arch.yaml", keep=keep) as new:
        put(new, NEW)
    assert stored() == KEPT

from __future__ import annotations

import errno
import os
import pickle
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raynas.config import Config
from raynas.errors import RunDirError, UserError
from raynas.results import RunDir


class _Rate(Config):
    rate: float = 0.1


class _Settings(Config):
    epochs: int = 3
    sizes: tuple[int, int] = (8, 8)
    nested: _Rate = _Rate()


@pytest.fixture(params=["path", "file URI", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        server: Callable[[str], str] = request.getfixturevalue("s3_server")
        return server(f"run-dir/{tmp_path.name}")
    return str(tmp_path / "run") if request.param == "path" else (tmp_path / "run").as_uri()


def test_files_round_trip_on_every_filesystem(uri: str) -> None:
    with pytest.raises(RunDirError, match=r"not a run directory: it has no raynas\.yaml"):
        RunDir(uri)
    run = RunDir(uri, create=True)
    run.write_bytes("deep/down/blob.bin", b"\x00\x01")
    run.write_yaml("preset.yaml", {"b": [1, 2], "a": _Settings()})
    run.write_yaml("preset.yaml", {"b": [1, 3], "a": _Settings()})  # whole files are replaced
    run.write_json("supernet.json", {"fingerprint": "ab"})
    again = pickle.loads(pickle.dumps(RunDir(uri)))
    assert again.read_bytes("deep/down/blob.bin") == b"\x00\x01"
    assert again.read_yaml("preset.yaml")["b"] == [1, 3]
    assert again.read_yaml("preset.yaml")["a"] == {"epochs": 3, "sizes": [8, 8], "nested": {"rate": 0.1}}
    assert again.read_json("supernet.json") == {"fingerprint": "ab"}
    assert again.list() == ["deep", "preset.yaml", "raynas.yaml", "supernet.json"]
    assert again.exists("deep") and again.exists("deep/down/blob.bin") and not again.exists("else")
    assert again.list("else") == []
    with pytest.raises(RunDirError, match="has no else"):
        again.read_bytes("else")
    assert RunDir(again.local_or_uri(""), create=False).read_json("supernet.json")
    sub = RunDir(again.local_or_uri("networks/x"), create=True)
    sub.write_bytes("y", b"1")
    assert again.read_bytes("networks/x/y") == b"1"


def test_credentials_come_from_the_environment_and_not_from_the_uri(s3_server: Callable[[str], str]) -> None:
    with pytest.raises(RunDirError, match=r"^s3://raynas/nothing is not a run directory"):
        RunDir(s3_server("nothing"))
    with pytest.raises(UserError, match="must hold no credentials") as caught:
        RunDir(s3_server("nothing").replace("s3://", "s3://key:secret@"), create=True)
    assert "secret" not in str(caught.value)
    run = RunDir(s3_server("some"), create=True)
    assert str(run) == "s3://raynas/some"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s4://bucket/x", r"^s4://\.\.\. cannot be opened: a URI begins with one of file://, s3://"),
        ("s3:/bucket/x", r"^s3://\.\.\. cannot be opened: a URI begins with"),
        ("s3:bucket/x", r"^s3://\.\.\. cannot be opened: a URI begins with"),
        ("s3://bucket/a b", r"^s3://\.\.\. cannot be opened: it is not a URI that pyarrow reads"),
        ("s3://bucket/x%zz", r"^s3://\.\.\. cannot be opened: it is not a URI that pyarrow reads"),
        ("s3://[bad/x", r"^s3://\.\.\. cannot be opened"),
        ("s3://bucket/a#b", "write # as %23"),
        ("s3://bucket/x?nonsense=1", "nor options that raynas does not know"),
        ("s3://bucket//x?region=eu-west-1", "cannot be reached"),
        ("s3://", "^s3://"),
        ("gs:///x", "^gs://"),
        ("://bucket/x", "a URI begins with"),
        ("a\0b", "NUL"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_wrong_uri_is_one_clear_line(uri: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        RunDir(uri, create=True)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())  # no folder of that name


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raynas.yaml").write_text("format: 99\n")
    with pytest.raises(RunDirError, match="newer raynas"):
        RunDir(tmp_path)


_FILL = """
import resource, signal, sys
from raynas.errors import RunDirError, UserError
from raynas.results import RunDir
run = RunDir(sys.argv[1])
run.store.append("scores", [{"arch": "first"}])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for write in (
    lambda: run.store.append("scores", [{"arch": "second", "reason": str(i) * 999} for i in range(999)]),
    lambda: run.write_bytes("file", b"x" * 9999),
):
    try:
        write()
    except RunDirError as error:
        print(error)
"""


def test_a_disk_that_takes_no_more_is_one_clear_error_and_nothing_torn(tmp_path: Path) -> None:
    # The kernel's own refusal in the middle of a write: a file size limit stands for a full disk.
    run = RunDir(tmp_path, create=True)
    run.write_bytes("file", b"old")
    out = subprocess.run([sys.executable, "-c", _FILL, tmp_path], capture_output=True, text=True, check=True).stdout
    assert out.count("cannot be written: " + os.strerror(errno.EFBIG)) == 2 and len(out.splitlines()) == 2
    assert "run the same command again" in out
    assert run.store.read("scores")["arch"].to_pylist() == ["first"]
    assert run.read_bytes("file") == b"old"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000


def _trap(path: Path, kind: str, target: Path) -> None:
    """Something at `path` that is no ordinary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "link":
        target.write_text("mine")
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as bound:  # by a short name
            bound.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    else:
        path.symlink_to("/dev/zero")


KINDS = ["link", "dangling link", "pipe", "socket", "device"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["preset.yaml", "best/arch.yaml"])
def test_only_ordinary_files_are_read_and_written(tmp_path: Path, kind: str, name: str) -> None:
    run, target = RunDir(tmp_path / "run", create=True), tmp_path / "target"
    trap = tmp_path / "run" / name
    _trap(trap, kind, target)
    for work in (run.read_bytes, run.read_yaml, run.read_json, lambda n: run.write_bytes(n, b"x"), run.delete):
        with pytest.raises(RunDirError, match=f"^{trap} is (a link|a pipe, a socket or a device): in a run directory"):
            work(name)
    assert target.exists() == (kind == "link") and (kind != "link" or target.read_text() == "mine")


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_that_is_no_ordinary_file_is_one_line(tmp_path: Path, kind: str) -> None:
    _trap(tmp_path / "run" / "raynas.yaml", kind, tmp_path / "target")
    for create in (False, True):
        with pytest.raises(RunDirError) as caught:
            RunDir(tmp_path / "run", create=create)
        assert "raynas.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_linked_folder_inside_is_refused_and_a_linked_run_directory_is_not(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", create=True)
    run.write_bytes("best/arch.yaml", b"x")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "arch.yaml").write_text("mine")
    (tmp_path / "run" / "export").symlink_to(tmp_path / "home")
    for work in (run.read_bytes, lambda name: run.write_bytes(name, b"x")):
        with pytest.raises(RunDirError, match="run/export is a link"):
            work("export/arch.yaml")
    with pytest.raises(RunDirError, match="run/export is a link"):
        run.list("export")
    with pytest.raises(RunDirError, match="leads out of the run directory"):
        run.read_bytes("networks/../../elsewhere/arch.yaml")
    (tmp_path / "linked").symlink_to(tmp_path / "run")
    linked = RunDir(tmp_path / "linked")
    with linked.lock():
        linked.write_bytes("best/arch.yaml", b"y")
    assert run.read_bytes("best/arch.yaml") == b"y"
    assert (tmp_path / "home" / "arch.yaml").read_text() == "mine"


def test_a_number_that_python_does_not_read_is_one_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path, create=True)
    run.write_bytes("supernet.json", b'{"seed": ' + b"9" * 5000 + b"}")
    with pytest.raises(RunDirError, match=r"supernet\.json: not valid JSON: not text, or a number of too many digits$"):
        run.read_json("supernet.json")

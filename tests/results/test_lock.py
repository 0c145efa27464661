from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raynas.errors import RunDirError
from raynas.filesystem import whole_file
from raynas.results import RunDir, lock
from tests.killing import killed_at

_HOLD = """
import sys, time
from raynas.results import RunDir, lock
from tests.killing import killed_at
lock.HEARTBEAT_S, lock.EXPIRY_S, lock._SETTLE_S = 0.3, 6.0, 0.1
if len(sys.argv) > 2:
    lock.socket.gethostname = lambda: sys.argv[2]
with RunDir(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["local", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(lock, "EXPIRY_S", 6.0)
    monkeypatch.setattr(lock, "_SETTLE_S", 0.1)
    server: Callable[[str], str] = request.getfixturevalue("s3_server")
    uri = str(tmp_path) if request.param == "local" else server(f"lock/{tmp_path.name}")
    RunDir(uri, create=True)
    return uri


@contextmanager
def _holder(uri: str, host: str | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOLD, uri, *([host] if host else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_second_process_is_told_who_holds_it(uri: str) -> None:
    with _holder(uri) as process:
        with pytest.raises(RunDirError) as caught, RunDir(uri).lock():
            pass
        message = str(caught.value)
        assert f"process {process.pid} on {socket.gethostname()}, since 20" in message
        assert re.search("wait for it, stop it, or name another run directory", message)
        RunDir(uri).store.read("scores")  # reading is free
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunDir(uri).lock():  # a killed owner blocks nobody
            pass


def test_a_process_may_enter_again_and_lets_go_at_the_last_exit(uri: str) -> None:
    run = RunDir(uri)
    with run.lock():
        with RunDir(uri).lock():
            run.store.append("scores", [{"arch": "a"}])
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run([sys.executable, "-c", _HOLD, uri], check=True, capture_output=True)
    with _holder(uri):
        pass


def _make(path: Path, kind: str, target: Path) -> None:
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a dangling link":
        path.symlink_to(target)
    elif kind == "a device":
        path.symlink_to("/dev/null")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path.relative_to(Path.cwd())))
    else:
        target.write_text("mine")
        if kind == "a link":
            path.symlink_to(target)
        else:
            path.hardlink_to(target)


@pytest.mark.parametrize(
    "kind", ["a folder", "a pipe", "a dangling link", "a device", "a socket", "a link", "another name of a file"]
)
def test_a_lock_file_that_is_none_is_one_line_and_left_alone(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, target = RunDir(tmp_path / "run", create=True), tmp_path / "target"
    _make(tmp_path / "run" / ".lock", kind, target)
    with pytest.raises(RunDirError, match=r"run/\.lock.* move it away") as caught, run.lock():
        pass
    assert "\n" not in str(caught.value)
    assert not target.exists() or target.read_text() == "mine"
    assert lock.held(run.root) is None


_FULL = """
import resource, signal, sys
from raynas.errors import RunDirError
from raynas.results import RunDir
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = RunDir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for _ in range(2):
    try:
        with run.lock():
            print("held")
    except RunDirError as error:
        print(error)
"""


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path, create=True)  # a limit on files' size stands for the disk
    out = subprocess.run([sys.executable, "-c", _FULL, run.uri], capture_output=True, text=True, check=True).stdout
    assert len(out.splitlines()) == 2
    assert out.count(f"{tmp_path}/.lock: {os.strerror(errno.EFBIG)}. Mend that (free space") == 2
    with run.lock():
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run", create=True)

    def refused(*arguments: object) -> int:  # root may write anywhere: the kernel's answer for a read-only mount
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lock.os, "open", refused)
    with pytest.raises(RunDirError, match=r"cannot be locked: .*Read-only file system"), run.lock():
        pass


def test_what_killed_writers_left_is_cleared_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", create=True)
    for name in ("space.yaml", "tables/scores/part.parquet"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        assert killed_at(2, lambda name=name: run.write_bytes(name, b"x"))  # type: ignore[misc]
    hidden = [path for path in (tmp_path / "run").rglob(".*.tmp")]
    assert len(hidden) == 2
    with whole_file(tmp_path / "run" / "report.html") as stream:
        stream.write(b"page")
        with run.lock():
            assert [path.name.split(".")[1] for path in (tmp_path / "run").rglob(".*.tmp")] == ["report"]
    assert run.read_bytes("report.html") == b"page"


def test_an_entry_of_a_killed_owner_is_no_obstacle(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", create=True)
    for text in ('{"host": "a", "pid": 1, "since": "x"}', '{"host": "a", "pi', "{"):
        (tmp_path / "run" / ".lock").write_text(text)
        with run.lock():
            pass
        assert (tmp_path / "run" / ".lock").read_text() == ""


def test_a_dead_host_s_lease_expires(s3_server: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(lock, "EXPIRY_S", 6.0)
    uri = s3_server("lock/elsewhere")
    run = RunDir(uri, create=True)
    with _holder(uri, "another-host") as process:
        time.sleep(0.7)  # renewed at least once: alive
        with pytest.raises(RunDirError, match="on another-host"), run.lock():
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with run.lock():  # waits until it was not renewed for long enough
            assert run.read_json("lock.json")["pid"] == os.getpid()
    assert not run.exists("lock.json")


def test_an_owner_that_lost_its_lease_writes_nothing_more(
    s3_server: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.1)
    run = RunDir(s3_server("lock/lost"), create=True)
    with run.lock():
        run.store.append("scores", [{"arch": "a"}])
        rival = {"host": "rival", "pid": 1, "since": "now", "token": "other", "renewed": 9e9}
        deadline = time.monotonic() + 60
        while not lock.held(run.root).lost and time.monotonic() < deadline:  # type: ignore[union-attr]
            run.write_json("lock.json", rival)  # again: a renewal that was under way may have been written over it
            time.sleep(0.3)
        with pytest.raises(RunDirError, match="lost its lease"):
            run.store.append("scores", [{"arch": "b"}])
    assert run.store.read("scores")["arch"].to_pylist() == ["a"]
    assert run.read_json("lock.json")["token"] == "other"  # not ours to remove

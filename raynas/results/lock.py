"""The lock of a run directory, which one process at a time writes to.

On a local or shared disk the lock is `flock` on a file, which the kernel releases when its owner ends in any way. An
object store has no locks: there a lease file is renewed every `HEARTBEAT_S` seconds, and expires `EXPIRY_S` seconds
after the last renewal. Machines' clocks must differ by less than that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyarrow import fs

from raynas.errors import RunDirError
from raynas.filesystem import clear_hidden, write_whole

HEARTBEAT_S = 10.0
EXPIRY_S = 40.0
_READS, _REREAD_S = 5, 0.1
_LONGEST = 10_000  # bytes that are read of an owner's entry
_SETTLE_S = 0.5  # after writing a lease, long enough that a rival's write would show

_guard = threading.RLock()
_held: dict[str, Lock] = {}  # by filesystem path: a process may enter its own lock again


class Lock:
    """A held lock; `lost` becomes True if an object store's lease could not be renewed in time."""

    def __init__(self) -> None:
        self.depth = 1
        self.lost = False

    def release(self) -> None:
        """Release the lock."""


class _FileLock(Lock):
    def __init__(self, path: Path, name: str):
        super().__init__()
        # Not through a link, and without waiting at a pipe: a run directory may be somebody else's.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o666)
        except OSError as error:
            raise _cannot_lock(name, path, error) from error
        try:
            self._take(path, name)
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, path: Path, name: str) -> None:
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise _cannot_lock(name, path, None)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _busy(name, _parse(self._text())) from None
            if (text := self._text()) and "pid" not in _parse(text) and not _is_torn(text):
                raise RunDirError(f"{name}: {path} is not a lock of ours, its text is kept: move it away")
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(_owner()).encode(), 0)
            clear_hidden(path.parent)
        except OSError as error:
            raise _cannot_lock(name, path, error) from error

    def _text(self) -> str:
        return os.pread(self._file, _LONGEST, 0).decode(errors="replace")

    def release(self) -> None:
        with contextlib.suppress(OSError):  # the owner's name may stay: nobody holds the lock
            os.ftruncate(self._file, 0)
        os.close(self._file)


class _LeaseLock(Lock):
    def __init__(self, filesystem: fs.FileSystem, path: str, name: str):
        super().__init__()
        self._fs, self._path, self._name = filesystem, path, name
        self._owner = {**_owner(), "token": uuid.uuid4().hex}
        self._wait_for_dead_owner()
        self._renew()
        time.sleep(_SETTLE_S)
        current = self._read()
        if current.get("token") != self._owner["token"]:  # two began at once: the later write has it
            raise _busy(name, current)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="raynas-lease", daemon=True)
        self._thread.start()

    def _wait_for_dead_owner(self) -> None:
        first = self._read()
        if not first or _is_dead_here(first):
            return
        until = first.get("renewed", 0.0) + EXPIRY_S
        while time.time() < until:  # renewed while we look: its owner lives
            time.sleep(min(1.0, HEARTBEAT_S / 10))
            current = self._read()
            if not current:
                return
            if current.get("renewed") != first.get("renewed"):
                raise _busy(self._name, current)

    def _read(self) -> dict[str, Any]:
        """Return the current lease; empty if there is none, or if it stays unreadable for a while."""
        for _ in range(_READS):
            try:
                with self._fs.open_input_stream(self._path) as stream:
                    lease = _parse(stream.read().decode(errors="replace"))
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise RunDirError(f"{self._name}: its lease cannot be read: {error}") from error
            if lease:
                return lease
            time.sleep(_REREAD_S)  # a store may show a part of what is being written: that is no free run directory
        return {}

    def _renew(self) -> None:
        write_whole(self._fs, self._path, json.dumps({**self._owner, "renewed": time.time()}).encode())

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(HEARTBEAT_S):
            try:
                if self._read().get("token") != self._owner["token"]:
                    self.lost = True
                    return
                self._renew()
                renewed = time.monotonic()
            except RunDirError:  # out of reach: again at the next beat, until others may have taken over
                if time.monotonic() - renewed > EXPIRY_S - HEARTBEAT_S:
                    self.lost = True
                    return

    def release(self) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError, RunDirError):
            if self._read().get("token") == self._owner["token"]:
                self._fs.delete_file(self._path)


def held(root: str) -> Lock | None:
    """Return this process's lock on a run directory, None if it has none."""
    return _held.get(root)


@contextlib.contextmanager
def lock(filesystem: fs.FileSystem, root: str, name: str) -> Iterator[Lock]:
    """Hold the lock of a run directory; a process that already holds it may enter again.

    Raises:
        RunDirError: another process holds it; the message names host, process and since when.
    """
    with _guard:
        current = _held.get(root)
        if current is not None:
            current.depth += 1
        elif isinstance(filesystem, fs.LocalFileSystem):
            current = _held[root] = _FileLock(Path(root) / ".lock", name)
        else:
            current = _held[root] = _LeaseLock(filesystem, f"{root}/lock.json", name)
    try:
        yield current
    finally:
        with _guard:
            current.depth -= 1
            if current.depth == 0:
                del _held[root]
                current.release()


def _owner() -> dict[str, Any]:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since}


def _is_dead_here(owner: dict[str, Any]) -> bool:
    """Return True if the owner was a process of this host that has ended."""
    if owner.get("host") != socket.gethostname() or not isinstance(owner.get("pid"), int):
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_torn(text: str) -> bool:
    """Return True if the content is the beginning of an owner's entry, whose writing was interrupted."""
    return text.startswith('{"host"'[: len(text)])


def _cannot_lock(name: str, path: Path, error: OSError | None) -> RunDirError:
    """Return the error about a lock that is held."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        return RunDirError(f"{name}: cannot be locked: {path} is not an ordinary file: move it away")
    why = "it changed meanwhile" if error is None else error.strerror or str(error)
    return RunDirError(
        f"{name}: cannot be locked: {path}: {why}. Mend that (free space, permissions, a mount that can be written), "
        "or name another run directory"
    )


def _busy(name: str, owner: dict[str, Any]) -> RunDirError:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}, since {owner.get('since', '?')}"
    return RunDirError(
        f"{name} is in use by {who}: wait for it, stop it, or name another run directory. Reading it meanwhile is safe"
    )

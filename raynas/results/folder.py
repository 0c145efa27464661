"""Folders that several files make up: written aside, and given their place in one step."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow import fs

from raynas.filesystem import write_whole

_AT_CWD, _EXCHANGE = -100, 2  # of Linux's renameat2
_Keep = Callable[[str], bool]


@contextmanager
def whole_folder(filesystem: fs.FileSystem, path: str, last: str, keep: _Keep = lambda name: False) -> Iterator[Path]:
    """An empty local folder to write files into, which takes the place of another when the block ends well.

    Killed at any moment, a local folder is whole, the old one or the new one (or, on a filesystem that cannot let two
    folders change places, gone until it is written again). An object store has no such step: there the file `last` is
    taken away first and written last, so that a folder that has it is whole.

    Args:
        path: of the folder. A symbolic link there is replaced, and not followed.
        last: name of the file whose presence says that all others are there.
        keep: says which other files and folders of the old one stay, by name.

    Raises:
        OSError: it cannot be written; what was there before stays.
        RunDirError: likewise, of an object store.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        with _beside(Path(path), keep) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        yield folder
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        write_together(filesystem, path, files, last)
        for info in filesystem.get_file_info(fs.FileSelector(path, recursive=True)):
            name = info.path[len(path) + 1 :]
            if info.is_file and name not in files and not keep(name.split("/")[0]):
                filesystem.delete_file(info.path)


def write_together(filesystem: fs.FileSystem, folder: str, files: Mapping[str, bytes], last: str) -> None:
    """Write files that belong together and lie among others: where the last one is, the rest is whole.

    Args:
        files: content by name.
        last: the one that is taken away first and written last.

    Raises:
        RunDirError: one cannot be written.
    """
    with suppress(FileNotFoundError):
        filesystem.delete_file(f"{folder}/{last}")
    for name in [*(name for name in files if name != last), last]:
        write_whole(filesystem, f"{folder}/{name}", files[name])


@contextmanager
def _beside(at: Path, keep: _Keep) -> Iterator[Path]:
    """A hidden folder beside `at`, which takes its place."""
    if at.exists() and not at.is_dir():
        raise FileExistsError(f"{at} is a file")
    at.parent.mkdir(parents=True, exist_ok=True)
    _clear(at)
    new = at.with_name(f".{at.name}.{uuid.uuid4().hex[:8]}.tmp")
    new.mkdir()
    held = os.open(new, os.O_RDONLY)
    try:
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                _to_disk(file)
        for name in os.listdir(at) if at.is_dir() and not at.is_symlink() else []:
            if keep(name) and not os.path.lexists(new / name):
                _copy(at / name, new / name)
        _swap(new, at)
    finally:
        os.close(held)
        _remove(new)  # the old one now, or what could not be finished


def _swap(new: Path, at: Path) -> None:
    """Let the new folder take the place of what is there, which is then at the new one's, or nowhere."""
    if not os.path.lexists(at):
        new.rename(at)
    elif not _exchange(new, at):
        old = at.with_name(f".{at.name}.{uuid.uuid4().hex[:8]}.old")
        at.rename(old)
        new.rename(at)
        _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system or the filesystem cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return call is not None and call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0


def _clear(at: Path) -> None:
    """Put back or delete what killed processes left beside a folder; what a living one holds is locked."""
    for name in os.listdir(at.parent):
        found = re.fullmatch(rf"\.{re.escape(at.name)}\.[0-9a-f]{{8}}\.(tmp|old)", name)
        left = at.with_name(name)
        if found is None or left.is_symlink() or not left.is_dir():
            continue
        if found[1] == "old" and not os.path.lexists(at):  # between the two steps of `_swap`
            left.rename(at)
            continue
        with suppress(OSError):  # it is being written, or gone
            held = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(held)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _copy(source: str | Path, target: str | Path) -> None:
    """The same file under a second name; a copy where the filesystem has no such names."""
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, copy_function=_copy)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _to_disk(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())

"""Folders of several files, written elsewhere and moved to their place in one step."""

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

from raynas.filesystem import delete_left, hidden_name, write_whole

_AT_CWD, _EXCHANGE = -100, 2  # of Linux's renameat2
_Keep = Callable[[str], bool]


@contextmanager
def whole_folder(filesystem: fs.FileSystem, path: str, last: str, keep: _Keep = lambda name: False) -> Iterator[Path]:
    """Yield an empty local folder to write files into, which replaces another when the block succeeds.

    If the process is killed, a local folder is complete, the old one or the new one (or, on a filesystem that cannot
    exchange two folders, missing until it is written again). An object store cannot move a folder: there the file
    `last` is deleted first and written last, so that a folder with it is complete.

    Args:
        path: the folder. A symbolic link there is replaced, not followed.
        last: name of the file that marks a complete folder.
        keep: returns True for the names of the old folder's files and folders to keep.

    Raises:
        OSError: it cannot be written; the old folder stays.
        RunDirError: the same on an object store.
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
    """Write files that belong together, among others; if the last one exists, all are complete.

    Args:
        files: content by name.
        last: the file that is deleted first and written last.

    Raises:
        RunDirError: one cannot be written.
    """
    with suppress(FileNotFoundError):
        filesystem.delete_file(f"{folder}/{last}")
    for name in [*(name for name in files if name != last), last]:
        write_whole(filesystem, f"{folder}/{name}", files[name])


@contextmanager
def _beside(at: Path, keep: _Keep) -> Iterator[Path]:
    """Yield a hidden folder beside `at` that then replaces it."""
    if at.exists() and not at.is_dir():
        raise FileExistsError(f"{at} is a file")
    at.parent.mkdir(parents=True, exist_ok=True)
    _clear(at)
    new = hidden_name(at)
    new.mkdir()
    held = os.open(new, os.O_RDONLY)
    try:
        with suppress(OSError):  # a filesystem without locks
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        for name in os.listdir(at) if at.is_dir() and not at.is_symlink() else []:
            if keep(name) and not os.path.lexists(new / name):
                _copy(at / name, new / name)
        _swap(new, at)
    finally:
        os.close(held)
        _remove(new)  # the old one now, or what could not be finished


def _swap(new: Path, at: Path) -> None:
    """Move the new folder to its place; the old one is then at the new one's, or gone."""
    if not os.path.lexists(at):
        new.rename(at)
    elif not _exchange(new, at):
        old = at.with_name(f".{at.name}.{uuid.uuid4().hex[:8]}.old")
        at.rename(old)
        new.rename(at)
        _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; return False if the system or the filesystem cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return call is not None and call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0


def _clear(at: Path) -> None:
    """Restore or delete what killed processes left beside a folder; live processes lock theirs."""
    for name in os.listdir(at.parent):
        found = re.fullmatch(rf"\.{re.escape(at.name)}\.[0-9a-f]{{8}}\.(tmp|old)", name)
        left = at.with_name(name)
        if found is None or left.is_symlink() or not left.is_dir():
            continue
        if found[1] == "old" and not os.path.lexists(at):  # between the two steps of `_swap`
            left.rename(at)
            continue
        delete_left(left, _remove)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _copy(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, by a hard link or else a copy."""
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, copy_function=_copy)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)

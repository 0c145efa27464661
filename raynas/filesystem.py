"""Paths and URIs through pyarrow's filesystems, and the one way in which a file is written: whole, or not at all."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from raynas.errors import RunDirError, UserError
from raynas.locations import open_location

FAILURES = (OSError, pa.ArrowException)
"""What pyarrow's filesystems raise: `ArrowInvalid` of a path that cannot be, such as a bucket's impossible name."""


def open_filesystem(uri: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """The filesystem of a run directory's local path or URI, and the path inside it; see `open_location`.

    Raises:
        RunDirError: the name is empty, holds credentials, or cannot be opened.
    """
    text = os.fspath(uri)
    if not text:  # a variable that is not set; as a path it would be the current directory
        raise RunDirError("the run directory's name is empty: give a path or a URI")
    try:
        filesystem, path = open_location(text)
    except UserError as error:
        raise RunDirError(str(error)) from error.__cause__
    if isinstance(filesystem, fs.LocalFileSystem):
        return filesystem, os.path.abspath(os.path.expanduser(path))
    return filesystem, path.rstrip("/")


def check_plain(filesystem: fs.FileSystem, root: str, name: str) -> None:
    """Refuse what is no ordinary file or folder below a local folder, or does not lie below it.

    A run directory may be somebody else's: a link in it would lead to files of ours, and a pipe would wait for ever.
    The folder itself may be a link, and so may what is around it.

    Args:
        filesystem: of the folder; an object store has nothing but files.
        root: the folder.
        name: a path in it, which need not exist.

    Raises:
        RunDirError: names the part of the path that is a link, pipe, socket or device.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    here, parts = root, name.split("/")
    if ".." in parts:
        raise RunDirError(f"{root}/{name}: leads out of the run directory")
    for part in parts:
        here = os.path.join(here, part)
        try:
            mode = os.lstat(here).st_mode
        except (OSError, ValueError):  # not there, or told by what comes next
            return
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            what = "a link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
            raise RunDirError(
                f"{here} is {what}: in a run directory only ordinary files and folders are read and written (to keep "
                "it on another disk, move all of it, and link or mount that)"
            )


def write_whole(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write one file so that no reader ever sees a part of it under its name.

    A local filesystem shows a file while it grows: it is written under a hidden name, flushed to the disk, and given
    its name in one step. An object store shows an object only once it is complete.

    Raises:
        RunDirError: it cannot be written (disk full, no permission, store out of reach); nothing is left behind.
    """
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            _write_local(Path(path), data)
        else:
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
    except FAILURES as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str, error: BaseException) -> RunDirError:
    """What a user is told of a file or folder that cannot be written."""
    return RunDirError(
        f"{path}: cannot be written: {_first_line(error)}. Nothing of it was kept and what was written before is "
        "intact: mend the cause (free space, permissions, network) and run the same command again"
    )


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with hidden.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__

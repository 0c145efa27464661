"""Opening paths and URIs with pyarrow's filesystems, and writing files whole or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import fs

from raynas.errors import RunDirError, UserError, first_line
from raynas.locations import SCHEMES, hide_secrets, is_uri, refuse_credentials

REQUESTS = 64
"""Requests to an object store that are made at the same time."""

FAILURES = (OSError, pa.ArrowException)
"""Errors of pyarrow's filesystems: `ArrowInvalid` is raised for impossible paths, such as a bad bucket name."""


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a local path or URI, and the path in it.

    Args:
        location: a local path, or a URI that pyarrow knows (`file://`, `s3://`, `gs://`, `abfs://`, `hdfs://`), with
            its options as a query: `s3://bucket/run?region=eu-west-1`.

    Raises:
        UserError: it holds credentials, is malformed, or cannot be opened.
    """
    refuse_credentials(location)
    if "\0" in location:
        raise UserError(f"{location!r}: a NUL character can be in no path")
    try:
        location.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{location!a}: the name is not UTF-8: rename it") from error
    scheme, colon, rest = location.partition(":")
    if not is_uri(location) and not (colon and scheme in ("", *SCHEMES)):
        return fs.LocalFileSystem(), location
    unread = f"{scheme.strip()}://... cannot be opened"  # what cannot be read is not repeated: it may hold anything
    if scheme not in SCHEMES or not rest.startswith("//"):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UserError(f"{unread}: a URI begins with one of {known}; write a local path that looks like one with ./")
    if "#" in rest:
        raise UserError(f"{unread}: write # as %23")
    pa.set_io_thread_count(max(REQUESTS, pa.io_thread_count()))  # also the connections of an S3 client
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except pa.ArrowException as error:
        raise UserError(
            f"{unread}: it is not a URI that pyarrow reads, such as s3://bucket/folder?region=eu-west-1 (special "
            "characters are written as %20 and the like)"
        ) from error
    except (OSError, ValueError, NotImplementedError) as error:
        shown = hide_secrets(location)
        reason = first_line(error).replace(location, shown)
        raise UserError(f"{shown}: cannot be opened: {reason}") from error
    if not path.strip("/") and not isinstance(filesystem, fs.LocalFileSystem):
        raise UserError(f"{unread}: it names no bucket or folder")
    return filesystem, path


def open_filesystem(uri: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a run directory's local path or URI, and the path in it; see `open_location`.

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
    """Raise an error unless a path leads through ordinary files and folders below a local folder.

    A run directory may be somebody else's: a link in it could lead to our files, and reading a pipe would never end.
    The folder itself and its parents may be links.

    Args:
        filesystem: the folder's filesystem; nothing is checked in an object store, which has only files.
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
        except (OSError, ValueError):  # missing, or reported by the next operation
            return
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            what = "a link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
            raise RunDirError(
                f"{here} is {what}: in a run directory only ordinary files and folders are read and written (to keep "
                "it on another disk, move all of it, and link or mount that)"
            )


def write_whole(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write one file so that no reader ever sees a part of it under its name.

    On a local filesystem see `whole_file`. An object store shows an object only once it is complete.

    Raises:
        RunDirError: it cannot be written (disk full, no permission, store out of reach); nothing is left behind.
    """
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(Path(path)) as stream:
                stream.write(data)
        else:
            with filesystem.open_output_stream(path) as stream:
                stream.write(data)
    except FAILURES as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str, error: BaseException) -> RunDirError:
    """Return the error for a file or folder that cannot be written."""
    return RunDirError(
        f"{path}: cannot be written: {first_line(error)}. Nothing of it was kept and what was written before is "
        "intact: mend the cause (free space, permissions, network) and run the same command again"
    )


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a local file for writing that no reader ever sees a part of.

    It is written under a hidden name, flushed to the disk, and given its name in one step; after an error nothing is
    left of it.
    """
    hidden = hidden_name(path)
    try:
        with hidden.open("wb") as stream:
            with suppress(OSError):  # a filesystem without locks
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def clear_hidden(folder: Path) -> None:
    """Delete the hidden files that killed processes left in a folder and all below it; live processes lock theirs."""
    for at, _, names in os.walk(folder):
        for name in names:
            if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", name):
                delete_left(Path(at, name), Path.unlink)


def delete_left(path: Path, delete: Callable[[Path], None]) -> None:
    """Delete what a killed process left; a live one locks what it writes."""
    with suppress(OSError):  # it is being written, or gone
        held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            delete(path)
        finally:
            os.close(held)


def hidden_name(path: Path) -> Path:
    """Return a unique hidden name beside a path, for what is being written in its place."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")

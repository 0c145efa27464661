"""Paths and URIs through pyarrow's filesystems, and the one way in which a file is written: whole, or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from raynas.errors import RunDirError

FAILURES = (OSError, pa.ArrowException)
"""What a store raises that is out of reach: Azure's answers come as the latter."""


def open_filesystem(uri: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or URI, and the path inside it.

    Args:
        uri: a local path, or a URI that pyarrow knows (`file://`, `s3://`, `gs://`, `hdfs://`), with its options as
            a query: `s3://bucket/run?region=eu-west-1`.

    Raises:
        RunDirError: the name is empty, or the URI's scheme or options are not understood.
    """
    text = os.fspath(uri)
    if not text:  # a variable that is not set; as a path it would be the current directory
        raise RunDirError("the run directory's name is empty: give a path or a URI")
    if "://" not in text:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except (*FAILURES, ValueError) as error:
        raise RunDirError(f"{without_secrets(text)}: cannot be opened: {_first_line(error)}") from error
    return filesystem, path.rstrip("/")


def without_secrets(uri: str) -> str:
    """A URI for messages: without its user, password and query, where credentials may be."""
    if "://" not in uri:
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:  # a bracket that is not closed: what is a secret in it cannot be told
        return f"{uri.partition('://')[0]}://..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


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

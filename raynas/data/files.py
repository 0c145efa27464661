"""Files on a local disk, a shared mount or an object store, through one pyarrow filesystem interface."""

from __future__ import annotations

import functools
import io
import os
from dataclasses import dataclass

import pyarrow as pa
from PIL import Image
from pyarrow import fs

from raynas.errors import UserError
from raynas.locations import hide_secrets, open_location

TRAIN = "train"
TEST = ("test", "val", "validation", "valid")  # the first of these that holds usable images is the test split


@dataclass(frozen=True)
class Listing:
    """All files below a path or URI, or the one file that it names.

    Attributes:
        location: the path or URI.
        paths: relative to it, ascending; one empty path if it names a file.
        sizes: in bytes.
        folders: all folders below it, ascending.
    """

    location: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    folders: tuple[str, ...]


def open_once(location: str) -> tuple[fs.FileSystem, str]:
    """As `open_location`, once per process."""
    return _open_in_process(location, os.getpid())


@functools.lru_cache(maxsize=8)
def _open_in_process(location: str, process: int) -> tuple[fs.FileSystem, str]:
    # By process: a client of an object store that is carried over a fork hangs.
    return open_location(location)


def list_files(location: str) -> Listing:
    """List a folder with everything below it, or one file. Hidden files and folders are left out.

    Raises:
        UserError: it does not exist or cannot be listed.
    """
    filesystem, root = open_once(location)
    root = root.rstrip("/")
    try:
        info = filesystem.get_file_info(root)
        if info.type == fs.FileType.File:
            return Listing(location, ("",), (info.size,), ())
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    except FileNotFoundError:
        raise UserError(f"{hide_secrets(location)}: no such file or folder") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{hide_secrets(location)}: cannot be listed: {first_line(error)}") from error
    entries = sorted((entry.path[len(root) :].lstrip("/"), entry) for entry in found)
    entries = [(path, entry) for path, entry in entries if not _hidden(path)]
    files = [(path, entry.size) for path, entry in entries if entry.type == fs.FileType.File]
    folders = tuple(path for path, entry in entries if entry.type == fs.FileType.Directory)
    return Listing(location, tuple(path for path, _ in files), tuple(size for _, size in files), folders)


def shown(location: str, path: str) -> str:
    """A listed file as messages name it."""
    return f"{hide_secrets(location).rstrip('/')}/{path}" if path else hide_secrets(location)


def open_file(location: str, path: str) -> pa.NativeFile:
    """Open a listed file for random access.

    Raises:
        UserError: it cannot be opened.
    """
    filesystem, root = open_once(location)
    try:
        return filesystem.open_input_file(f"{root.rstrip('/')}/{path}" if path else root)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{shown(location, path)}: cannot be read: {first_line(error)}") from error


def open_image(encoded: bytes, where: str) -> Image.Image:
    """Decode one image file.

    Raises:
        UserError: the bytes are not an image that Pillow reads, or are cut short.
    """
    try:
        image = Image.open(io.BytesIO(encoded))
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "not an image, or a damaged one" if isinstance(error, Image.UnidentifiedImageError) else error
        raise UserError(f"{where}: cannot be read as an image: {first_line(reason)}") from error
    if image.mode == "F":
        raise UserError(f"{where}: floating-point images have no fixed range; convert it to 8 bits a channel")
    return image


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.split("/"))


def first_line(error: object) -> str:
    """The first line of somebody else's message, for a message of one line."""
    return str(error).strip().partition("\n")[0]

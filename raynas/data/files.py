"""Files on a local disk, a shared mount or an object store, through one pyarrow filesystem interface."""

from __future__ import annotations

import functools
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from PIL import Image
from pyarrow import fs

from raynas.errors import UserError, first_line
from raynas.filesystem import open_location
from raynas.locations import hide_secrets

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
TRAIN = "train"
TEST = ("test", "val", "validation", "valid")  # the first of these that holds usable images is the test split

SYSTEM = ("/proc", "/sys", "/dev")
ENTRIES_WITHOUT_IMAGES = 200_000  # files and folders; after so many without an image it is no dataset

STATED_RANGE, HIGH_BYTES = "raynas.range", "raynas.high_bytes"
"""Keys of a decoded image's `info`: the range that its file states; that Pillow kept the high bytes of its values."""


@dataclass(frozen=True)
class Listing:
    """All files below a path or URI, or its one file.

    Attributes:
        paths: paths relative to it, ascending; one empty path if it is a file.
        sizes: sizes in bytes.
        folders: all folders below it, ascending.
    """

    location: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    folders: tuple[str, ...]


def open_once(location: str) -> tuple[fs.FileSystem, str]:
    """Open a location once per process; see `open_location`."""
    return _open_in_process(location, os.getpid())


@functools.lru_cache(maxsize=8)
def _open_in_process(location: str, process: int) -> tuple[fs.FileSystem, str]:
    # One for each process, since the client of an object store hangs after a fork.
    return open_location(location)


def list_files(location: str) -> Listing:
    """List a folder with everything below it, or one file, without hidden files and folders.

    Raises:
        UserError: it does not exist or cannot be listed.
    """
    filesystem, root = open_once(location)
    root = root.rstrip("/") or "/"
    with readable(hide_secrets(location), "listed"):
        info = filesystem.get_file_info(root)
        if info.type == fs.FileType.File:
            return Listing(location, ("",), (info.size,), ())
        if info.type == fs.FileType.NotFound:
            raise UserError(f"{hide_secrets(location)}: no such file or folder")
        if isinstance(filesystem, fs.LocalFileSystem):
            entries = sorted(_walk(root, location))
        else:
            found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
            entries = sorted(
                (entry.path[len(root) :].lstrip("/"), entry.size if entry.type == fs.FileType.File else None)
                for entry in found
            )
    entries = [(path, size) for path, size in entries if not _hidden(path)]
    files = [(path, size) for path, size in entries if size is not None]
    folders = tuple(path for path, size in entries if size is None)
    return Listing(location, tuple(path for path, _ in files), tuple(size for _, size in files), folders)


def _walk(root: str, location: str) -> Iterator[tuple[str, int | None]]:
    """Return sizes of files, and None for folders, by path relative to a local folder; links are followed.

    Raises:
        UserError: it belongs to the operating system, has no image among very many files, or links back to itself.
    """
    split_first = {name: k for k, name in enumerate((TRAIN, *TEST))}
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    seen, images = 0, 0
    while waiting:
        folder, around = waiting.pop()
        here = os.path.join(root, folder)
        _refuse_system(here, location)
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in around:
            raise UserError(f"{shown(location, folder)}: a link that leads back to a folder around it: remove it")
        inside = around | {(status.st_dev, status.st_ino)}
        below = []
        for entry in os.scandir(here):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _hidden(entry.name):
                continue
            try:
                found = entry.stat()
            except FileNotFoundError:  # a link to nothing, or deleted meanwhile
                continue
            if any("\ud800" <= char <= "\udfff" for char in entry.name):  # bytes that are no UTF-8
                raise UserError(f"{shown(location, ascii(path))}: the name is not UTF-8: rename it")
            seen += 1
            if stat.S_ISDIR(found.st_mode):
                below.append(path)
                yield path, None
            elif stat.S_ISREG(found.st_mode):
                images += entry.name.lower().endswith((*ENDINGS, ".parquet"))
                yield path, found.st_size
        if seen > ENTRIES_WITHOUT_IMAGES and not images:
            raise UserError(
                f"{hide_secrets(location)}: no image and no Parquet file among the first {seen:,} files and folders: "
                "give the folder that holds the class folders"
            )
        # The last one is next: splits go first, beside which annotations may lie in any number.
        below.sort(key=lambda path: (split_first.get(path, len(split_first)), path), reverse=True)
        waiting += [(path, inside) for path in below]


def _refuse_system(folder: str, location: str) -> None:
    real = os.path.realpath(folder)
    inside = any(real == top or real.startswith(f"{top}/") for top in SYSTEM)
    if real == "/" or (inside and not real.startswith("/dev/shm/")):
        raise UserError(
            f"{hide_secrets(location)}: {real} is the operating system's and no dataset: "
            "give a folder of class folders, or Parquet files"
        )


def shown(location: str, path: str) -> str:
    """Return a listed file's name for messages."""
    return f"{hide_secrets(location).rstrip('/')}/{path}" if path else hide_secrets(location)


@contextmanager
def readable(where: str, how: str = "read") -> Iterator[None]:
    """Turn errors of pyarrow and of the system into a UserError that names the place."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{where}: cannot be {how}: {first_line(error)}") from error


def open_file(location: str, path: str) -> pa.NativeFile:
    """Open a listed file for random access.

    Raises:
        UserError: it cannot be opened.
    """
    filesystem, root = open_once(location)
    with readable(shown(location, path)):
        return filesystem.open_input_file(f"{root.rstrip('/')}/{path}" if path else root)


def read_file(location: str, path: str) -> bytes:
    """Read a listed file.

    Raises:
        UserError: it cannot be read.
    """
    with readable(shown(location, path)), open_file(location, path) as file:
        return file.read()


def open_image(encoded: bytes, where: str) -> Image.Image:
    """Decode one image file.

    Raises:
        UserError: the bytes are not an image that Pillow reads, or are cut short.
    """
    try:
        image = Image.open(io.BytesIO(encoded))
        high_bytes = _loses_bits(image)
        image.load()
    except Exception as error:  # Pillow's readers raise anything on damaged bytes: IndexError, struct.error, ...
        unknown = isinstance(error, Image.UnidentifiedImageError)
        text = "not an image, or a damaged one" if unknown else first_line(error)
        raise UserError(f"{where}: cannot be read as an image: {text}") from error
    if image.format == "PPM" and image.mode == "I":
        image.info[STATED_RANGE] = (0, 65535)  # the file's own maximum, to which Pillow scales
    if high_bytes:
        image.info[HIGH_BYTES] = True
    return image


def _loses_bits(image: Image.Image) -> bool:
    """Return True if Pillow keeps only the high bytes of values of more than 8 bits, as it does with colours."""
    if image.mode.startswith(("I", "F")):
        return False
    bits = getattr(image, "tag_v2", {}).get(258, ())  # TIFF's BitsPerSample
    raw = " ".join(str(tile[3]) for tile in getattr(image, "tile", ()))
    deep = re.search(r"\b(?!BGR)\w+;(12|16|32)[BLNF]?\b", raw) is not None  # BGR;16 is 5 + 6 + 5 bits
    return deep or any(isinstance(count, int) and count > 8 for count in (bits if isinstance(bits, tuple) else (bits,)))


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.split("/"))

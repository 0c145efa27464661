"""A folder of class folders: `root/<class>/<image>`, or `root/train/<class>/<image>` beside `val` or `test`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from PIL import Image

from raynas.data.class_order import in_order
from raynas.data.config import DataConfig
from raynas.data.files import ENDINGS, TEST, TRAIN, Listing, open_image, read_file, shown
from raynas.data.pool import Pool
from raynas.errors import UserError
from raynas.locations import hide_secrets

OTHER_SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
"""Names that folders of splits have elsewhere."""


@dataclass(frozen=True)
class FileSource:
    """Image files, with paths and sizes as Arrow arrays, whose memory forked loader workers share."""

    location: str
    paths: pa.StringArray
    sizes: pa.Int64Array

    def image(self, index: int) -> Image.Image:
        path = self.paths[index].as_py()
        return open_image(read_file(self.location, path), shown(self.location, path))

    def where(self, index: int) -> str:
        return shown(self.location, self.paths[index].as_py())

    def name(self, index: int) -> str:
        return self.paths[index].as_py()

    def keep(self, indices: np.ndarray) -> FileSource:
        chosen = pa.array(indices)
        return FileSource(self.location, self.paths.take(chosen), self.sizes.take(chosen))

    def signature(self, indices: np.ndarray) -> bytes:
        digest = hashlib.sha256()
        for array in (self.paths, self.sizes):
            digest.update("\n".join(map(str, array.take(pa.array(indices)).to_pylist())).encode())
        return digest.digest()


def read_folder(listing: Listing, config: DataConfig) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return images for training, separate test images if there are any, and the class names in label order.

    Class names are the names of the class folders, in `config.class_order`. Images may lie at any depth below them.
    With `train` holding class folders, the test images are those of `test` or, if that is missing or has no class
    folders (as ImageNet's), of `val`; other folders are not read.

    Raises:
        UserError: no class folders, an empty one, fewer than two, or test classes that train does not have.
    """
    parts = {split: _below(listing, f"{split}/") for split in (TRAIN, *TEST)}
    if not parts[TRAIN].paths:
        whole = _below(listing, "")
        if not whole.paths:
            raise UserError(
                f"{hide_secrets(listing.location)}: no class folders with images; expected <class>/<image> or "
                f"train/<class>/<image> and val/<class>/<image> (images end in {' '.join(ENDINGS)})"
            )
        class_names = _class_names(listing, whole, "", config)
        if set(class_names) <= {TRAIN, *TEST}:
            raise UserError(
                f"{hide_secrets(listing.location)}: train/ holds images directly; put them in class folders"
            )
        _refuse_splits(listing, class_names)
        return _pool(listing, whole, class_names), None, class_names
    class_names = _class_names(listing, parts[TRAIN], "train/", config)
    train = _pool(listing, parts[TRAIN], class_names)
    test = next((part for split in TEST if (part := parts[split]).paths), None)
    return train, None if test is None else _pool(listing, test, class_names), class_names


@dataclass(frozen=True)
class _Part:
    """The images of one split: paths, sizes, and the class folder of each."""

    paths: list[str]
    sizes: list[int]
    classes: list[str]


def _below(listing: Listing, prefix: str) -> _Part:
    part = _Part([], [], [])
    for path, size in zip(listing.paths, listing.sizes, strict=True):
        if path.startswith(prefix) and path.lower().endswith(ENDINGS):
            folder, slash, _ = path[len(prefix) :].partition("/")
            if slash:
                part.paths.append(path)
                part.sizes.append(size)
                part.classes.append(folder)
    return part


def _refuse_splits(listing: Listing, names: Sequence[str]) -> None:
    """Refuse class folders that are splits of other names, or `key=value` folders of partitioned tables."""
    splits = sorted(name for name in names if name.lower() in OTHER_SPLITS)
    keys = sorted(name for name in names if re.fullmatch(r"[A-Za-z_]\w*=.+", name))
    if len(splits) > 1 or keys:
        raise UserError(
            f"{hide_secrets(listing.location)}: {', '.join((keys or splits)[:3])} are no classes: name the folders of "
            "splits train and val (or test), with class folders in them (key=value folders are read of Parquet files)"
        )


def _class_names(listing: Listing, part: _Part, prefix: str, config: DataConfig) -> tuple[str, ...]:
    names = in_order(set(part.classes), config.class_order)
    where = shown(listing.location, prefix.rstrip("/"))
    folders = {path[len(prefix) :] for path in listing.folders if path.startswith(prefix)}
    empty = sorted(folder for folder in folders if folder and "/" not in folder and folder not in names)
    if empty:
        raise UserError(f"{where}: class folder {empty[0]!r} holds no image; add images to it or remove it")
    if len(names) < 2:
        raise UserError(f"{where}: only one class folder, {names[0]!r}; telling classes apart takes at least two")
    return tuple(names)


def _pool(listing: Listing, part: _Part, class_names: tuple[str, ...]) -> Pool:
    position = {name: k for k, name in enumerate(class_names)}
    unknown = sorted(set(part.classes) - set(class_names))
    if unknown:
        split = part.paths[0].partition("/")[0]
        raise UserError(
            f"{hide_secrets(listing.location)}: {split}/ has classes that train/ has not: {', '.join(unknown[:5])}"
        )
    source = FileSource(listing.location, pa.array(part.paths, pa.string()), pa.array(part.sizes, pa.int64()))
    return Pool(source, np.array([position[name] for name in part.classes], dtype=np.int64))

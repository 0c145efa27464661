"""Parquet files with a column of encoded images (bytes, or a struct with a `bytes` field) and a column of labels.

Labels may also be in the names of folders: `label=3/part-0.parquet`, as Hive and Spark write them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from raynas.data.class_order import in_order
from raynas.data.config import DataConfig
from raynas.data.files import TEST, TRAIN, Listing, open_file, open_image, readable, shown
from raynas.data.pool import Pool
from raynas.errors import UserError
from raynas.filesystem import whole_file
from raynas.locations import hide_secrets

log = logging.getLogger(__name__)

IN_MEMORY_UP_TO = 2**30  # bytes of encoded images; more are unpacked to a cache file on each node and mapped from it
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # as Hive names the folder of rows without a value
PARQUET = "read as Parquet"
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label")


@dataclass(frozen=True)
class Columns:
    """The columns in use, and the class names if the file's metadata has them (as Hugging Face writes them).

    With `in_folders`, `label` is the key of `key=value` folders instead.
    """

    image: str
    label: str
    class_names: tuple[str, ...] | None
    in_folders: bool = False


@dataclass(frozen=True)
class ParquetSource:
    """Rows of Parquet files; the encoded images of these rows are read once, at the first use.

    Attributes:
        location, paths, sizes: the files.
        starts: the first row of each file, int64 [files].
        column: the column of images.
        rows: the rows, ascending, int64 [n].
    """

    location: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    starts: np.ndarray
    column: str
    rows: np.ndarray

    def image(self, index: int) -> Image.Image:
        encoded = self._encoded[index].as_py()
        if encoded is None:
            raise UserError(f"{self.where(index)}: has no image bytes in column {self.column!r}")
        return open_image(encoded, self.where(index))

    def where(self, index: int) -> str:
        path, row = self._place(index)
        return f"{shown(self.location, path)} row {row}"

    def name(self, index: int) -> str:
        path, row = self._place(index)
        return f"{path} row {row}".strip()

    def _place(self, index: int) -> tuple[str, int]:
        """Return the file of an image, and the row in it."""
        row = int(self.rows[index])
        file = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.paths[file], row - int(self.starts[file])

    def keep(self, indices: np.ndarray) -> ParquetSource:
        return replace(self, rows=self.rows[indices])

    def signature(self, indices: np.ndarray) -> bytes:
        digest = hashlib.sha256(repr((self.paths, self.sizes, self.column)).encode())
        digest.update(self.rows[indices].astype("<i8").tobytes())
        return digest.digest()

    @cached_property
    def _encoded(self) -> pa.ChunkedArray:
        if sum(self.sizes) <= IN_MEMORY_UP_TO:
            return pa.chunked_array(list(self._batches()), pa.large_binary())
        return pa.ipc.open_file(pa.memory_map(str(self._cache_file()))).read_all()["bytes"]

    def _batches(self) -> Iterator[pa.LargeBinaryArray]:
        for path, start in zip(self.paths, self.starts.tolist(), strict=True):
            with readable(shown(self.location, path), PARQUET), open_file(self.location, path) as file:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=1024, columns=[self.column]):
                    first, last = np.searchsorted(self.rows, (start, start + len(batch)))
                    column = batch.column(0)
                    if pa.types.is_struct(column.type):
                        column = pc.struct_field(column, "bytes")
                    yield column.take(pa.array(self.rows[first:last] - start)).cast(pa.large_binary())
                    start += len(batch)

    def _cache_file(self) -> Path:
        """Return an uncompressed Arrow file of the rows on this node, written once."""
        folder = Path(os.environ.get("RAYNAS_CACHE") or Path.home() / ".cache" / "raynas")
        key = hashlib.sha256(self.location.encode() + self.signature(np.arange(len(self.rows)))).hexdigest()[:16]
        target = folder / f"images-{key}.arrow"
        if not target.exists():
            log.info("unpacking %.1f GB of Parquet to %s (once per node)", sum(self.sizes) / 1e9, target)
            folder.mkdir(parents=True, exist_ok=True)
            schema = pa.schema([("bytes", pa.large_binary())])
            # Two workers of one node may both get here: either file will do.
            with whole_file(target) as file, pa.ipc.new_file(file, schema) as writer:
                for batch in self._batches():
                    writer.write_batch(pa.record_batch([batch], schema=schema))
        return target


def read_parquet(listing: Listing, config: DataConfig) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return images for training, separate test images if there are any, and the class names in label order.

    A file belongs to a split by its first folder or, as Hugging Face names files, by its beginning:
    `train-00000-of-00002.parquet`, `test-...`, `validation-...`. Of several test splits the first of `test`, `val`,
    `validation`, `valid` is used. Integer labels are classes in ascending order, text labels in `config.class_order`.
    Where the files have no column of labels, the folders' `key=value` names are one: `split=train/label=3/0.parquet`.

    Raises:
        UserError: columns that are missing or of the wrong type, no rows, empty labels, fewer than two classes, or test
            labels that train does not have.
    """
    files = [k for k, path in enumerate(listing.paths) if path.endswith(".parquet") or not path]
    splits = {name: [k for k in files if _split(listing.paths[k]) == name] for name in (TRAIN, *TEST)}
    train = splits[TRAIN] or files
    test = next((splits[name] for name in TEST if splits[name]), None) if splits[TRAIN] else None
    columns = _columns(listing, train[0], config)
    where = hide_secrets(listing.location)
    source, labels = _read(listing, train, columns)
    position, class_names = _classes(labels, columns, where, config)
    pool = Pool(source, np.array([position[label] for label in labels], dtype=np.int64))
    if test is None:
        return pool, None, class_names
    source, labels = _read(listing, test, columns)
    unknown = sorted({str(label) for label in labels if label not in position})
    if unknown:
        raise UserError(f"{where}: the test files have labels that train has not: {', '.join(unknown[:5])}")
    return pool, Pool(source, np.array([position[label] for label in labels], dtype=np.int64)), class_names


def _classes(
    labels: list[Any], columns: Columns, where: str, config: DataConfig
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """Return the class of each label, and the class names."""
    kinds = {type(label) for label in labels}
    if len(kinds) > 1:
        raise UserError(f"{where}: labels {columns.label!r} are numbers in some files and text in others")
    numbers = kinds == {int}
    order = config.class_order
    if columns.in_folders and order is None and all(map(str.isdecimal, labels)):
        order = "natural"  # the numbers that they were before they became names
    values: list[Any] = sorted(set(labels)) if numbers else in_order(set(labels), order)
    if numbers and values[0] < 0:
        raise UserError(f"{where}: column {columns.label!r} has negative labels; leave unlabelled rows out")
    names = columns.class_names if numbers else None
    if names is not None:
        if values[-1] >= len(names):
            raise UserError(f"{where}: label {values[-1]} is out of range for the {len(names)} class names in the file")
        values = list(range(len(names)))
    if len(values) < 2:
        raise UserError(f"{where}: only one class, {values[0]!r}; telling classes apart takes at least two")
    return {value: k for k, value in enumerate(values)}, names or tuple(map(str, values))


def _split(path: str) -> str | None:
    match = re.match(r"(?:(?:.*/)?split=)?(train|test|validation|valid|val)(?![A-Za-z])", path)
    return match and match[1]


def _in_folders(path: str) -> dict[str, str]:
    """Return the keys and values of the `key=value` folders in a file's path."""
    pairs = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    return {unquote(key): unquote(value) for key, _, value in pairs}


def _columns(listing: Listing, file: int, config: DataConfig) -> Columns:
    where = shown(listing.location, listing.paths[file])
    schema = _open(listing, file).schema_arrow
    images = [field.name for field in schema if _holds_images(field.type)]
    image = config.image_column or (images[0] if len(images) == 1 else None)
    folders = [key for key in _in_folders(listing.paths[file]) if key not in schema.names]
    labels = [name for name in LABEL_NAMES if name in (*schema.names, *folders)]
    label = config.label_column or (labels[0] if labels else None)
    places = (image, "image_column", "image", schema.names), (label, "label_column", "label", [*schema.names, *folders])
    for name, key, what, known in places:
        if name is None or name not in known:
            missing = f"no column {name!r}" if name else f"cannot tell the {what} column"
            others = [other for other in known if key == "image_column" or other != image]
            if not others:
                raise UserError(f"{where}: {missing}: the only column is {image!r}; add a column of labels")
            raise UserError(f"{where}: {missing}; set data.{key} to one of: {', '.join(others)}")
    if image not in images:
        raise UserError(f"{where}: column {image!r} is {schema.field(image).type}; expected encoded images as binary")
    if label in folders:
        return Columns(str(image), str(label), None, in_folders=True)
    kind = schema.field(label).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(f"{where}: column {label!r} is {kind}; expected integer or text labels")
    return Columns(str(image), str(label), _hugging_face_names(schema, str(label), where))


def _hugging_face_names(schema: pa.Schema, label: str, where: str) -> tuple[str, ...] | None:
    """Return the class names in Hugging Face's metadata, or None."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        names = (features.get(label) or {}).get("names")
        return tuple(map(str, names)) if names else None
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{where}: the metadata 'huggingface' are damaged: write the file without them") from error


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _open(listing: Listing, file: int) -> pq.ParquetFile:
    path = listing.paths[file]
    with readable(shown(listing.location, path), PARQUET):
        return pq.ParquetFile(open_file(listing.location, path))


def _read(listing: Listing, files: list[int], columns: Columns) -> tuple[ParquetSource, list[Any]]:
    labels: list[Any] = []
    starts: list[int] = []
    for file in files:
        where = shown(listing.location, listing.paths[file])
        parquet = _open(listing, file)
        folders = _in_folders(listing.paths[file])
        if columns.image not in parquet.schema_arrow.names:
            raise UserError(f"{where}: no column {columns.image!r}, which the other files have")
        starts.append(len(labels))
        if columns.label in parquet.schema_arrow.names:
            with readable(where, PARQUET):
                column = parquet.read(columns=[columns.label])[columns.label]
            if column.null_count:
                row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
                raise UserError(f"{where} row {row}: has no label in column {columns.label!r}")
            labels += column.to_pylist()
        elif folders.get(columns.label, NO_VALUE) != NO_VALUE:
            labels += [folders[columns.label]] * parquet.metadata.num_rows
        else:
            raise UserError(f"{where}: no column {columns.label!r}, which the other files have, nor such a folder")
    if not labels:
        raise UserError(f"{hide_secrets(listing.location)}: the Parquet files have no rows")
    source = ParquetSource(
        listing.location,
        tuple(listing.paths[k] for k in files),
        tuple(listing.sizes[k] for k in files),
        np.array(starts, dtype=np.int64),
        columns.image,
        np.arange(len(labels)),
    )
    return source, labels

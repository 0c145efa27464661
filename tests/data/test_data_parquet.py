"""Parquet files written by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from raynas.data import parquet as parquet_module
from raynas.data.config import DataConfig
from raynas.data.images import ImageSet, decode
from raynas.data.load import load_data, load_test
from raynas.errors import UserError
from tests.data.pictures import encoded, picture


def write(path: Path, ks: range, labels: list[Any], struct: bool = False, **columns: list[Any]) -> str:
    images: list[Any] = [encoded(k) for k in ks]
    table = pa.table({"image": [{"bytes": x, "path": None} for x in images] if struct else images, "label": labels})
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=4)
    return str(path)


def pictures(images: ImageSet) -> list[int]:
    """Which `picture(k)` each image is."""
    known = {np.asarray(picture(k)).tobytes(): k for k in range(60)}
    return [known[x.permute(1, 2, 0).contiguous().numpy().tobytes()] for x in decode(images)[0]]


@pytest.mark.parametrize("struct", [False, True])
def test_one_file_is_split_by_us(tmp_path: Path, struct: bool) -> None:
    path = write(tmp_path / "x.parquet", range(30), ["ox", "ape", "cow"] * 10, struct)
    data, test = load_data(path), load_test(path)
    assert data.class_names == ("ape", "cow", "ox")
    assert (len(data.train), len(data.search), len(test)) == (19, 5, 6)
    parts = (data.train, data.search, test)
    assert sorted(k for part in parts for k in pictures(part)) == list(range(30))
    for part in parts:
        assert part.labels.tolist() == [(2, 0, 1)[k % 3] for k in pictures(part)]
    assert data.train.where(0) == f"{path} row {pictures(data.train)[0]}"


def test_hugging_face_names_and_class_names(tmp_path: Path) -> None:
    labels = [0, 1] * 10
    write(tmp_path / "train-00000-of-00002.parquet", range(20), labels, struct=True)
    write(tmp_path / "train-00001-of-00002.parquet", range(20, 40), labels, struct=True)
    write(tmp_path / "validation-00000-of-00001.parquet", range(40, 50), labels[:10], struct=True)
    write(tmp_path / "test-00000-of-00001.parquet", range(50, 60), labels[:10], struct=True)
    for file in tmp_path.glob("*.parquet"):
        table = pq.read_table(file)
        features = {"label": {"names": ["left", "right"], "_type": "ClassLabel"}}
        pq.write_table(
            table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), file
        )
    data = load_data(str(tmp_path))
    assert data.class_names == ("left", "right")
    assert sorted(pictures(data.train) + pictures(data.search)) == list(range(40))
    assert pictures(load_test(str(tmp_path))) == list(range(50, 60))


def test_split_folders_on_an_object_store(tmp_path: Path, s3_server: Callable[[str], str]) -> None:
    write(tmp_path / "train" / "a.parquet", range(20), [3, 8] * 10)
    write(tmp_path / "val" / "a.parquet", range(20, 30), [8, 3] * 5)
    uri = s3_server("data/table")
    target, path = pyarrow.fs.FileSystem.from_uri(uri)
    pyarrow.fs.copy_files(str(tmp_path), path, destination_filesystem=target)
    data = load_data(uri)
    assert data.class_names == ("3", "8")
    assert sorted(pictures(data.train) + pictures(data.search)) == list(range(20))
    test = load_test(uri)
    assert pictures(test) == list(range(20, 30)) and test.labels.tolist() == [1, 0] * 5
    assert data.fingerprint == load_data(str(tmp_path)).fingerprint


def test_large_files_are_mapped_from_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", range(30), [0, 1, 2] * 10)
    expected = pictures(load_data(path).train)
    monkeypatch.setattr(parquet_module, "IN_MEMORY_UP_TO", 0)
    monkeypatch.setenv("RAYNAS_CACHE", str(tmp_path / "cache"))
    assert pictures(load_data(path).train) == expected
    (cached,) = (tmp_path / "cache").iterdir()
    written = cached.stat().st_mtime_ns
    assert pictures(load_data(path).train) == expected
    assert cached.stat().st_mtime_ns == written
    held = {*pa.ipc.open_file(str(cached)).read_all()["bytes"].to_pylist()}
    assert held == {encoded(k) for k in expected + pictures(load_data(path).search)}  # no test image


def test_columns_by_name(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"mask": [b"x"] * 30, "kind": [0, 1] * 15}
    path = write(tmp_path / "x.parquet", range(30), [0, 1, 2] * 10, **extra)
    with pytest.raises(UserError, match=r"the image column; set data.image_column to one of: image, label, mask"):
        load_data(path)
    assert load_data(DataConfig(name=path, image_column="image", label_column="kind")).classes == 2
    with pytest.raises(UserError, match=r"no column 'images'; set data.image_column"):
        load_data(DataConfig(name=path, image_column="images"))
    with pytest.raises(UserError, match="column 'label' is int64; expected encoded images"):
        load_data(DataConfig(name=path, image_column="label"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, -1] * 4, "column 'label' has negative labels"),
        ([0, 1, None] * 4, "row 2: has no label"),
        ([7] * 12, "only one class, 7"),
        ([0.5, 1.5, 1.0] * 4, "column 'label' is double; expected integer or text labels"),
    ],
)
def test_wrong_labels(tmp_path: Path, labels: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_data(write(tmp_path / "x.parquet", range(12), labels))


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(UserError, match=r"text.parquet: cannot be read as Parquet"):
        load_data(str(tmp_path / "text.parquet"))
    pq.write_table(
        pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}), tmp_path / "e.parquet"
    )
    with pytest.raises(UserError, match="the Parquet files have no rows"):
        load_data(str(tmp_path / "e.parquet"))
    images = [None if k == 7 else encoded(k) for k in range(20)]
    pq.write_table(pa.table({"image": images, "label": [0, 1] * 10}), tmp_path / "null.parquet")
    with pytest.raises(UserError, match=r"null.parquet row 7: has no image bytes"):
        load_data(str(tmp_path / "null.parquet"))
        load_test(str(tmp_path / "null.parquet"))
    pq.write_table(pa.table({"image": [b"junk"] * 20, "label": [0, 1] * 10}), tmp_path / "junk.parquet")
    with pytest.raises(UserError, match=r"junk.parquet row \d+: cannot be read as an image: not an image"):
        load_data(str(tmp_path / "junk.parquet"))
    write(tmp_path / "other" / "train.parquet", range(10), [0, 1] * 5)
    write(tmp_path / "other" / "test.parquet", range(10, 20), [0, 2] * 5)
    with pytest.raises(UserError, match="the test files have labels that train has not: 2"):
        load_data(str(tmp_path / "other"))

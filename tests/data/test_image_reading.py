"""From stored images to pixels: ranges beyond 8 bits, orientation, modes, skipped images, and their fingerprints."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from timm.utils.misc import natural_key

from raynas.data.class_order import in_order, order_of
from raynas.data.config import DataConfig, stored_config
from raynas.data.files import list_files, open_image
from raynas.data.images import decode
from raynas.data.load import load_data, load_test, look_at
from raynas.data.reading import RangeUnknown, Reading
from raynas.errors import UserError
from tests.data.pictures import picture, write_classes

RAMP = np.arange(120).reshape(10, 12)


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def read(encoded: bytes, pixel_range: tuple[float, float] | None = None, channels: int = 1) -> np.ndarray:
    image = Reading(True, pixel_range).read(open_image(encoded, "x.png"), channels, "x.png")
    return np.asarray(image)


DEEP = {
    "16-bit PNG": bytes_of(Image.fromarray(RAMP.astype(np.uint16)), "PNG"),
    "16-bit TIFF": bytes_of(Image.fromarray(RAMP.astype(np.uint16)), "TIFF"),
    "16-bit TIFF, big end first": bytes_of(Image.fromarray(RAMP.astype(">u2")), "TIFF"),
    "32-bit TIFF": bytes_of(Image.fromarray(RAMP.astype(np.int32)), "TIFF"),
    "floating point": bytes_of(Image.fromarray(RAMP.astype(np.float32)), "TIFF"),
}


@pytest.mark.parametrize("kind", DEEP)
def test_black_and_white_are_what_is_said(kind: str) -> None:
    assert np.array_equal(read(DEEP[kind], (0, 255)), RAMP)
    assert np.array_equal(read(DEEP[kind], (0, 119), 3)[..., 1], np.rint(RAMP * 255 / 119))
    assert np.array_equal(read(DEEP[kind], (255, 0)), 255 - RAMP)  # white is the lower value
    assert np.array_equal(read(DEEP[kind], (20, 71)), np.rint(np.clip(RAMP - 20, 0, 51) * 5))
    with pytest.raises(RangeUnknown, match=r"^x.png: values from 0 to 119, .* data.pixel_range=\[0, 255\]$"):
        read(DEEP[kind])


def test_a_range_that_the_file_states_is_kept() -> None:
    maximum = b"P5 12 10 4095\n" + (RAMP * 34).astype(">u2").tobytes()
    assert np.abs(read(maximum).astype(float) - RAMP * 34 * 255 / 4095).max() <= 0.51


def test_colours_of_16_bits_are_not_read_as_black() -> None:
    rows = b"".join(b"\0" + np.full((2, 3), 200, ">u2").tobytes() for _ in range(2))
    import struct
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    png = b"\x89PNG\r\n\x1a\n" + parts
    with pytest.raises(RangeUnknown, match="convert it to 8 bits"):
        read(png, channels=3)
    assert read(png, (0, 65535), 3).shape == (2, 2, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "PA", "RGBX"])
def test_every_mode_is_what_pillow_shows(mode: str) -> None:
    image = picture(3).convert("RGBA" if mode in ("LA", "RGBA") else "RGB")
    image = image.convert("P").convert("PA") if mode == "PA" else image.convert(mode)
    for channels, target in ((1, "L"), (3, "RGB")):
        found = Reading(True).read(image, channels, "x")
        assert isinstance(found, Image.Image) and found.mode == target
        through = image.convert("RGB").convert(target) if mode in ("HSV", "CMYK", "YCbCr", "RGBX") else image
        assert np.abs(np.asarray(found, int) - np.asarray(through.convert(target), int)).max() <= 1


@pytest.mark.parametrize("mode", ["LAB", "La"])
def test_modes_that_are_not_read_are_refused_by_name(mode: str) -> None:
    with pytest.raises(UserError, match=f"^x.tif: {mode}"):
        Reading().read(Image.new(mode, (4, 4)), 3, "x.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_images_are_upright(orientation: int, kind: str) -> None:
    """The eight orientations by the corners that they name, not by Pillow."""
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:4, :8] = 255  # the top left corner is white
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    encoded = bytes_of(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **options)
    assert np.array_equal(read(encoded, channels=3), upright)


def turned_folder(root: Path) -> str:
    """Images of 12 x 10 pixels, all stored on their side."""
    exif = Image.Exif()
    exif[274] = 6
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for k in range(6):
            picture(k).rotate(90, expand=True).save(root / name / f"{k}.png", exif=exif)
    return str(root)


def test_orientation_is_in_size_and_fingerprint_and_older_runs_keep_theirs(tmp_path: Path) -> None:
    name = turned_folder(tmp_path / "data")
    data, ignored = load_data(name), load_data(DataConfig(name=name, exif="ignored"))
    assert data.size == (10, 12) and ignored.size == (12, 10)
    assert data.fingerprint != ignored.fingerprint
    known = {np.asarray(picture(k)).tobytes() for k in range(6)}
    assert all(x.permute(1, 2, 0).numpy().tobytes() in known for x in decode(data.train)[0])
    # What a run of an older version wrote has no word of it: its images and fingerprint stay.
    assert load_data(stored_config({"data": {"name": name}})).fingerprint == ignored.fingerprint
    assert "exif" not in ignored.config.recorded("f") and "exif" in DataConfig(name=name, exif="upright").recorded("f")


def test_older_fingerprints_and_records_stay() -> None:
    assert load_data("digits").fingerprint == "32cbd899c2a4535c"
    assert {*DataConfig(name="digits").model_dump()} == {
        *("name", "search_fraction", "seed", "size", "channels", "crop_pct", "interpolation"),
        *("image_column", "label_column"),
    }


def test_options_survive_a_preset_file() -> None:
    config = DataConfig(
        name="digits", exif="ignored", pixel_range=(0, 4095), class_order="natural", skip=("a/1.png",), size="own"
    )
    assert DataConfig.model_validate(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


def test_parquet_and_orientation_and_range(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 3
    turned = [bytes_of(picture(k, mode="L").rotate(180), "PNG", exif=exif) for k in range(15)]
    deep = [bytes_of(Image.fromarray(np.asarray(picture(k, mode="L")).astype(np.uint16)), "PNG") for k in range(15)]
    table = {"image": [x for pair in zip(turned, deep, strict=True) for x in pair], "label": [0, 0, 1, 1, 2, 2] * 5}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    data = load_data(DataConfig(name=str(tmp_path / "x.parquet"), pixel_range=(0, 255)))
    known = {np.asarray(picture(k, mode="L")).tobytes() for k in range(15)}
    assert all(x.numpy().tobytes() in known for x in decode(data.train)[0])
    assert load_data(DataConfig(name=data.name, pixel_range=(0, 256))).fingerprint != data.fingerprint
    found = look_at(DataConfig(name=data.name))
    assert found.unranged is not None and "15 image(s)" in found.unranged and "[0, 255]" in found.unranged
    assert found.turned == 15 and not found.unreadable


def test_what_cannot_be_read_is_found_and_skipped(tmp_path: Path) -> None:
    write_classes(tmp_path / "all", {"a": 10, "b": 10})
    write_classes(tmp_path / "left", {"a": 10, "b": 10})
    bad = ["a/002.png", "a/007.png", "b/015.png"]
    for k, name in enumerate(bad):
        file = tmp_path / "all" / name
        file.write_bytes((file.read_bytes()[:80], b"", b"no image")[k])
        (tmp_path / "left" / name).unlink()
    found = look_at(DataConfig(name=str(tmp_path / "all")))
    assert [*found.unreadable] == bad and found.count == 20 and found.sizes == {(10, 12): 17}
    assert all(line.startswith(str(tmp_path / "all" / name)) for name, line in found.unreadable.items())
    data, left = load_data(DataConfig(name=str(tmp_path / "all"), skip="unreadable")), load_data(str(tmp_path / "left"))
    assert data.config.skip == tuple(bad) and data.fingerprint == left.fingerprint
    assert data.config.recorded("f") == {**left.config.recorded("f"), "name": data.name}
    assert len(load_test(data.config)) == len(load_test(left.config))


def test_class_orders() -> None:
    names = ["1", "10", "2", "Bee 3", "ant 20", "ant 3", "x007", "x7", "²", "10²"]
    ours = in_order([name for name in names if "²" not in name], "natural")
    assert ours == sorted(sorted(name for name in names if "²" not in name), key=natural_key)
    assert in_order(names, None) == sorted(names) and len(in_order(names, "natural")) == len(names)
    assert [order_of(x) for x in (("1", "10", "2"), ("1", "2", "10"), ("a", "b"), ("b", "a"))] == [
        *("plain", "natural", "any", "other")
    ]


@pytest.mark.parametrize("order", [None, "natural"])
def test_numbered_folders_are_labelled_in_the_order_that_is_said(tmp_path: Path, order: Any) -> None:
    write_classes(tmp_path, {"1": 5, "10": 5, "2": 5})
    data = load_data(DataConfig(name=str(tmp_path), class_order=order))
    assert data.class_names == (("1", "10", "2") if order is None else ("1", "2", "10"))
    for k in range(len(data.train)):
        assert data.class_names[data.train.labels[k]] == Path(data.train.where(k)).parent.name


@pytest.mark.parametrize("key", ["label", "species"])
def test_labels_in_the_names_of_folders(tmp_path: Path, key: str) -> None:
    """As pyarrow itself writes them."""
    table = pa.table({"image": [bytes_of(picture(k), "PNG") for k in range(36)], key: [2, 10, 1] * 12})
    pq.write_to_dataset(table, tmp_path, partition_cols=[key])
    if key == "species":
        with pytest.raises(UserError, match=r"set data.label_column to one of: species$"):
            load_data(str(tmp_path))
    data = load_data(DataConfig(name=str(tmp_path), label_column=None if key == "label" else key))
    assert data.class_names == ("1", "2", "10")
    known = {np.asarray(picture(k)).tobytes(): (1, 2, 0)[k % 3] for k in range(36)}
    pixels, labels = decode(data.train)
    assert [known[x.permute(1, 2, 0).contiguous().numpy().tobytes()] for x in pixels] == labels.tolist()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["/", "/proc", "/proc/self", "/sys", "/dev", "file:///proc"])
def test_the_operating_system_is_no_dataset(name: str) -> None:
    with pytest.raises(UserError, match="is the operating system's and no dataset"):
        load_data(name)


def test_a_link_that_leads_back_is_told(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    with pytest.raises(UserError, match="a/again: a link that leads back"):
        list_files(str(tmp_path))


def test_the_images_own_size(tmp_path: Path) -> None:
    write_classes(tmp_path / "one", {"a": 5, "b": 5}, size=(120, 130))
    assert load_data(DataConfig(name=str(tmp_path / "one"), size="own", channels="own")).size == (130, 120)
    write_classes(tmp_path / "two", {"a": 5}, size=(12, 10))
    write_classes(tmp_path / "two", {"b": 5}, size=(12, 11))
    with pytest.raises(UserError, match=r"no one size of their own \(10 x 12 and 11 x 12\)"):
        load_data(DataConfig(name=str(tmp_path / "two"), size="own"))

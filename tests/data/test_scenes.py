"""Scenes: what is known of them is what is on the canvases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.ops import masks_to_boxes

from raynas.data.canvas import INK, Split
from raynas.data.embedded import digits
from raynas.data.scenes import CLASSES, Scenes, ScenesConfig, make_scenes
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut
from raynas.errors import UserError

SMALL = ScenesConfig(train=12, test=8)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return make_scenes(SMALL, "train")


def test_the_same_settings_give_the_same_scenes(scenes: Scenes) -> None:
    assert make_scenes(SMALL, "train").fingerprint == scenes.fingerprint == "6b45b7f871972891"
    assert make_scenes(SMALL.model_copy(update={"seed": 1}), "train").fingerprint != scenes.fingerprint
    assert make_scenes(SMALL, "test").fingerprint != scenes.fingerprint
    fewer = make_scenes(SMALL.model_copy(update={"train": 5}), "train")
    assert torch.equal(fewer.pixels, scenes.pixels[:5])


def test_boxes_masks_and_classes_agree(scenes: Scenes) -> None:
    for index in range(len(scenes)):
        target = scenes.target(index)
        assert 1 <= len(target["labels"]) == len(target["masks"]) <= SMALL.objects[1]
        assert target["labels"].min() >= 1 and target["labels"].max() < len(CLASSES)
        behind = torch.tensor([0, 0, 1, 1])  # torchvision's end at the last pixel, ours behind it
        assert torch.equal(target["boxes"], masks_to_boxes(target["masks"]) + behind)
        assert int(target["masks"].sum(0).max()) == 1
        assert (scenes.pixels[index, 0][target["masks"].bool().any(0)] >= INK).all()
        labelled = (target["masks"].long() * target["labels"][:, None, None]).sum(0)
        assert torch.equal(labelled, scenes.semantic[index])


SPLITS: tuple[tuple[Split, int], ...] = (("train", 0), ("test", 1))


def test_digits_of_both_splits_are_different_ones() -> None:
    """At their own size and brightness, every digit of a scene is found among those of its split alone."""
    plain = ScenesConfig(size=(16, 16), side=(8, 8), objects=(1, 1), pieces=0, noise=0, train=20, test=20)
    pixels, labels = digits()
    parts = cut(labels, TEST_FRACTION, TEST_SEED, CLASSES[1:], "test")
    for split, place in SPLITS:
        own, other = parts[place], parts[1 - place]
        made = make_scenes(plain, split)
        for index in range(len(made)):
            left, upper, right, lower = made.target(index)["boxes"][0].int().tolist()
            found = made.pixels[index, 0].numpy().astype(float)
            found = found[upper:lower, left:right] / found.max()

            def nearest(of: np.ndarray, found: np.ndarray = found) -> float:
                """The smallest difference to the digits, wherever in their square."""
                rows, columns = found.shape
                squares = pixels[of, 0] / pixels[of, 0].max((1, 2), keepdims=True)
                windows = np.lib.stride_tricks.sliding_window_view(squares, (rows, columns), axis=(1, 2))
                return float(np.abs(windows - found).max((3, 4)).min())

            assert nearest(own) < 0.01 < nearest(other)


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        ScenesConfig(size=(16, 16))
    with pytest.raises(ValueError, match="digits in a scene"):
        ScenesConfig(objects=(3, 2))
    with pytest.raises(UserError, match="no split"):
        make_scenes(SMALL, "search")  # type: ignore[arg-type]

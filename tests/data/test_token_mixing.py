"""Labels of patches under mixing, against data of ViT-ResNAS's released code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.data.mixup import mixup_target
from torch import Tensor

from raynas.data.token_labels import TokenLabelsConfig
from raynas.data.token_mixing import _released_box, mix_tokens, paste_patches
from raynas.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "resnas_token_mix"
ABOUT = json.loads(GOLDEN.with_suffix(".json").read_text())


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)


def counted(batch: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """Images whose every pixel holds their number, of classes of their own."""
    images = torch.arange(batch).float().view(-1, 1, 1, 1).expand(-1, 1, side, side).clone()
    return images, F.one_hot(torch.arange(batch), batch).float()


@pytest.mark.parametrize("case", ABOUT["cases"], ids=lambda case: f"{case['patch_len']}x{case['patch_len']}")
def test_the_released_mixing_draw_for_draw(case: dict[str, Any]) -> None:
    with np.load(GOLDEN.with_suffix(".npz")) as arrays:
        golden = {
            name.split("/")[1]: torch.tensor(arrays[name])
            for name in arrays.files
            if name.startswith(f"case{case['case']}/")
        }
    targets = mixup_target(golden["labels"], case["classes"], lam=1.0, smoothing=case["smoothing"])
    seed(case["seed_torch_and_numpy"])
    grid = (case["patch_len"], case["patch_len"])
    images, mixed = mix_tokens(golden["x"], targets, grid, TokenLabelsConfig(mixing="released"))
    torch.testing.assert_close(images, golden["mixed"], rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed[:, 0], golden["targets"], rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed[:, 1:], golden["patch_targets"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", [4, 7])
def test_released_boxes_paste_each_patch_as_often_as_was_measured(side: int) -> None:
    seed(0)
    boxes = torch.stack([_released_box((side, side), 1.0) for _ in range(20_000)]).double()
    expected = torch.tensor(ABOUT["cell_paste_probability"][str(side)], dtype=torch.float64)
    torch.testing.assert_close(boxes.mean(0), expected, rtol=0, atol=0.017)  # over four deviations
    assert 1 - boxes.mean().item() == pytest.approx(ABOUT["mean_lam"][str(side)], abs=0.01)
    assert not boxes[:, -1].any()


def test_each_patch_is_labelled_as_what_is_seen_in_it() -> None:
    """Under CutMix a patch shows one image; the image's target has every image's share of patches."""
    images, targets = counted(6)
    for attempt in range(20):
        seed(attempt)
        mixed, labelled = mix_tokens(images, targets, (4, 2), TokenLabelsConfig(mixing="switch", switch_prob=1.0))
        shown = mixed[:, 0, ::2, ::4].flatten(1).long()  # the corner of each patch
        assert torch.equal(mixed, mixed[:, :, ::2, ::4].repeat_interleave(2, 2).repeat_interleave(4, 3))
        torch.testing.assert_close(labelled[:, 1:], F.one_hot(shown, 6).float())
        torch.testing.assert_close(labelled[:, 0], labelled[:, 1:].mean(1))


def test_under_mixup_every_patch_has_the_images_target() -> None:
    images, targets = counted(6)
    seed(0)
    mixed, labelled = mix_tokens(images, targets, (4, 4), TokenLabelsConfig(mixing="switch", switch_prob=0.0))
    seen = labelled[:, 0] @ torch.arange(6.0)
    torch.testing.assert_close(mixed[:, 0, 0, 0], seen)
    assert (labelled == labelled[:, :1]).all() and labelled[:, 0].max() < 1


def test_switching_takes_either_for_a_whole_batch() -> None:
    images, targets = counted(6)
    seed(1)
    kinds = []
    for _ in range(200):
        _, labelled = mix_tokens(images, targets, (4, 4), TokenLabelsConfig(mixing="switch", switch_prob=0.25))
        kinds.append(bool(((labelled[:, 1:] == 0) | (labelled[:, 1:] == 1)).all()))
    assert sum(kinds) == pytest.approx(50, abs=25)


def test_without_mixing_patches_have_the_images_label() -> None:
    images, targets = counted(3)
    mixed, labelled = mix_tokens(images, targets, (2, 3), TokenLabelsConfig(mixing="none"))
    assert mixed is images and labelled.shape == (3, 7, 3) and torch.equal(labelled[:, 4], targets)


def test_one_image_and_one_patch() -> None:
    images, targets = counted(1, side=4)
    for mixing in ("released", "switch"):
        mixed, labelled = mix_tokens(images, targets, (1, 1), TokenLabelsConfig.model_validate({"mixing": mixing}))
        assert torch.equal(mixed, images) and torch.equal(labelled, torch.ones(1, 2, 1))


def test_patches_that_do_not_divide_the_image() -> None:
    images, targets = counted(2)
    with pytest.raises(ConfigError, match="token_labels: a grid of 3 x 4 patches does not divide 8 x 8 pixels"):
        paste_patches(images, targets, torch.tensor([1, 0]), torch.zeros(3, 4, dtype=torch.bool))

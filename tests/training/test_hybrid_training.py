"""Training of a family whose archs have batch statistics of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raynas.errors import UserError
from raynas.nets.calibration import calibrate
from raynas.nets.weights import load_supernet
from raynas.space import Space
from raynas.training.loop import train_loop
from tests.training.training_parts import few, plan, recipe

CONV: dict[str, Any] = {"width": [4, 6], "depth": [1], "kernel": [3], "expansion": [2]}
SPACE = Space.from_dict(
    {
        "family": "hybrid",
        "input": {"size": 8, "channels": 1},
        "classes": 10,
        "constants": {"kinds": ["conv", "transformer"], "strides": [2, 2], "squeeze": [False, True], "head_dim": 4},
        "dimensions": {
            "resolution": [6, 8],  # the last grid is 1 x 1
            "stem": {"width": [4]},
            "stages": [CONV, {**CONV, "width": [4, 8], "depth": [2], "mlp_ratio": [1.0], "windows": [1]}],
            "head": {"width": [8]},
        },
    },
    "tiny hybrid",
)


def test_it_trains_and_its_averaged_weights_are_a_supernet() -> None:
    sandwich = {"name": "sandwich", "random": 1}
    state = train_loop(
        SPACE, few(), plan(sandwich, objective="inplace_distillation"), recipe(epochs=2, ema=0.9, drop_path=0.1)
    )
    assert all(entry["loss"] < 3 for entry in state.history)
    supernet = load_supernet(SPACE, state.weights).eval()
    moved = [name for name, buffer in supernet.named_buffers() if name.endswith("mean") and buffer.all()]
    assert len(moved) == len(list(supernet.buffers())) / 2  # the largest arch has every channel
    arch, images = SPACE.smallest(), torch.randn(16, 1, 8, 8)
    logits = supernet(images, arch, statistics=calibrate(supernet, arch, [images]))
    assert logits.shape == (16, 10) and bool(logits.isfinite().all())


def test_too_few_images_for_every_arch_says_what_to_do() -> None:
    with pytest.raises(UserError, match="give every arch at least two images of a batch"):
        train_loop(SPACE, few(), plan({"name": "mixed", "archs": 20}), recipe())

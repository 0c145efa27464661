"""What the training tests share: a tiny space and few images, so that a training takes a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import save_file

from raynas.data.load import Data, load_data
from raynas.phases.run_context import RunContext
from raynas.runs.files import local_checkpoints
from raynas.runs.run import Run
from raynas.space import Space
from raynas.training.context import Event
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe

SPACE = Space.from_dict(
    {
        "family": "vit",
        "input": {"size": 8, "channels": 1},
        "classes": 10,
        "constants": {"head_dim": 4},
        "dimensions": {
            "patch_size": [4],
            "width": [8, 16],
            "depth": [1, 2],
            "blocks": {"heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
        },
    },
    "tiny",
)


class Keeping(RunContext):
    """A process that keeps its checkpoints in a run directory."""

    def __init__(self, folder: Path, keep: int = 3, on_event: Callable[[Event], None] = lambda event: None):
        super().__init__(Run(folder, create=True), "supernet", keep, on_event, "cpu")

    def checkpoints(self) -> list[str]:
        return self.run.list(local_checkpoints(self.name))


def few(train: int = 96, search: int = 50) -> Data:
    """Digits, cut down."""
    full = load_data("digits")
    return Data(full.config, full.class_names, full.train.take(np.arange(train)), full.search.take(np.arange(search)))


def recipe(**changes: Any) -> Recipe:
    """Three epochs of three steps of 32 images; nothing is random but first weights, order and archs."""
    plain = {"epochs": 3, "batch_size": 32, "lr": 3e-3, "lr_base_batch": None, "warmup_epochs": 1, "smoothing": 0.0}
    return Recipe.model_validate({**plain, **changes})


def plan(sampler: Any = "single_path", **parts: Any) -> Plan:
    return Plan.model_validate({"sampler": sampler, **parts})


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two state dicts are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def teacher_file(path: Path, seed: int = 0) -> dict[str, Any]:
    """A teacher of a preset: timm's tiny ResNet with fresh weights, in a file, for images of 16 x 16 pixels."""
    torch.manual_seed(seed)
    save_file(timm.create_model("test_resnet", num_classes=10).state_dict(), path)
    return {"timm": "test_resnet", "weights": str(path), "size": 16}

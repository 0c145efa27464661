"""What the released NASViT code computed, for tests: a small supernet with random weights, and networks of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raynas.space import Arch, Space

DATA = Path(__file__).parents[1] / "golden"


def golden() -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The description, the arrays, and the weights by their released names."""
    about = json.loads((DATA / "nasvit_tiny.json").read_text())
    arrays, weights = (
        {name: torch.from_numpy(array) for name, array in np.load(DATA / f"nasvit_tiny_{which}.npz").items()}
        for which in ("io", "state")
    )
    return about, arrays, weights


def golden_space(about: dict[str, Any]) -> Space:
    """The space of the small supernet."""
    released = about["search_space"]
    stages = [released[f"mb{stage}"] for stage in range(1, 8)]
    return Space.from_dict(
        {
            "family": "hybrid",
            "input": {"size": 64, "channels": 3},
            "classes": about["n_classes"],
            "constants": {
                "kinds": ["conv"] * 3 + ["transformer"] * 4,
                "strides": [stage["s"] for stage in stages],
                "squeeze": [stage["se"] for stage in stages],
            },
            "dimensions": {
                "resolution": released["resolutions"],
                "stem": {"width": released["first_conv"]["c"]},
                "stages": [
                    {
                        **{ours: stage[theirs] for ours, theirs in zip(LEAVES, "cdkt", strict=True)},
                        **({"mlp_ratio": [1.0], "windows": [1]} if index >= 3 else {}),
                    }
                    for index, stage in enumerate(stages)
                ],
                "head": {"width": released["last_conv"]["c"]},
            },
        },
        "golden",
    )


LEAVES = ("width", "depth", "kernel", "expansion")


def arch_of(config: dict[str, Any], space: Space) -> Arch:
    """The arch of a configuration as the release writes it."""
    values: dict[str, Any] = {
        "resolution": config["resolution"],
        "stem.width": config["width"][0],
        "head.width": config["width"][-1],
    }
    columns = zip(config["width"][1:-1], config["depth"], config["kernel_size"], config["expand_ratio"], strict=True)
    for stage, column in enumerate(columns):
        values |= {f"stages.{stage}.{leaf}": value for leaf, value in zip(LEAVES, column, strict=True)}
        if space.has(f"stages.{stage}.windows"):
            values |= {f"stages.{stage}.mlp_ratio": 1.0, f"stages.{stage}.windows": 1}
    return space.arch(values)

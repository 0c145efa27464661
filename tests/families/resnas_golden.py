"""What the released ViT-ResNAS code computed, for tests: a small supernet with random weights, and networks of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from raynas.space import Arch, Space

DATA = Path(__file__).parents[1] / "golden"
STEM, BLOCK, HEAD, REDUCTION = 4, 1, 2, 3
"""How the release marks the parts of a network; a block is [1, [width, heads, head dim], [width, hidden], kept]."""


def golden() -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Tensor]]:
    """The description, the arrays, and the weights by their released names."""
    about = json.loads((DATA / "resnas_supernet_small.json").read_text())
    return (
        about,
        dict(np.load(DATA / "resnas_supernet_small_io.npz")),
        load_file(DATA / "resnas_supernet_small.safetensors"),
    )


def golden_space(about: dict[str, Any]) -> Space:
    """The space of the small supernet."""
    choices = about["choices"]
    stages = []
    for width, heads, hidden, slots in zip(*(choices[key] for key in ("embed", "heads", "ffn", "slots")), strict=True):
        block = {"heads": sorted(heads), "mlp_width": sorted(hidden)}
        kept = {"keep": [True], "skippable": [False, True]}
        stages.append({"width": sorted(width), "blocks": [{"kept": kept[slot], **block} for slot in slots]})
    return Space.from_dict(
        {
            "family": "vit_res",
            "input": {"size": about["img_size"], "channels": 3},
            "classes": about["num_classes"],
            "constants": {"head_dims": choices["head_dim"], "token_head": True},
            "dimensions": {"stages": stages},
        },
        "golden",
    )


def arch_of(network: list[Any], space: Space) -> Arch:
    """The arch of a network as the release writes it."""
    values: dict[str, Any] = {}
    stage = place = 0
    for part in network:
        if part[0] == REDUCTION:
            stage, place = stage + 1, 0
        if part[0] in (STEM, REDUCTION):
            values[f"stages.{stage}.width"] = part[-1]
        if part[0] == BLOCK:
            (_, heads, _), (_, hidden), kept = part[1:]
            genes = {"kept": bool(kept), "heads": heads, "mlp_width": hidden}
            values.update({f"stages.{stage}.blocks.{place}.{leaf}": value for leaf, value in genes.items()})
            place += 1
    return space.arch(values)

"""Small spaces that between them have every feature of the families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Space
from tests.families.hybrid_spaces import HYBRID
from tests.families.s3_spaces import S3
from tests.families.twins_spaces import TWINS
from tests.families.vit_res_spaces import VIT_RES

BLOCKS = {"heads": [1, 2, 3], "mlp_ratio": [1.5, 2.0, 3.1]}
FREE = {"heads": [1, 2, 3], "query_width": [6, 12, 18], "mlp_width": [7, 20, 33]}
DIMENSIONS = {"patch_size": [4], "width": [12, 20, 25], "depth": [1, 2, 3], "blocks": BLOCKS}

DEFINITIONS: dict[str, dict[str, Any]] = {
    "autoformer": {
        "input": {"size": 16, "channels": 3},
        "constants": {"head_dim": 8, "pool": "mean", "relative_position": 14, "qkv_bias": "thirds", "norm_eps": 1e-5},
    },
    "clipped rectangle": {
        "input": {"size": [24, 14], "channels": 2},
        "constants": {
            "head_dim": 6,
            "class_token": False,
            "pool": "mean",
            "relative_position": 2,
            "attention_scale": 0.3,
            "qkv_bias": "head",
        },
    },
    "patch sizes": {
        "input": {"size": [13, 10], "channels": 1},
        "constants": {"head_dim": 8, "relative_position": 1, "qkv_bias": "none"},
        "dimensions": {**DIMENSIONS, "patch_size": [5, 4, 3]},
    },
    "deit": {
        "input": {"size": 16, "channels": 3},
        "constants": {"head_dim": 8, "drop_path_depth": 2, "token_head": True},
    },
    "thirds alone": {"input": {"size": 16, "channels": 3}, "constants": {"head_dim": 4, "qkv_bias": "thirds"}},
    "blocks differ": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": 8, "qkv_bias": "thirds", "relative_position": 3},
        "dimensions": {
            **DIMENSIONS,
            "blocks": [
                {"heads": [1, 4], "mlp_ratio": [1.0]},
                {"heads": [2], "mlp_ratio": [2.0, 3.0]},
                {"heads": [1, 2], "mlp_ratio": [0.5]},
            ],
        },
    },
    "vitas": {
        "input": {"size": [13, 10], "channels": 1},
        "constants": {"head_dim": None, "private_heads": "qk"},
        "dimensions": {"patch_size": [5, 4, 3], "width": [7, 19, 25], "depth": [0, 1, 2, 3], "blocks": FREE},
    },
    "cyclic": {
        "input": {"size": 12, "channels": 1},
        "constants": {"head_dim": None, "sharing": "cyclic", "private_class_token": False},
        "dimensions": {"patch_size": [4, 3], "width": [3, 9, 14, 23, 25], "depth": [1, 2, 3], "blocks": FREE},
    },
    "cyclic heads": {
        "input": {"size": 12, "channels": 2},
        "constants": {"head_dim": 8, "sharing": "cyclic", "groups": 5, "relative_position": 2, "private_heads": "qkv"},
    },
    "kept anywhere": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": 4, "pool": "mean", "class_token": False, "token_head": True},
        "dimensions": {
            "patch_size": [4],
            "width": [12, 20],
            "blocks": {"repeat": 4, "kept": [False, True], **BLOCKS},
        },
    },
    "kept anywhere, private v": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": None, "private_heads": "v", "qkv_bias": "none", "attention_scale": 0.5},
        "dimensions": {"patch_size": [4], "width": [12, 20], "blocks": {"repeat": 3, "kept": [False, True], **FREE}},
    },
    "one block stacked": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": None, "sharing": "cyclic", "groups": 3},
        "dimensions": {"patch_size": [4], "width": [12, 20], "depth": [2, 3], "block": FREE},
    },
    "stacked to a budget": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": None, "depth_macs": 20000, "max_depth": 5},
        "dimensions": {"patch_size": [4], "width": [12, 20, 25], "block": FREE},
    },
    "bilateral": {
        "input": {"size": 8, "channels": 1},
        "constants": {"head_dim": None, "sharing": "bilateral", "private_heads": "qk", "token_head": True},
        "dimensions": {"patch_size": [4], "width": [12, 20, 25], "depth": [1, 2], "blocks": FREE},
    },
    "distilled": {
        "input": {"size": [13, 10], "channels": 1},
        "constants": {"head_dim": 6, "relative_position": 2, "distillation_token": True, "token_head": True},
        "dimensions": {**DIMENSIONS, "patch_size": [5]},
    },
    "cait": {
        "input": {"size": [13, 10], "channels": 1},
        "constants": {
            "head_dim": 8,
            "sharing": "cyclic",
            "groups": 5,
            "layer_scale": 0.3,
            "class_attention": {"blocks": 2, "heads": 3, "head_dim": 4, "mlp_ratio": 1.5},
        },
        "dimensions": {**DIMENSIONS, "patch_size": [5, 3]},
    },
    "cait distilled": {
        "input": {"size": 8, "channels": 2},
        "constants": {
            "head_dim": 8,
            "qkv_bias": "none",
            "relative_position": 2,
            "private_class_token": False,
            "distillation_token": True,
            "token_head": True,
            "class_attention": {"blocks": 1, "heads": 2, "head_dim": 5},
        },
    },
    **TWINS,
    **VIT_RES,
    **HYBRID,
    **S3,
}


REPEATED = {
    "thirds alone",
    "cyclic heads",
    "kept anywhere, private v",
    "one block stacked",
    "cait distilled",
    "twins heads",
    "twins cyclic",
    "twins bilateral",
    "twins kept anywhere",
    "vit_res cyclic",
    "vit_res distilled",
    "vit_res bilateral",
    "hybrid cyclic",
    "s3 cyclic",
    "s3 bilateral",
}
"""Spaces each of whose features another one has: for tests that do not ask which weights are shared, they are slow."""


def features(names: Iterable[str] = DEFINITIONS) -> list[Any]:
    """The spaces by name as parameters of a test; quick tests have every feature once, slow ones what it is with."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in REPEATED else []) for name in names]


def make_space(name: str) -> Space:
    """One of the spaces above."""
    return Space.from_dict({"family": "vit", "classes": 7, "dimensions": DIMENSIONS, **DEFINITIONS[name]}, name)


def make_supernet(space: Space, seed: int = 0) -> Supernet:
    """A supernet in eval mode, all of its parameters and batch statistics far from how they start."""
    torch.manual_seed(seed)
    supernet = build_supernet(space).eval()
    with torch.no_grad():
        for parameter in supernet.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for name, buffer in supernet.named_buffers():
            if "running" in name:  # of a BatchNorm: a mean of 0 to 1, a variance of 1 to 2
                buffer.add_(torch.rand_like(buffer))
    return supernet


def make_images(space: Space, batch: int, seed: int = 1) -> Tensor:
    """Normal noise [batch, channels, height, width]."""
    return torch.randn(batch, space.channels, *space.input_size, generator=torch.Generator().manual_seed(seed))


def some_archs(space: Space, count: int, seed: int = 0) -> list[Arch]:
    """Smallest, largest and random archs, all of one patch size choice each."""
    rng = np.random.default_rng(seed)
    return [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(count - 2))]

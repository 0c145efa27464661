"""Small spaces that between them have every feature of the vit_res family."""

from __future__ import annotations

from typing import Any

BLOCK = {"heads": [1, 2, 3], "mlp_width": [7, 10, 15]}
ALWAYS, SKIPPABLE = {"kept": [True], **BLOCK}, {"kept": [False, True], **BLOCK}

VIT_RES: dict[str, dict[str, Any]] = {
    "vit_res": {
        "family": "vit_res",
        "input": {"size": [24, 16], "channels": 3},
        "constants": {
            "patch_size": 2,
            "stem_channels": 6,
            "head_dims": [4, 6, 8],
            "attention_scale": [0.5, 0.3, 0.4],
            "token_head": True,
        },
        "dimensions": {
            "stages": [
                {"width": [6, 10, 13], "blocks": [ALWAYS, SKIPPABLE]},
                {"width": [13, 17], "blocks": [SKIPPABLE, SKIPPABLE]},
                {"width": [17, 20, 25], "blocks": [ALWAYS, SKIPPABLE, ALWAYS]},
            ]
        },
    },
    "vit_res plain": {
        "family": "vit_res",
        "input": {"size": 8, "channels": 1},
        "constants": {
            "patch_size": 2,
            "stem_stride": 1,
            "stem_channels": 5,
            "head_dims": [4, 5],
            "reduction": "plain",
            "drop_path_depths": [3, 2],
        },
        "dimensions": {
            "stages": [
                {"width": [9, 16], "depth": [0, 1, 2], "blocks": BLOCK},
                {"width": [8, 12], "depth": [1, 2], "blocks": BLOCK},  # fewer than before: no residual is added
            ]
        },
    },
    "vit_res cyclic": {
        "family": "vit_res",
        "input": {"size": [8, 16], "channels": 2},
        "constants": {"patch_size": 4, "stem_channels": 4, "head_dims": [4, 6], "sharing": "cyclic", "groups": 5},
        "dimensions": {
            "stages": [
                {"width": [5, 8, 13], "depth": [1, 2], "blocks": BLOCK},
                {"width": [13, 16, 21, 25], "depth": [0, 1, 2], "blocks": BLOCK},
            ]
        },
    },
    "vit_res distilled": {
        "family": "vit_res",
        "input": {"size": [8, 16], "channels": 2},
        "constants": {"patch_size": 4, "stem_channels": 4, "head_dims": [4, 6], "distillation_token": True},
        "dimensions": {
            "stages": [
                {"width": [5, 8, 13], "depth": [1, 2], "blocks": BLOCK},
                {"width": [13, 16, 21], "depth": [0, 1, 2], "blocks": BLOCK},
            ]
        },
    },
    "vit_res bilateral": {
        "family": "vit_res",
        "input": {"size": 4, "channels": 1},
        "constants": {
            "patch_size": 1,
            "stem_stride": 1,
            "stem_channels": 4,
            "head_dims": [4, 6],
            "sharing": "bilateral",
            "token_head": True,
        },
        "dimensions": {
            "stages": [
                {"width": [5, 8], "blocks": [ALWAYS, SKIPPABLE]},
                {"width": [9, 14], "blocks": [SKIPPABLE]},
            ]
        },
    },
}

"""Small spaces that between them have every feature of the s3 family."""

from __future__ import annotations

from typing import Any

BLOCK = {"window": [2, 3, 5], "heads": [1, 2, 3], "mlp_ratio": [0.7, 1.3, 2.0]}
FREE = {"window": [1, 2, 4], "heads": [1, 2], "query_width": [4, 6, 10], "mlp_ratio": [1.3, 2.0]}
FIXED = {"window": [3], "heads": [1, 2, 3], "mlp_ratio": [0.7, 1.3, 2.0]}

S3: dict[str, dict[str, Any]] = {
    # Grids of 6 x 5, 3 x 3 and 2 x 2: odd ones to merge, windows that do not divide them or are larger.
    "s3": {
        "family": "s3",
        "input": {"size": [12, 9], "channels": 3},
        "constants": {"patch_size": 2, "head_dim": 4, "drop_path_depths": [3, 2, 1]},
        "dimensions": {
            "stages": [
                {"width": [5, 8, 11], "depth": [1, 2], "blocks": BLOCK},
                {"width": [6, 9], "depth": [0, 1, 2], "blocks": BLOCK},
                {"width": [12, 16], "depth": [0, 1], "blocks": BLOCK},
            ]
        },
    },
    "s3 maskable": {
        "family": "s3",
        "input": {"size": [6, 5], "channels": 1},
        "constants": {"patch_size": 1, "head_dim": 5, "attention_scale": 0.3, "token_head": True},
        "dimensions": {
            "stages": [
                {"width": [5, 8, 11], "depth": [0, 1, 2], "blocks": FIXED},
                {"width": [6, 9], "depth": [0, 1], "blocks": FIXED},
            ]
        },
    },
    "s3 cyclic": {
        "family": "s3",
        "input": {"size": [11, 8], "channels": 2},
        "constants": {"patch_size": 2, "head_dim": None, "sharing": "cyclic", "groups": 5, "token_head": True},
        "dimensions": {
            "stages": [
                {"width": [3, 9, 14, 23, 25], "depth": [0, 1, 2], "blocks": FREE},
                {"width": [5, 8, 17], "depth": [1], "blocks": FREE},
            ]
        },
    },
    "s3 bilateral": {
        "family": "s3",
        "input": {"size": 6, "channels": 1},
        "constants": {"patch_size": 1, "head_dim": 4, "sharing": "bilateral"},
        "dimensions": {
            "stages": [
                {"width": [5, 8], "blocks": {"repeat": 2, "kept": [False, True], **BLOCK}},
                {"width": [7, 9], "blocks": [{"kept": [False, True], **BLOCK}]},
            ]
        },
    },
    "s3 kept, shifts by places": {
        "family": "s3",
        "input": {"size": 8, "channels": 1},
        "constants": {"patch_size": 1, "head_dim": 4, "shifts": "places"},
        "dimensions": {
            "stages": [
                {"width": [5, 8], "blocks": {"repeat": 3, "kept": [False, True], **BLOCK}},
                {"width": [7, 9], "blocks": [{"kept": [True], **BLOCK}, {"kept": [False, True], **BLOCK}]},
            ]
        },
    },
}

"""Small spaces that between them have every feature of the twins family."""

from __future__ import annotations

from typing import Any

EITHER = {"global_attention": [False, True], "heads": [1, 2], "query_width": [4, 8, 12], "mlp_width": [7, 10, 15]}
LOCAL = {"global_attention": [False], "heads": [2], "query_width": [8, 12], "mlp_width": [9]}
GLOBAL = {"global_attention": [True], "heads": [1, 4], "query_width": [4, 8], "mlp_width": [5, 11]}

WHOLE_HEADS = {"global_attention": [False, True], "heads": [1, 2, 4], "mlp_width": [7, 10, 15]}

TWINS: dict[str, dict[str, Any]] = {
    "twins": {
        "family": "twins",
        "input": {"size": [24, 20], "channels": 3},
        "constants": {"patch_sizes": [2, 2, 2], "window": 4, "reductions": [4, 2, 1], "drop_path_depths": [2, 3, 1]},
        "dimensions": {
            "stages": [
                {"width": [6, 10, 14], "depth": [0, 1, 2], "blocks": EITHER},
                {"width": [8, 11, 16], "depth": [1, 2, 3], "blocks": EITHER},
                {"width": [12, 20], "depth": [0, 1], "blocks": EITHER},
            ]
        },
    },
    "twins heads": {
        "family": "twins",
        "input": {"size": [12, 9], "channels": 2},
        "constants": {"patch_sizes": [2, 2], "window": 2, "reductions": [2, 1], "head_dim": 3, "token_head": True},
        "dimensions": {
            "stages": [
                {"width": [6, 10], "blocks": {"repeat": 2, "kept": [True], **WHOLE_HEADS}},
                {"width": [8, 11, 16], "blocks": {"repeat": 2, "kept": [False, True], **WHOLE_HEADS}},
            ]
        },
    },
    "twins cyclic": {
        "family": "twins",
        "input": {"size": [13, 10], "channels": 1},  # no patch, window or reduction divides a grid
        "constants": {
            "patch_sizes": [2, 3],
            "window": 3,
            "reductions": [3, 2],
            "sharing": "cyclic",
            "private_heads": "qk",
            "token_head": True,
        },
        "dimensions": {
            "stages": [
                {"width": [3, 9, 14, 23, 25], "depth": [0, 1, 2], "blocks": EITHER},
                {"width": [5, 8, 17], "depth": [0, 1, 2], "blocks": EITHER},
            ]
        },
    },
    "twins bilateral": {
        "family": "twins",
        "input": {"size": 8, "channels": 2},
        "constants": {"patch_sizes": [1, 2], "window": 4, "reductions": [2, 1], "sharing": "bilateral"},
        "dimensions": {
            "stages": [
                {"width": [6, 9], "depth": [1, 2], "blocks": EITHER},
                {"width": [10, 16], "depth": [2], "blocks": [LOCAL, GLOBAL]},
            ]
        },
    },
    "twins kept anywhere": {
        "family": "twins",
        "input": {"size": 8, "channels": 1},
        "constants": {
            "patch_sizes": [2, 2],
            "window": 7,  # larger than the grid
            "reductions": [8, 2],
            "private_heads": "v",
            "attention_scale": 0.4,
        },
        "dimensions": {
            "stages": [
                {"width": [6, 9], "blocks": {"repeat": 3, "kept": [False, True], **EITHER}},
                {"width": [12], "blocks": [{"kept": [True], **LOCAL}, {"kept": [False, True], **GLOBAL}]},
            ]
        },
    },
}

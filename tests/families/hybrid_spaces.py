"""Small spaces that between them have every feature of the hybrid family."""

from __future__ import annotations

from typing import Any

HYBRID: dict[str, dict[str, Any]] = {
    "hybrid": {
        "family": "hybrid",
        "input": {"size": [10, 14], "channels": 2},
        "constants": {
            "kinds": ["conv", "conv", "transformer"],
            "strides": [1, 2, 2],
            "squeeze": [False, True, True],
            "stem_stride": 1,
            "divisor": 2,
            "head_dim": 2,
            "value_ratio": 3,
            "drop_path_depths": [2, 2, 4],
        },
        "dimensions": {
            "resolution": [7, 10, 12],  # grids of odd sides, and sizes above that of the images
            "stem": {"width": [3, 5]},
            "stages": [
                {"width": [3, 5], "depth": [1, 2], "kernel": [3, 5], "expansion": [1]},
                {"width": [5, 6], "depth": [1, 2], "kernel": [1, 3], "expansion": [1, 2, 3]},
                {
                    "width": [4, 6, 8],
                    "depth": [1, 2, 3],
                    "kernel": [3],
                    "expansion": [2, 3],
                    "mlp_ratio": [1.0],
                    "windows": [1],
                },
            ],
            "head": {"width": [9, 12]},
        },
    },
    "hybrid bilateral": {
        "family": "hybrid",
        "input": {"size": [8, 12], "channels": 1},
        "constants": {
            "kinds": ["conv", "transformer"],
            "strides": [2, 1],
            "squeeze": [True, False],
            "stem_stride": 1,
            "head_dim": 4,
            "sharing": "bilateral",
            "norm": "token",
            "scaling": "width",
            "mlp_conv": True,
            "attention_scale": 0.4,
            "head_expansion": 2,
        },
        "dimensions": {
            "stem": {"width": [4]},
            "stages": [
                {"width": [4, 6], "depth": [1], "kernel": [3], "expansion": [2]},
                {
                    "width": [8, 12],
                    "depth": [2, 3],
                    "kernel": [3],
                    "expansion": [1],
                    "mlp_ratio": [1.0, 1.5],
                    "windows": [4, 1],
                },
            ],
            "head": {"width": [8]},
        },
    },
    "hybrid cyclic": {
        "family": "hybrid",
        "input": {"size": 6, "channels": 1},
        "constants": {
            "kinds": ["conv", "transformer"],
            "strides": [1, 2],
            "squeeze": [True, False],
            "stem_stride": 1,
            "divisor": 1,
            "head_dim": 2,
            "sharing": "cyclic",
            "groups": 5,
            "mlp_conv": True,
        },
        "dimensions": {
            "stem": {"width": [3, 7]},
            "stages": [
                {"width": [4, 7, 9], "depth": [1, 2], "kernel": [3, 5], "expansion": [1, 2]},
                {
                    "width": [4, 8, 12],
                    "depth": [2, 3],
                    "kernel": [3],
                    "expansion": [1, 3],
                    "mlp_ratio": [0.5, 1.5],
                    "windows": [1],
                },
            ],
            "head": {"width": [7, 13]},
        },
    },
}

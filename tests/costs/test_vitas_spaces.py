"""ViTAS's DeiT spaces against the papers' counts, and against networks that were counted elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raynas import cost, load_space
from raynas.space import Space


def two_operations(dimensions: dict[str, Any]) -> Space:
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8},
            "classes": 2,
            "dimensions": {"patch_size": [4], "width": [8], **dimensions},
        }
    )


def test_the_papers_sizes() -> None:
    assert load_space("vitas/v1").cardinality() == 30 * 401**16 == 13410075304385010772842580246288435776192030
    assert load_space("vitas/v1_large").cardinality() == 30 * 401**16
    assert load_space("vitas/v1_block").cardinality() == 4000
    shifting = 80732467969924812030075187969924812030  # 30 x (1 + 400 + ... + 400^14)
    assert load_space("vitas/deit_tiny").cardinality() == load_space("vitas/deit_small").cardinality() == shifting


def test_identity_shifting_leaves_one_path_to_each_network() -> None:
    """12 blocks of 2 operations or none: 3^12 paths, 2^13 - 1 networks."""
    blocks = {"heads": [1, 2], "mlp_ratio": [1.0]}
    anywhere = two_operations({"blocks": {"repeat": 12, "kept": [False, True], **blocks}})
    shifted = two_operations({"depth": list(range(13)), "blocks": blocks})
    assert anywhere.cardinality() == 3**12 == 531_441
    assert shifted.cardinality() == 2**13 - 1 == 8191


def test_paths_to_one_network_share_its_id() -> None:
    space = two_operations({"blocks": {"repeat": 4, "kept": [False, True], "heads": [1, 2], "mlp_ratio": [1.0]}})
    archs = list(space.enumerate())
    assert len(set(archs)) == 3**4 and len({arch.network_id for arch in archs}) == 2**5 - 1


@pytest.mark.parametrize(
    ("space", "choice", "patch_size", "depth", "params", "macs"),
    [
        ("deit_tiny", -1, 14, 14, 26_588_392, 7_577_718_912),
        ("deit_tiny", -1, 16, 13, 24_786_088, 5_262_958_272),
        ("deit_tiny", -1, 32, 14, 27_462_760, 1_382_026_752),
        ("deit_tiny", 0, 16, 0, 75_822, 5_758_064),
        ("deit_tiny", 0, 16, 12, 300_894, 93_585_392),
        ("deit_small", -1, 14, 14, 104_785_384, 28_419_105_024),
        ("deit_small", -1, 16, 13, 97_494_376, 19_966_786_944),  # what the paper calls its largest network
        ("deit_small", -1, 32, 14, 106_534_120, 5_344_533_504),
        ("deit_small", 0, 16, 1, 227_571, 33_681_224),
        ("v1", -1, 16, 16, 30_331_240, 6_464_059_392),
        ("v1", 0, 16, 16, 375_918, 122_861_168),
        ("v1", 0, 32, 16, 457_884, 24_190_064),
        ("v1_large", -1, 16, 16, 119_643_880, 24_547_651_584),
        ("v1_large", 0, 32, 16, 1_518_030, 78_483_656),
    ],
)
def test_extremes(space: str, choice: int, patch_size: int, depth: int, params: int, macs: int) -> None:
    of = load_space(f"vitas/{space}")
    values = {dimension.name: dimension.choices[choice] for dimension in of.dimensions}
    values |= {name: True for name in values if name.endswith("kept")}
    values |= {"patch_size": patch_size} | ({"depth": depth} if of.has("depth") else {})
    costs = cost(of, [of.arch(values)])
    assert (costs["params"][0], costs["macs"][0]) == (params, macs)


def test_a_stacked_depth_fills_its_budget() -> None:
    definition = load_space("vitas/v1_block").to_dict()
    definition["constants"] |= {"depth_macs": 1.3e9, "max_depth": 24, "drop_path_depth": None}
    del definition["dimensions"]["depth"]
    space = Space.from_dict(definition)
    assert space.cardinality() == 4000
    codes = space.encode(space.enumerate())
    macs = cost(space, codes)["macs"]
    depth = np.array([len(arch_blocks(space, codes[i])) for i in range(0, 4000, 37)])
    between = (depth > 1) & (depth < 24)
    assert between.any() and (macs[::37][between] <= 1.3e9).all()
    # Another block would not fit: the rest is smaller than a block, which costs at least the mean of those there are.
    assert (1.3e9 - macs[::37][between] < macs[::37][between] / depth[between]).all()


def arch_blocks(space: Space, codes: np.ndarray) -> list[dict[str, Any]]:
    from raynas.costs.cost import breakdown

    return [row for row in breakdown(space, space.decode(codes[None])[0]) if row["term"].endswith(".mlp")]

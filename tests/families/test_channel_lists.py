"""Every tensor of an extracted subnet holds, along every axis, the channels that the pattern gives that axis."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from raynas.space import Arch, Space
from tests.families.axes import Axis, Table, Tiled, in_stage, lookup
from tests.families.hybrid_axes import hybrid_axes
from tests.families.nets_spaces import DEFINITIONS, make_space, make_supernet, some_archs
from tests.families.s3_axes import s3_axes
from tests.families.tagging import channels_of

STARTS = {3: [0, 1, 0], 5: [0, 1, 2, 3, 0], 10: [0, 1, 3, 6, 5, 3, 9, 6, 6, 0]}
"""Where the interval of each number of groups starts, for 5 and 10 groups as found by brute force."""


def expected(constants: Any, side: str | None, size: int, axis: Axis) -> list[int]:
    """The channels of an axis of some size, from the definition of the patterns."""
    if axis is None:
        return list(range(size))
    if isinstance(axis, list):
        return axis
    if isinstance(axis, Tiled):
        each = size // axis.copies
        channels = expected(constants, side, each, axis.axis)
        return [copy * each + channel for copy in range(axis.copies) for channel in channels]
    count, unit = axis
    total = size // unit
    start = total - count if side == "right" else 0
    if constants.sharing == "cyclic" and count < total:
        groups = min(max(round(count * constants.groups / total), 1), constants.groups)
        start = round(STARTS[constants.groups][groups - 1] * total / constants.groups)
    units = [(start + i) % total for i in range(count)]
    return [channel for index in units for channel in range(index * unit, (index + 1) * unit)]


def twins_axes(arch: Arch, name: str) -> tuple[Axis, ...]:
    """What each axis of a parameter stands for."""
    stage, place, rest = in_stage(arch, name)
    width = (arch[f"stages.{stage}.width"], 1)
    before = (arch[f"stages.{stage - 1}.width"], 1) if stage else None
    head_dim = arch.space.constants.head_dim
    hidden = (arch[f"{place}mlp_width"], 1) if place else None
    query = (arch[f"{place}{'heads' if head_dim else 'query_width'}"], head_dim or 1) if place else None
    table: Table = [
        (r"embedding\.weight", (width, before, None, None)),
        (r"position\.weight", (width, None, None, None)),
        (r"attention\.\w+\.qkv\.(shared|private\.\d)\.weight", (None, query, width)),
        (r"attention\.\w+\.qkv\.(shared|private\.\d)\.bias", (None, query)),
        (r"attention\.\w+\.proj\.weight", (width, query)),
        (r"attention\.gsa\.reduction\.weight", (width, width, None, None)),
        (r"fc1\.weight", (hidden, width)),
        (r"fc1\.bias", (hidden,)),
        (r"fc2\.weight", (width, hidden)),
        (r"(norm|norm1|norm2|attention\.gsa\.norm)\.(weight|bias)", (width,)),
        (r"(token_|distillation_)?head\.weight", (None, width)),
        (r"(token_|distillation_)?head\.bias", (None,)),
        (r"(embedding|position|fc2|attention\.\w+\.proj|attention\.gsa\.reduction)\.bias", (width,)),
    ]
    return lookup(table, rest)


def vit_axes(arch: Arch, name: str) -> tuple[Axis, ...]:
    """What each axis of a parameter stands for."""
    width, head_dim = (arch["width"], 1), arch.space.constants.head_dim
    place = re.match(r"blocks\.\d+\.", name)
    block = {}
    if place:
        genes = place[0] if f"{place[0]}heads" in arch else "block."
        block = {key.removeprefix(genes): value for key, value in arch.items() if key.startswith(genes)}
    units = block.get("query_width", block.get("heads", 0))
    query: Axis = (units, head_dim or 1)
    hidden = (block.get("mlp_width", math.floor(arch["width"] * block.get("mlp_ratio", 0))), 1)
    late = re.match(r"class_blocks\.\d+\.", name)
    if late:  # all heads are always there
        place, query = late, None
        hidden = (math.floor(arch["width"] * arch.space.constants.class_attention.mlp_ratio), 1)
    table: Table = [
        (r"stem\.\d\.proj\.weight", (width, None, None, None)),
        (r"(stem\.\d\.)?(class_token|position)", (None, None, width)),
        (r"qkv\.weight", ((units, 3 * (head_dim or 1)), width)),
        (r"qkv\.bias", ((units, 3 * (head_dim or 1)),)),
        (r"qkv\.(shared|private\.\d)\.weight", (None, query, width)),
        (r"qkv\.(shared|private\.\d)\.bias", (None, query)),
        (r"relative\.\w+", (None, None)),
        (r"[qkv]\.weight", (None, width)),
        (r"[qkv]\.bias", (None,)),
        (r"ls[12]\.gamma", (width,)),
        (r"proj\.weight", (width, query)),
        (r"fc1\.weight", (hidden, width)),
        (r"fc1\.bias", (hidden,)),
        (r"fc2\.weight", (width, hidden)),
        (r"(token_|distillation_)?head\.weight", (None, width)),
        (r"(token_|distillation_)?head\.bias", (None,)),
        (r"(norm|norm1|norm2)\.(weight|bias)|(stem\.\d\.proj|proj|fc2)\.bias", (width,)),
    ]
    return lookup(table, name[place.end() :] if place else name)


def vit_res_axes(arch: Arch, name: str) -> tuple[Axis, ...]:
    """What each axis of a parameter stands for."""
    stage, place, rest = in_stage(arch, name)
    width, head_dim = (arch[f"stages.{stage}.width"], 1), arch.space.constants.head_dims[stage]
    before = (arch[f"stages.{stage - 1}.width"], 1) if stage else None
    heads, hidden = (arch[f"{place}{leaf}"] if place else 0 for leaf in ("heads", "mlp_width"))
    query, qkv, inner = (heads, head_dim), (heads, 3 * head_dim), (hidden, 1)
    biases = r"embedding\.proj|reduction\.conv|reduction\.linear|proj|fc2|norm|norm1|norm2"
    table: Table = [
        (r"stem\.\w+\.conv\.weight", (None, None, None, None)),
        (r"stem\.\w+\.norm\.(weight|bias|running_mean|running_var)", (None,)),
        (r"embedding\.proj\.weight", (width, None, None, None)),
        (r"embedding\.class_token|embedding\.position|reduction\.position", (None, None, width)),
        (r"reduction\.conv\.weight", (width, before, None, None)),
        (r"reduction\.linear\.weight", (width, before)),
        (r"reduction\.norm\.(weight|bias)", (before,)),
        (r"qkv\.weight", (qkv, width)),
        (r"qkv\.bias", (qkv,)),
        (r"proj\.weight", (width, query)),
        (r"fc1\.weight", (inner, width)),
        (r"fc1\.bias", (inner,)),
        (r"fc2\.weight", (width, inner)),
        (r"(token_|distillation_)?head\.weight", (None, width)),
        (r"(token_|distillation_)?head\.bias", (None,)),
        (rf"({biases})\.bias|(norm|norm1|norm2)\.weight", (width,)),
    ]
    return lookup(table, rest)


def axes_of(space: Space, arch: Arch, name: str) -> tuple[Axis, ...]:
    """What each axis of a parameter stands for."""
    if space.family in ("hybrid", "s3"):
        return {"hybrid": hybrid_axes, "s3": s3_axes}[space.family](arch, name, space)
    return {"vit": vit_axes, "twins": twins_axes, "vit_res": vit_res_axes}[space.family](arch, name)


def check(space: Space, archs: list[Arch]) -> None:
    supernet = make_supernet(space)
    state = supernet.state_dict()
    for arch in archs:
        for side in supernet.sides:
            for name, found in channels_of(supernet, arch, side).items():
                sizes = state[name].shape
                axes = axes_of(space, arch, name)
                wanted = [expected(space.constants, side, *each) for each in zip(sizes, axes, strict=True)]
                assert list(found) == wanted, (name, dict(arch))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_of_random_archs(name: str) -> None:
    space = make_space(name)
    check(space, some_archs(space, 5))


def ratios(largest: int) -> list[int]:
    """A tenth to the whole, rounded."""
    return [round(largest * tenths / 10) for tenths in range(1, 11)]


FREE = {"heads": [1, 2, 4], "query_width": ratios(40), "mlp_width": ratios(33)}
S3_BLOCK = {"window": [2, 3], "heads": ratios(20), "mlp_ratio": [0.5, 1.4]}
TEN_RATIOS: dict[str, dict[str, Any]] = {
    "twins": {
        "constants": {"sharing": "cyclic", "patch_sizes": [2, 2], "reductions": [2, 1]},
        "dimensions": {
            "stages": [
                {"width": ratios(25), "depth": [2], "blocks": {**FREE, "global_attention": [False, True]}},
                {"width": ratios(17), "depth": [1, 2], "blocks": {**FREE, "global_attention": [True]}},
            ]
        },
    },
    "vit_res": {
        "constants": {"sharing": "cyclic", "patch_size": 4, "stem_channels": 4, "head_dims": [3, 4]},
        "dimensions": {
            "stages": [
                {"width": ratios(25), "depth": [2], "blocks": {"heads": ratios(20), "mlp_width": ratios(33)}},
                {"width": [25, 31, 36], "depth": [1, 2], "blocks": {"heads": ratios(25), "mlp_width": ratios(33)}},
            ]
        },
    },
    "hybrid": {
        "constants": {
            "sharing": "cyclic",
            "kinds": ["conv", "transformer"],
            "strides": [1, 2],
            "squeeze": [True, False],
            "divisor": 1,
            "head_dim": 1,
        },
        "dimensions": {
            "stem": {"width": ratios(33)},
            "stages": [
                {"width": ratios(25), "depth": [2], "kernel": [3, 5], "expansion": [2]},
                {
                    "width": ratios(17),
                    "depth": [2],
                    "kernel": [3],
                    "expansion": [1],
                    "mlp_ratio": [1.0],
                    "windows": [1],
                },
            ],
            "head": {"width": ratios(33)},
        },
    },
    "s3": {
        "constants": {"sharing": "cyclic", "patch_size": 2, "head_dim": 3},
        "dimensions": {
            "stages": [
                {"width": ratios(25), "depth": [2], "blocks": S3_BLOCK},
                {"width": ratios(17), "depth": [1], "blocks": S3_BLOCK},
            ]
        },
    },
    "vit": {
        "constants": {"sharing": "cyclic", "head_dim": None, "private_heads": "qk"},
        "dimensions": {"patch_size": [4], "width": ratios(25), "depth": [2], "blocks": FREE},
    },
}


@pytest.mark.parametrize("family", TEN_RATIOS)
def test_at_every_ratio_of_widths_that_ten_groups_do_not_divide(family: str) -> None:
    definition = {"family": family, "input": {"size": 8}, "classes": 3, **TEN_RATIOS[family]}
    space = Space.from_dict(definition)
    last = space.largest()
    archs = [
        space.arch({**last, **{name: space[name].choices[i] for name in last if len(space[name].choices) == 10}})
        for i in range(10)
    ]
    check(space, archs)

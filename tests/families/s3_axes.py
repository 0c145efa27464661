"""What the axes of an s3 network's tensors stand for, from the definition of the network."""

from __future__ import annotations

import math

from raynas.space import Arch, Space
from tests.families.axes import Axis, Table, Tiled, in_stage, lookup, middle


def s3_axes(arch: Arch, name: str, space: Space) -> tuple[Axis, ...]:
    """What each axis of a parameter stands for; `space` is the supernet's, of which `arch` is."""
    stage, place, rest = in_stage(arch, name)
    width, head_dim = (arch[f"stages.{stage}.width"], 1), arch.space.constants.head_dim
    merged = Tiled((arch[f"stages.{stage - 1}.width"], 1), copies=4) if stage else None
    heads, window, ratio = (arch[f"{place}{leaf}"] if place else 0 for leaf in ("heads", "window", "mlp_ratio"))
    query = (arch[f"{place}query_width"], 1) if place and head_dim is None else (heads, head_dim or 1)
    hidden = (math.floor(width[0] * ratio), 1)
    sides = [-(-side // (arch.space.constants.patch_size * 2**stage)) for side in arch.space.input_size]
    held = max(space[f"{place}window"].choices) if place else 0
    offsets = [middle(2 * min(window, side) - 1, 2 * min(held, side) - 1) for side in sides]
    table: Table = [
        (r"embedding\.conv\.weight", (width, None, None, None)),
        (r"merging\.norm\.(weight|bias)", (merged,)),
        (r"merging\.linear\.weight", (width, merged)),
        (r"qkv\.weight", ((heads, 3 * (head_dim or 1)), width)),
        (r"qkv\.bias", ((heads, 3 * (head_dim or 1)),)),
        (r"qkv\.shared\.weight", (None, query, width)),
        (r"qkv\.shared\.bias", (None, query)),
        (r"bias\.table", ((heads, 1), *offsets)),
        (r"proj\.weight", (width, query)),
        (r"fc1\.weight", (hidden, width)),
        (r"fc1\.bias", (hidden,)),
        (r"fc2\.weight", (width, hidden)),
        (r"(token_)?head\.weight", (None, width)),
        (r"(token_)?head\.bias", (None,)),
        (r"(norm|norm1|norm2|embedding\.norm)\.(weight|bias)|(embedding\.conv|proj|fc2)\.bias", (width,)),
    ]
    return lookup(table, rest)

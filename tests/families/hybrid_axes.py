"""What the axes of a hybrid's tensors stand for, from the definition of the network."""

from __future__ import annotations

import math
import re
from typing import Any

from raynas.space import Arch, Space
from tests.families.axes import Axis, Table, lookup, middle


def rounded(channels: int, divisor: int) -> int:
    near = max(int(channels + divisor / 2) // divisor * divisor, divisor)
    return near if near >= 0.9 * channels else near + divisor


def grid(space: Space, stage: int, resolution: int | None) -> tuple[int, int]:
    """Rows and columns behind a stage."""
    sides = []
    for side in space.input_size:
        side = side if resolution is None else math.floor(side * resolution / min(space.input_size) + 0.5)
        for stride in (space.constants.stem_stride, *space.constants.strides[: stage + 1]):
            side = math.ceil(side / stride)
        sides.append(side)
    return sides[0], sides[1]


def hybrid_axes(arch: Arch, name: str, space: Space) -> tuple[Axis, ...]:
    """What each axis of a parameter or buffer stands for; `space` is the supernet's, of which `arch` is."""
    constants = space.constants
    depths = [key for key in arch if key.endswith(".depth")]
    last = arch[f"stages.{len(depths) - 1}.width"]
    wide, mixed, stem = constants.head_expansion * last, arch["head.width"], (arch["stem.width"], 1)
    place = re.match(r"stages\.(\d+)\.layers\.(\d+)\.", name)
    if not place:
        table: Table = [
            (r"stem\.conv\.weight", (stem, None, None, None)),
            (r"stem\.norm\..*", (stem,)),
            (r"widen\.conv\.weight", ((wide, 1), (last, 1), None, None)),
            (r"widen\.norm\..*", ((wide, 1),)),
            (r"mix\.weight", ((mixed, 1), (wide, 1), None, None)),
            (r"head\.weight", (None, (mixed, 1))),
            (r"head\.bias", (None,)),
        ]
        return lookup(table, name)
    stage, layer, rest = int(place[1]), int(place[2]), name[place.end() :]
    genes = {key.rpartition(".")[2]: arch[key] for key in arch if key.startswith(f"stages.{stage}.")}
    choices = {leaf: space[f"stages.{stage}.{leaf}"].choices for leaf in genes}
    width = (genes["width"], 1)
    if layer and constants.kinds[stage] == "transformer":
        return _block_axes(arch, space, stage, layer, genes, choices, rest)
    inputs = genes["width"] if layer else arch[f"stages.{stage - 1}.width"] if stage else stem[0]
    expands = max(choices["expansion"]) > 1
    hidden = (rounded(inputs * genes["expansion"], constants.divisor) if expands else inputs, 1)
    squeezed = (rounded(hidden[0] // 4, constants.divisor), 1)
    kernel = middle(genes["kernel"], max(choices["kernel"]))
    table = [
        (r"expand\.conv\.weight", (hidden, (inputs, 1), None, None)),
        (r"depthwise\.weight", (hidden, None, kernel, kernel)),
        (r"(expand|depthwise)\.norm\..*", (hidden,)),
        (r"squeeze\.reduce\.weight", (squeezed, hidden, None, None)),
        (r"squeeze\.reduce\.bias", (squeezed,)),
        (r"squeeze\.expand\.weight", (hidden, squeezed, None, None)),
        (r"squeeze\.expand\.bias", (hidden,)),
        (r"project\.conv\.weight", (width, hidden, None, None)),
        (r"project\.norm\..*", (width,)),
        (r"shortcut\.weight", (width, (inputs, 1), None, None)),
    ]
    return lookup(table, rest)


def _block_axes(
    arch: Arch, space: Space, stage: int, layer: int, genes: dict[str, Any], choices: dict[str, Any], rest: str
) -> tuple[Axis, ...]:
    constants = space.constants
    width, heads = (genes["width"], 1), genes["width"] // constants.head_dim
    query, value, each = (heads, constants.head_dim), (heads, constants.head_dim * constants.value_ratio), (heads, 1)
    hidden = (math.floor(genes["width"] * genes["mlp_ratio"]), 1)
    of = space["resolution"].choices if space.has("resolution") else (None,)
    grids = [grid(space, stage, resolution) for resolution in of]
    here = grid(space, stage, arch.get("resolution"))
    roots = [math.isqrt(count) for count in choices["windows"]]
    held = [max(2 * (each[axis] // root) - 1 for each in grids for root in roots) for axis in (0, 1)]
    offsets = [2 * (side // math.isqrt(genes["windows"])) - 1 for side in here]
    table_rows, table_columns = (middle(side, most) for side, most in zip(offsets, held, strict=True))
    relative = [row * held[1] + column for row in table_rows for column in table_columns]
    if constants.scaling == "width":
        factors: tuple[Axis, ...] = ([choices["width"].index(genes["width"])], width)
    else:
        rows = [depth for depth in choices["depth"] if depth > layer]
        keys = sorted({math.prod(each) % 8 for each in grids})
        factors = ([rows.index(genes["depth"])], [keys.index(math.prod(here) % 8)], width)
    table: Table = [
        (r"attention\.[qk]\.weight", (query, width)),
        (r"attention\.[qk]\.bias", (query,)),
        (r"attention\.v\.weight", (value, width)),
        (r"attention\.v\.bias", (value,)),
        (r"attention\.conv\.weight", (value, None, None, None)),
        (r"attention\.relative\.table", (None, relative, each)),
        (r"attention\.(before|behind)\.weight", (each, each)),
        (r"attention\.(before|behind)\.bias", (each,)),
        (r"attention\.proj\.weight", (width, value)),
        (r"mlp\d\.fc1\.weight", (hidden, width)),
        (r"mlp\d\.fc1\.bias", (hidden,)),
        (r"mlp\d\.conv\.weight", (hidden, None, None, None)),
        (r"mlp\d\.fc2\.weight", (width, hidden)),
        (r"norm\d\.(weight|bias)|(attention\.proj|mlp\d\.fc2)\.bias", (width,)),
        (r"\w+_scaling\.weight", factors),
    ]
    return lookup(table, rest)

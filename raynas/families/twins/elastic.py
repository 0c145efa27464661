"""The twins networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`.

    Query widths become a fixed width of every head, with the same parameters, so that whole heads can go.
    """
    values, head_dim, held = unrolled(space.smallest()), space.constants.head_dim, {}
    queries = {name: value for name, value in values.items() if name.endswith(".query_width")}
    widths = {value // values[name.replace("query_width", "heads")] for name, value in queries.items()}
    if space.constants.private_heads != "none":
        held["heads"] = "they have private parameters"
    elif len(widths) > 1:
        held["heads"] = f"they have {' or '.join(map(str, sorted(widths)))} channels, where a space has one width"
    elif head_dim is None:
        head_dim, values = next(iter(widths), None), {n: v for n, v in values.items() if n not in queries}
    return Whole({"head_dim": head_dim}, values, held)

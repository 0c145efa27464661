"""Stored training-free scores of archs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from raynas.results.store import Store

PROXY_SEED = 0
"""Seed of the weights and noise of stored training-free scores."""


def proxy_values(store: Store, by: str, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the newest value of each arch, by id.

    Args:
        store: the run's tables.
        by: name of the score.
        about: values of columns that the rows must have; None for any.
    """
    chosen = (pc.field("by") == by) & (pc.field("seed") == PROXY_SEED)
    for name, value in about.items():
        chosen = chosen if value is None else chosen & (pc.field(name) == value)
    rows = store.read("proxies", ["arch", "value"], chosen)
    return dict(zip(rows["arch"].to_pylist(), rows["value"].to_pylist(), strict=True))

"""Stored training-free scores of archs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raynas.results.store import Store, having

PROXY_SEED = 0
"""Seed of the weights and noise of stored training-free scores."""


def proxy_values(store: Store, by: str, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the newest value of each arch, by id.

    Args:
        about: values of columns that the rows must have; None for any.
    """
    known = {name: value for name, value in about.items() if value is not None}
    rows = store.read("proxies", ["arch", "value"], having({**known, "by": by, "seed": PROXY_SEED}))
    return dict(zip(rows["arch"].to_pylist(), rows["value"].to_pylist(), strict=True))

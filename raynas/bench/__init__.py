"""Measurements of raynas itself on the machine at hand, and networks whose accuracies are known (`truth`).

Every function that measures takes what its command takes: `rounds` measurements of each kind, in turns, after a round
that warms up; `batch_size` images of a pass; a torch `device`, and torch's `threads` meanwhile; a `space`, or a shipped
one's name. A space or a device that is not there is a `UserError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raynas.bench.truths import Truth

PARTS = ("step", "sandwich", "channels_last", "precision", "pool", "archs")
"""Names of the parts of `raynas bench all`, in the order of its table; here, where a command reads it without torch."""


def truth(name: str) -> Truth:
    """Return networks of a small space, each trained alone with several seeds: a benchmark for searches and scores.

    docs/truths.md says how they were trained, and what they can and cannot tell.

    Args:
        name: a family, `vit`, `twins`, `s3`, `vit_res` or `hybrid`, or the space, such as `truths/vit`.

    Raises:
        UserError: there are no such networks.
    """
    from raynas.bench.truths import load_truth

    return load_truth(name)

"""Spaces that open step by step, and draws that are dealt out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from raynas.space import Space, load_space

RELEASED = json.loads((Path(__file__).parents[1] / "golden" / "resnas_warmup_schedule.json").read_text())


def vit(width: list[int], **dimensions: object) -> Space:
    blocks = {"repeat": 2, "kept": [False, True], "heads": [1, 2, 3, 4], "mlp_width": [4, 8, 12, 16, 20, 24, 28]}
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 4},
            "dimensions": {"patch_size": [4], "width": width, "blocks": blocks, **dimensions},
        }
    )


def test_choices_open_in_the_epochs_in_which_the_release_opens_them() -> None:
    space, over = vit([8, 10, 12, 14, 16]), RELEASED["num_warmup_epochs"]
    allowed = RELEASED["options_allowed_by_epoch"]
    for epoch in range(40):
        opened = space.widest(epoch / over)
        assert opened["width"].choices == space["width"].choices[-allowed["5"][epoch] :]
        assert opened["blocks.1.heads"].choices == space["blocks.1.heads"].choices[-allowed["4"][epoch] :]
        assert opened["blocks.1.mlp_width"].choices == space["blocks.1.mlp_width"].choices[-allowed["7"][epoch] :]
        # Depth is one of keep, keep, drop, drop there: dropping comes with the third.
        assert (False in opened["blocks.0.kept"].choices) == (allowed["4"][epoch] >= 3)


@pytest.mark.parametrize("name", ["autoformer/tiny", "vitas/v1", "vitas/twins_small", "digits/vitas_block"])
def test_from_the_largest_arch_to_the_whole_space(name: str) -> None:
    space = load_space(name)
    closed = space.widest(0)
    assert closed.cardinality() == 1 and closed.smallest() == space.largest()
    counts = [space.widest(share).cardinality() for share in np.linspace(0, 1, 21)]
    assert counts == sorted(counts) and counts[-1] == space.cardinality()
    rng = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.7):
        for _ in range(20):
            arch = space.widest(share).sample(rng)
            assert arch in space and arch == space.arch(arch)


def test_choices_are_dealt_out_evenly() -> None:
    space, rng = vit([8, 10, 12, 14, 16]), np.random.default_rng(0)
    for count in (1, 3, 5, 7, 12):
        archs = space.decode(space.deal_codes(rng, count))
        widths = Counter(arch["width"] for arch in archs)
        assert len(widths) == min(count, 5) and max(widths.values()) - min(widths.values()) <= 1
    drawn = Counter(arch["width"] for _ in range(1000) for arch in space.decode(space.deal_codes(rng, 2)))
    assert all(drawn[width] == pytest.approx(400, abs=80) for width in (8, 10, 12, 14, 16))  # over four deviations

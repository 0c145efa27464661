"""The benchmark of mixed batches runs what it says; what it measures is the machine's matter."""

from __future__ import annotations

import pytest
import torch

from raynas.bench.mixed import bench_mixed
from raynas.errors import UserError


@pytest.mark.parametrize(
    ("space", "kinds"),
    [
        ("digits/vit_resnas", ["largest", "mean", "masks", "groups", "apart"]),
        ("digits/twins", ["largest", "mean", "groups", "apart"]),  # this family has no masks
    ],
)
def test_every_kind_is_timed_and_one_is_chosen(space: str, kinds: list[str]) -> None:
    threads = torch.get_num_threads()
    lines: list[str] = []
    timings = bench_mixed(space, archs=3, batch_size=7, rounds=1, progress=lines.append)
    assert [timing.name for timing in timings] == kinds
    assert timings[0].to_largest == timings[1].to_mean == 1 and all(timing.seconds > 0 for timing in timings)
    assert [timing.chosen for timing in timings].count(True) == 1
    assert len(lines) == 2 and torch.get_num_threads() == threads


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="8 archs cannot share 4 images"):
        bench_mixed("digits/vit_resnas", archs=8, batch_size=4)
    with pytest.raises(UserError, match="device 'no-such'"):
        bench_mixed("digits/vit_resnas", device="no-such")

"""The benchmark of mixed batches runs what it says; what it measures is the machine's matter."""

from __future__ import annotations

import pytest
import torch

from raynas.bench.mixed import bench_mixed
from raynas.errors import UserError


@pytest.mark.parametrize(
    ("space", "kinds"),
    [
        ("digits/vit_resnas", ["masks", "groups", "apart"]),
        ("digits/twins", ["groups", "apart"]),  # this family has no masks
    ],
)
def test_every_kind_is_timed_and_one_is_chosen(space: str, kinds: list[str]) -> None:
    threads = torch.get_num_threads()
    rows = bench_mixed(space, archs=3, batch_size=7, rounds=1)
    names = [row.name.replace(" (chosen)", "") for row in rows]
    assert names == ["largest", "mean / largest", *(f"{kind} / {to}" for kind in kinds for to in ("largest", "mean"))]
    assert all(row.reference in ((), rows[0].ours, rows[1].ours) and min(row.ours) > 0 for row in rows)
    assert sum("chosen" in row.name for row in rows) == 2 and torch.get_num_threads() == threads


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="8 archs cannot share 4 images"):
        bench_mixed("digits/vit_resnas", archs=8, batch_size=4)
    with pytest.raises(UserError, match="device 'no-such'"):
        bench_mixed("digits/vit_resnas", device="no-such")

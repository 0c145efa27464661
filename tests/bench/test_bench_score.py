from __future__ import annotations

import pytest

from raynas.bench.score import bench_score
from raynas.errors import UserError


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_pool_and_limit_are_both_measured() -> None:
    steps: list[str] = []
    (row,) = bench_score(archs=12, replicas=1, images=20, seconds=0.2, rounds=2, progress=steps.append)
    assert row.name.startswith("scores of digits/vit by 1 replicas (20 images, fp32)") and row.unit == "/s"
    assert len(row.ours) == len(row.reference) == 2 and min(row.ours + row.reference) > 0
    assert len([step for step in steps if step.startswith("scoring")]) == 2


def test_what_each_replica_warms_up_with_is_not_timed() -> None:
    with pytest.raises(UserError, match="2 archs leave nothing to time in 3 rounds on 2 replicas"):
        bench_score(archs=2, replicas=2, images=20)

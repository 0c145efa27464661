from __future__ import annotations

import pytest

from raynas.bench.score import bench_score
from raynas.errors import UserError


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_pool_and_limit_are_both_measured() -> None:
    steps: list[str] = []
    found = bench_score(archs=12, replicas=1, images=20, seconds=0.2, progress=steps.append)
    assert found["archs"] == 11 and found["images"] == 20 and found["space"] == "digits/vit"
    assert found["subnets_per_s"] > 0 and found["limit_per_s"] > 0
    assert found["ratio"] == pytest.approx(found["subnets_per_s"] / found["limit_per_s"])
    assert len(steps) == 5


def test_what_each_replica_warms_up_with_is_not_timed() -> None:
    with pytest.raises(UserError, match="2 archs leave nothing to time on 2 replicas"):
        bench_score(archs=2, replicas=2, images=20)

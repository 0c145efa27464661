from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "docs/evidence/scale.py"


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    """The script that drives the pool's own scheduling by a simulated clock, without Ray."""
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_replicas_are_busy_and_the_driver_is_not(scale: ModuleType) -> None:
    costs = scale.Costs()
    for replicas, seconds, archs in ((2, 0.03, 600), (10, 1.0, 300), (200, 1.0, 1500)):
        found = scale.simulate(replicas, seconds, archs, None, costs)
        assert found.busy > 0.95, (replicas, seconds)
        assert found.rate == pytest.approx(found.busy * replicas / seconds, rel=0.05)
        assert found.driver < 0.5, (replicas, seconds)


def test_tasks_become_shorter_towards_the_end_so_that_replicas_end_together(scale: ModuleType) -> None:
    chosen = scale.random_archs(200, 0.03, seed=0)
    cluster = scale.Cluster(scale.Costs(), {repr(dict(arch)): each for arch, each in chosen.items()})
    pool = scale.SimulatedPool.from_parts(*scale.parts(), replicas=4)
    pool.cluster = cluster
    with scale.clocked(cluster), pool:
        rows = pool.score(list(chosen))
    assert [row["arch"] for row in rows] == [arch.id for arch in chosen]
    tasks = [end - begin for replica in cluster.replicas for begin, end in replica.busy]
    assert sum(tasks) == pytest.approx(sum(chosen.values()))  # each arch once
    assert len(tasks) < 60 and max(tasks) > 0.2
    ends = [replica.busy[-1][1] for replica in cluster.replicas]
    assert np.ptp(ends) < 3 * max(chosen.values())

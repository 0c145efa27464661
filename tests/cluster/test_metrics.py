"""Numbers of a training and of a pool in the metrics of a cluster, as Prometheus would read them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from raynas.cluster.metrics import Rate
from tests.cluster.simulated import autoscaling_cluster

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys, time, urllib.request
import ray, raynas

run = raynas.train("digits", sys.argv[1], overrides={"recipe.epochs": 2, "recipe.warmup_epochs": 0})
with raynas.ScorePool(run, replicas=1, images=50) as pool:
    archs = run.space.decode(run.space.sample_codes(__import__("numpy").random.default_rng(0), 5))
    best = max(row["accuracy"] for row in pool.score(archs))
pages = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in ray.nodes()]
for _ in range(60):  # Ray's agents pass numbers on every few seconds
    time.sleep(1)
    lines = [line for page in pages for line in urllib.request.urlopen(page).read().decode().splitlines()]
    found = {line.partition("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("ray_raynas_")}
    if found.get("ray_raynas_subnets") == 5 and "ray_raynas_images_per_s" in found:
        break
print(json.dumps([best, found]))
"""


@pytest.mark.slow
def test_trainings_and_pools_are_seen_in_the_cluster_s_metrics(tmp_path: Path) -> None:
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}, head_cpus=1) as cluster:
        command = [sys.executable, "-c", "import ray; ray.init();" + SCRIPT, str(tmp_path / "run")]
        code, output = cluster.run(*command, PYTHONPATH=str(ROOT))
        assert code == 0, output
        best, found = json.loads(output.splitlines()[-1])
        assert found["ray_raynas_images_per_s"] > 0 and 0 < found["ray_raynas_loss"] < 3
        assert 0 < found["ray_raynas_scores_per_s"] <= 5
        assert found["ray_raynas_subnets"] == 5 and found["ray_raynas_best_accuracy"] == pytest.approx(best)


def test_a_rate_is_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("raynas.cluster.metrics.time.monotonic", lambda: now[0])
    rate = Rate()
    found = []
    for second, count in ((0.1, 1), (2, 4), (8, 16), (20, 16), (30.5, 16), (31, 26)):
        now[0] = 100 + second
        found.append(rate.at(count))
    assert found == [1, 2, 2, (16 - 16) / 12, 0, 10 / 11]

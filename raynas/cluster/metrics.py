"""Numbers of running phases as Ray metrics, which a cluster's Prometheus collects."""

from __future__ import annotations

import time
from collections import deque
from functools import cache
from typing import TYPE_CHECKING

from raynas.cluster.connection import on_cluster

if TYPE_CHECKING:
    from ray.util.metrics import Gauge

RATE_S = 10.0

GAUGES = {
    "images_per_s": "images a second of a training's last epoch, over all workers",
    "loss": "mean training loss of the last epoch",
    "replicas": "replicas that can score",
    "busy_replicas": "replicas that score",
    "subnets": "subnets scored since the command began",
    "scores_per_s": "subnets scored a second, of the last ten seconds",
    "best_accuracy": "best accuracy of these subnets, 0 to 1",
}
"""Gauges by name, with their descriptions; in Prometheus they are called `ray_raynas_<name>`."""


def set_gauge(name: str, value: float, of: str) -> None:
    """Set a gauge; nothing on a Ray of this machine alone, which nobody collects metrics from.

    Args:
        name: a key of `GAUGES`.
        of: the run, or the training in it, as the label `of`. It must hold no credentials.
    """
    if on_cluster():
        _gauge(name).set(value, {"of": of})


class Rate:
    """The growth of a count a second, over the last seconds."""

    def __init__(self) -> None:
        self._counts = deque([(time.monotonic(), 0)])

    def at(self, count: int) -> float:
        """Return the growth a second over about the last `RATE_S` seconds, up to a count of now."""
        now = time.monotonic()
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] < now - RATE_S:
            self._counts.popleft()
        then, before = self._counts[0]
        return (count - before) / max(now - then, 1.0)


@cache
def _gauge(name: str) -> Gauge:
    from ray.util.metrics import Gauge

    return Gauge(f"raynas_{name}", description=GAUGES[name], tag_keys=("of",))

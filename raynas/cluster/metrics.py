"""Numbers of running phases as Ray metrics, which a cluster's Prometheus collects."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from raynas.cluster.connection import on_cluster

if TYPE_CHECKING:
    from ray.util.metrics import Gauge

GAUGES = {
    "images_per_s": "images a second of a training's last epoch, over all workers",
    "loss": "mean training loss of the last epoch",
    "replicas": "replicas that can score",
    "busy_replicas": "replicas that score",
    "subnets": "subnets scored since the command began",
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


@cache
def _gauge(name: str) -> Gauge:
    from ray.util.metrics import Gauge

    return Gauge(f"raynas_{name}", description=GAUGES[name], tag_keys=("of",))

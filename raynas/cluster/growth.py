"""Resources that a job waits for, and what the cluster does to bring them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any


def describe_shortage(needed: Mapping[str, float]) -> str | None:
    """Say in one line which of some resources are not free, and which nodes are on their way.

    Args:
        needed: the sum of what is asked for, by Ray's names, such as `{"CPU": 16, "GPU": 2}`.

    Returns:
        For example `needs 2 GPU (0 of the cluster's 0 are free); 2 node(s) of type gpu are starting`; None if all of it
        is free. Resources that are free on several nodes together may still fit on none of them.
    """
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    missing = [
        f"{need:g} {name} ({free.get(name, 0):g} of the cluster's {total.get(name, 0):g} are free)"
        for name, need in needed.items()
        if free.get(name, 0) < need
    ]
    if not missing:
        return None
    return "; ".join(["needs " + ", ".join(missing), *_autoscaler_lines()])


def _autoscaler_lines() -> list[str]:
    """Nodes that the autoscaler starts or could not start; none on a cluster without an autoscaler."""
    status = _status()
    if status is None:
        return []
    lines = [f"{_nodes(launch)} are asked for" for launch in status.pending_launches]
    lines += [f"a node of type {node.ray_node_type_name} is starting" for node in status.pending_nodes]
    return lines + [
        f"{_nodes(launch)} could not be started: {(launch.details or 'no reason given').strip().splitlines()[0]}"
        for launch in status.failed_launches
    ]


def _nodes(launch: Any) -> str:
    return f"{launch.count} node(s) of type {launch.ray_node_type_name}"


def _status() -> Any:
    """Ray's view of the cluster; None where this release or cluster gives none."""
    import ray

    with suppress(Exception):  # an interface that Ray calls experimental, asked for information only
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(ray.get_runtime_context().gcs_address)
    return None

"""Resources that a job waits for, what the cluster does to bring them, and what it has room for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from raynas.cluster.connection import is_local
from raynas.errors import UserError


def describe_shortage(needed: Mapping[str, float]) -> str | None:
    """Say in one line what a job waits for, and which nodes are on their way.

    Args:
        needed: the sum of what is asked for, by Ray's names, such as `{"CPU": 16, "GPU": 2}`.

    Returns:
        For example `2 GPU (0 of the cluster's 0 are free); 2 node(s) of type gpu are asked for`; None if the cluster
        has all of it and nothing waits.
    """
    import ray

    status, total, free = _status(), ray.cluster_resources(), ray.available_resources()
    demands = None if status is None else status.resource_demands
    waits = demands is None or bool(demands.placement_group_demand or demands.ray_task_actor_demand)
    if not waits and all(total.get(name, 0) >= need for name, need in needed.items()):
        return None
    parts = [
        f"{need:g} {name} ({free.get(name, 0):g} of the cluster's {total.get(name, 0):g} are free)"
        for name, need in needed.items()
    ]
    return "; ".join([", ".join(parts), *([] if status is None else _autoscaler_lines(status))])


def check_this_machine(needed: Mapping[str, float], what: str, instead: str) -> None:
    """Check that a local Ray has some resources, since no machine is ever added to it.

    Args:
        needed: what is asked for, by Ray's names.
        what: what asks for it, such as `2 worker(s) need`.
        instead: advice for the message.

    Raises:
        UserError: it has not; the message names the missing resources.
    """
    import ray

    have = ray.cluster_resources() if is_local() else needed
    missing = [
        f"{need:g} {name} (this machine has {have.get(name, 0):g})"
        for name, need in needed.items()
        if have.get(name, 0) < need
    ]
    if missing:
        raise UserError(f"{what} {', '.join(missing)}: {instead}, or a cluster (RAY_ADDRESS)")


def room_for(each: Mapping[str, float], together: int = 1) -> int:
    """Return how many jobs the cluster's present nodes have room for. Ray tells nobody how far a cluster may grow.

    Args:
        each: resources of one process of a job, which must fit on one node, by Ray's names.
        together: number of such processes of a job.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(min(int(node.get(name, 0) // need) for name, need in each.items()) for node in nodes) // together


def _status() -> Any:
    """Return Ray's view of the cluster; None where this release or cluster gives none."""
    import ray

    with suppress(Exception):  # Ray calls the interface experimental, and here it only informs
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(ray.get_runtime_context().gcs_address)
    return None


def _autoscaler_lines(status: Any) -> list[str]:
    """Nodes that the autoscaler starts or could not start; none on a cluster without an autoscaler."""
    lines = [f"{_nodes(launch)} are asked for" for launch in status.pending_launches]
    lines += [f"a node of type {node.ray_node_type_name} is starting" for node in status.pending_nodes]
    return lines + [
        f"{_nodes(launch)} could not be started: {(launch.details or 'no reason given').strip().splitlines()[0]}"
        for launch in status.failed_launches
    ]


def _nodes(launch: Any) -> str:
    return f"{launch.count} node(s) of type {launch.ray_node_type_name}"

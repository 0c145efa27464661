"""Resources that a job waits for, what the cluster does to bring them, what it has room for and what it can become."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raynas.cluster.connection import is_local
from raynas.cluster.nodes import ask_nodes, living_nodes
from raynas.errors import UserError
from raynas.text import duration

WAIT_S = 1800.0  # for resources: nodes of a cloud may take many minutes to come
NODES_S = 20.0  # for the head's answer
QUICK_S = 3.0  # what is there already is had by then
STUCK_S = 30.0  # an autoscaler would have begun to start nodes by then


@dataclass(frozen=True)
class NodeType:
    """A kind of node that the autoscaler can start.

    Attributes:
        name: as in the cluster's file.
        most: how many there can be.
        resources: of each, by Ray's names.
    """

    name: str
    most: int
    resources: dict[str, float]

    def __str__(self) -> str:
        held = ", ".join(f"{self.resources[name]:g} {name}" for name in ("CPU", "GPU") if self.resources.get(name))
        return f"{self.most} x {self.name} ({held or 'no CPU'})"


def node_types() -> list[NodeType]:
    """Return what the autoscaler can start on demand, by the file that it was started with on the head.

    Nothing without an autoscaler; on Kubernetes, where it runs beside the head and not in it; and on machines of one's
    own: Ray does not know what those have before they are there.
    """
    import ray

    heads = [node for node in living_nodes() if node.is_head]
    answers = ask_nodes(heads, _autoscaler_file, ray.get_runtime_context().gcs_address, limit_s=NODES_S)
    config = next(iter(answers.values()), None)
    return types_in(config) if isinstance(config, dict) else []


def types_in(config: Mapping[str, Any]) -> list[NodeType]:
    """Return the node types that an autoscaler with these settings starts for a demand."""
    most = config.get("max_workers", 0)
    return [
        NodeType(name, min(kind.get("max_workers", most), most), kind["resources"])
        for name, kind in config.get("available_node_types", {}).items()
        if kind.get("max_workers", most) and kind.get("resources")
    ]


def _autoscaler_file(gcs_address: str) -> dict[str, Any] | None:
    """Return the settings of a cluster's autoscaler, which runs on this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_bytes().decode(errors="replace").split("\0")
            named = [word.partition("=")[2] for word in words if word.startswith("--autoscaling-config=")]
            if named and f"--gcs-address={gcs_address}" in words:
                return yaml.safe_load(Path(named[0]).expanduser().read_text())
    return None


@contextmanager
def held_nodes(
    bundle: Mapping[str, float], count: int, limit_s: float, tell: Callable[[str], None], grows: bool = False
) -> Iterator[str | None]:
    """Ask for some resources several times over, wait for the nodes that have them, and hold them in the block.

    Args:
        bundle: resources that one node must hold together.
        limit_s: longest wait in seconds.
        tell: called about every second with what the cluster lacks and does.
        grows: True if there is an autoscaler; else what does not come within half a minute is not waited for.

    Yields:
        None once they are there; else what is missing, in words.
    """
    from ray.util import placement_group, remove_placement_group

    needed = {name: count * amount for name, amount in bundle.items()}
    group = placement_group([dict(bundle)] * count, strategy="PACK")
    try:
        yield _missing(group, needed, limit_s, tell, grows)
    finally:
        remove_placement_group(group)


def _missing(
    group: Any, needed: Mapping[str, float], limit_s: float, tell: Callable[[str], None], grows: bool
) -> str | None:
    """Wait for a placement group, and return why it did not come."""
    began = time.monotonic()
    while not group.wait(timeout_seconds=1):
        waited, lack = time.monotonic() - began, describe_shortage(needed)
        if waited < QUICK_S:
            continue
        if lack is not None:
            tell(lack)
        if _is_infeasible(group.id.hex()):
            return f"{lack}; the autoscaler has no nodes that would hold this"
        if waited > limit_s or (waited > STUCK_S and not grows and not _starts_nodes()):
            return f"{lack or 'others hold the resources'}; waited {duration(waited)}"
    return None


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
    return "; ".join([", ".join(parts), *_lines_about_nodes(status)])


def coming_nodes() -> list[str]:
    """Return a line about each group of nodes that the autoscaler starts or could not start."""
    return _lines_about_nodes(_status())


def check_this_machine(needed: Mapping[str, float], what: str, instead: str) -> None:
    """Refuse resources that a local Ray has not, since no machine is ever added to it; the message names them.

    Args:
        needed: what is asked for, by Ray's names.
        what: what asks for it, such as `2 worker(s) need`.
        instead: advice for the message.
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
    return sum(node.holds(each) for node in living_nodes()) // together


def _status() -> Any:
    """Return Ray's view of the cluster; None where this release or cluster gives none."""
    import ray

    with suppress(Exception):  # Ray calls the interface experimental, and here it only informs
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(ray.get_runtime_context().gcs_address)
    return None


def _lines_about_nodes(status: Any) -> list[str]:
    if status is None:  # a cluster without an autoscaler
        return []
    lines = [f"{_nodes(launch)} are asked for" for launch in status.pending_launches]
    lines += [f"a node of type {node.ray_node_type_name} is starting" for node in status.pending_nodes]
    return lines + [
        f"{_nodes(launch)} could not be started: {(launch.details or 'no reason given').strip().splitlines()[0]}"
        for launch in status.failed_launches
    ]


def _nodes(launch: Any) -> str:
    return f"{launch.count} node(s) of type {launch.ray_node_type_name}"


def _starts_nodes() -> bool:
    status = _status()
    return status is not None and bool(status.pending_launches or status.pending_nodes)


def _is_infeasible(group: str) -> bool:
    """Return True if the autoscaler says that no nodes it could start would hold a placement group."""
    import ray

    with suppress(Exception):  # as above
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated import autoscaler_pb2

        status = autoscaler_pb2.GetClusterStatusReply()  # type: ignore[attr-defined]
        status.ParseFromString(GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=10))
        return any(group in request.details for request in status.autoscaling_state.infeasible_gang_resource_requests)
    return False

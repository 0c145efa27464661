"""Counters of a Ray cluster's other machines, read by small tasks on them."""

from __future__ import annotations

from raynas.energy import counters
from raynas.energy.counters import Reading, read_counters

LIMIT_S = 10.0  # for all nodes' answers: a node may have to start a process first


class OtherNodes:
    """The alive nodes of the connected cluster, except this process's.

    Between the first and the last round only nodes with counters that wrap are read: a task a minute would keep a node
    busy and an autoscaler from releasing it.
    """

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._wrapping: set[str] = set()

    def read(self, last: bool) -> list[Reading]:
        """Return a round's readings: of new nodes and nodes with counters that wrap, or of all in the last round."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not ray.is_initialized():  # the calls below would start Ray
            return []
        here = ray.get_runtime_context().get_node_id()
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
        read = ray.remote(read_counters)
        refs = {}
        for node in nodes:
            if last or node not in self._answered or node in self._wrapping:
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                task = read.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
                refs[task.remote(counters.POWERCAP, counters.GPUS)] = node
        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=LIMIT_S) if refs else ([], [])
        for ref in late:
            ray.cancel(ref, force=True)
        readings = []
        for ref in ready:
            try:
                reading = ray.get(ref)
            except ray.exceptions.RayError:  # the node left the cluster
                continue
            readings.append(reading)
            self._answered.add(refs[ref])
            if any(counter.wraps_at is not None for counter in reading.counters.values()):
                self._wrapping.add(refs[ref])
        if last:
            readings += [Reading(node, {}, {}, ("no answer",)) for node in nodes if node not in self._answered]
        return readings

"""Counters of a Ray cluster's other machines, read by small tasks on them."""

from __future__ import annotations

from raynas.cluster.nodes import ask_nodes, living_nodes
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

        if not ray.is_initialized():  # the calls below would start Ray
            return []
        here = ray.get_runtime_context().get_node_id()
        others = [node for node in living_nodes() if node.id != here]
        asked = [node for node in others if last or node.id not in self._answered or node.id in self._wrapping]
        answers = ask_nodes(asked, read_counters, counters.POWERCAP, counters.GPUS, limit_s=LIMIT_S)
        readings = []
        for node in asked:
            reading = answers[node.name]
            if isinstance(reading, Exception):  # the node left the cluster, or is too busy
                continue
            readings.append(reading)
            self._answered.add(node.id)
            if any(counter.wraps_at is not None for counter in reading.counters.values()):
                self._wrapping.add(node.id)
        if last:
            readings += [Reading(node.id, {}, {}, ("no answer",)) for node in others if node.id not in self._answered]
        return readings

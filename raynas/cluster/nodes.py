"""The nodes of the connected cluster, and the same question to each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")

HEAD = "node:__internal_head__"
"""Ray's resource of the head, of which it has 1."""


@dataclass(frozen=True)
class Node:
    """A living node.

    Attributes:
        name: its address, with `(head)` or the end of its id where the address is not enough.
        resources: totals by Ray's names.
    """

    id: str
    name: str
    resources: dict[str, float]
    is_head: bool

    def holds(self, needed: Mapping[str, float]) -> int:
        """Return how often some resources fit into the whole node."""
        return min(int(self.resources.get(name, 0) // need) for name, need in needed.items() if need)


def living_nodes() -> list[Node]:
    """Return the living nodes of the connected cluster, the head first."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = Counter(node["NodeManagerAddress"] for node in alive)
    found = []
    for node in alive:
        address, head = node["NodeManagerAddress"], HEAD in node["Resources"]
        more = " (head)" if head else f" ({node['NodeID'][-6:]})" if addresses[address] > 1 else ""
        found.append(Node(node["NodeID"], f"{address}{more}", node["Resources"], head))
    return sorted(found, key=lambda node: (not node.is_head, node.name))


def ask_nodes(
    nodes: Sequence[Node], question: Callable[..., AnswerT], *arguments: Any, limit_s: float
) -> dict[str, AnswerT | Exception]:
    """Call a function on each node at once, in a task without CPUs, and return its answer or error by node name.

    Args:
        question: the function; it must be importable on the nodes.
        limit_s: seconds for all answers.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(question)
    refs = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        refs[task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*arguments)] = node.name
    ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=limit_s) if refs else ([], [])
    answers: dict[str, AnswerT | Exception] = {}
    for ref in late:
        ray.cancel(ref, force=True)
        answers[refs[ref]] = TimeoutError(f"no answer within {limit_s:.0f} s")
    for ref in ready:
        try:
            answers[refs[ref]] = ray.get(ref)
        except Exception as error:
            answers[refs[ref]] = getattr(error, "cause", None) or error
    return {name: answers[name] for name in refs.values()}

"""The nodes that a cluster's check asks, and what is found there."""

from __future__ import annotations

from dataclasses import dataclass

from raynas.cluster.nodes import Node, ask_nodes
from raynas.cluster.resources import Resources
from raynas.phases.check_node import HERE

ANSWER_S = 90.0  # for a node's answer: it may have to import torch from a slow disk


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        mend: how to mend it; None if all is well.
    """

    what: str
    found: str
    mend: str | None = None


@dataclass(frozen=True)
class Place:
    """The nodes of a cluster that the work would run on, or this machine without Ray."""

    nodes: tuple[Node, ...]  # none without Ray
    resources: Resources

    def ask(self, question: object, *arguments: object) -> dict[str, object]:
        """Return each node's answer, or its error, by its name."""
        if self.nodes:
            return ask_nodes(self.nodes, question, *arguments, limit_s=ANSWER_S)  # type: ignore[arg-type]
        try:
            return {HERE: question(*arguments)}  # type: ignore[operator]
        except Exception as error:
            return {HERE: error}

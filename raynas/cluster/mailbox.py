"""A mailbox from workers to the driver, as a Ray actor.

It does not import torch, so that its process starts quickly.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

STARTED = "started"
"""The kind of the event that says that workers run."""


def open_mailbox() -> Any:
    """Start a mailbox on the driver's node, so that it is lost with the driver only; started again if it dies alone.

    A soft affinity is not kept for actors without CPUs: Ray placed them on nodes that may go.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Mailbox).options(**options).remote()


class Mailbox:
    """Hold events until they are taken, and remember the first user error, after which retrying is useless."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._error: tuple[str, str] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)

    def fail(self, kind: str, message: str) -> None:
        self._error = self._error or (kind, message)

    def error(self) -> tuple[str, str] | None:
        return self._error

    def take(self) -> tuple[list[Event], tuple[str, str] | None]:
        events, self._events = self._events, []
        return events, self._error

"""A mailbox from workers to the driver, as a Ray actor.

It does not import torch, so that its process starts quickly.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

STARTED = "started"
"""The kind of the event that says that workers run."""

CONTROLLER = "controller"
"""The kind of the event that brings the handle of Ray Train's controller."""


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
    """Hold events of trainings until they are taken, and each training's first user error, after which none retries."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Event]] = []
        self._errors: dict[str, tuple[str, str]] = {}

    def put(self, training: str, event: Event) -> None:
        self._events.append((training, event))

    def fail(self, training: str, kind: str, message: str) -> None:
        self._errors.setdefault(training, (kind, message))

    def error(self, training: str) -> tuple[str, str] | None:
        return self._errors.get(training)

    def take(self) -> tuple[list[tuple[str, Event]], dict[str, tuple[str, str]]]:
        events, self._events = self._events, []
        return events, self._errors

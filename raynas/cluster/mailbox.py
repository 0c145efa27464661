"""A mailbox from workers to the driver, as a Ray actor.

It does not import torch, so that its process starts quickly.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


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

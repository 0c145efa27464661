"""A mailbox from workers to the driver, an actor. It imports no torch: its process starts in a moment."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


class Mailbox:
    """Holds events until they are taken. It remembers a user's error, which no retrying mends."""

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

"""A sign of life: whatever a long command does, something is printed every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from raynas.text import duration

SILENCE_S = 4.7


_current: Heartbeat | None = None


class Heartbeat:
    """What is under way, for the lines that are printed when nothing else is.

    Attributes:
        doing: in a few words, such as `training the supernet`; empty for no lines.
    """

    def __init__(self, stream: TextIO, silence_s: float = SILENCE_S):
        self._stream = stream
        self._silence_s = silence_s
        self._doing = ""
        self._since = self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    @property
    def doing(self) -> str:
        return self._doing

    @doing.setter
    def doing(self, text: str) -> None:
        self._doing, self._since = text, time.monotonic()

    def printed(self) -> None:
        """Something was printed just now."""
        self._last = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._silence_s / 8):
            now = time.monotonic()
            if self._doing and now - self._last >= self._silence_s:
                self._last = now
                print(f"  ... {self._doing}, {duration(now - self._since)}", file=self._stream, flush=True)


class _Watched:
    """A text stream that tells the heartbeat of every write."""

    def __init__(self, stream: TextIO, heartbeat: Heartbeat):
        self._watched = stream
        self._heartbeat = heartbeat

    def write(self, text: str) -> int:
        self._heartbeat.printed()
        return self._watched.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)


@contextmanager
def heartbeat(doing: str = "", silence_s: float = SILENCE_S) -> Iterator[Heartbeat]:
    """Inside the block a line is printed whenever standard output and error have been silent for a while.

    A block inside another shares its heartbeat.

    Args:
        doing: what is under way; see `Heartbeat.doing`.
        silence_s: what is a while, in seconds.
    """
    global _current
    if _current is not None:
        _current.doing = doing
        yield _current
        return
    beat = _current = Heartbeat(sys.stdout, silence_s)
    beat.doing = doing
    out, err = _Watched(sys.stdout, beat), _Watched(sys.stderr, beat)
    beat.start()
    try:
        with redirect_stdout(out), redirect_stderr(err):  # type: ignore[type-var]
            yield beat
    finally:
        _current = None
        beat.stop()

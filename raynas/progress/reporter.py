"""The one reporter of everything that takes time: lines that stay, and the state of what is under way.

A function that takes time has a parameter `progress`: anything that is called with whole lines, such as `print` or a
list's `append`. By default it is `silent`. A command passes `terminal()`.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from raynas.text import duration

Progress = Callable[[str], None]
"""Takes a line of text, without its end."""

EVERY_S, LONGEST_S = 4.0, 60.0
"""The state of what is under way is a line of its own after so many seconds without one; one in which only the time has
changed after twice as many as the last time, up to the longest."""


def silent(line: str) -> None:
    """Show nothing."""


class Activity:
    """A piece of work under way; made by `Reporter.doing`.

    Attributes:
        what: the work in a few words, such as `training the supernet`.
        unit: the counted things, such as `subnets scored`.
        done: number of steps done.
        total: number of steps in all; None if unknown.
        detail: the newest state in a few words, such as `loss 1.234`.
    """

    def __init__(self, what: str, total: float | None, unit: str, changed: Callable[[], None]):
        self.what, self.unit, self.total = what, unit, total
        self.done, self.detail = 0.0, ""
        self._changed = changed
        self._began = self._opened = time.monotonic()
        self._seen = deque([(self._began, 0.0)])

    def update(self, done: float | None = None, detail: str | None = None, total: float | None = None) -> None:
        """Set how far the work is; what is not given stays."""
        now = time.monotonic()
        before, self.done = self.done, self.done if done is None else done
        self.detail = self.detail if detail is None else detail
        if self.done < before or total not in (None, self.total):  # begun anew, or only now
            self._opened, self._seen = now, deque([(now, self.done)])
        elif self.done > before and now - self._opened < 1:  # what is answered at once says nothing of the rest
            self._seen[-1] = (now, self.done)
        elif self.done > before:
            self._opened = now
            self._seen = deque([*self._seen, (now, self.done)], maxlen=30)
        self.total = self.total if total is None else total
        self._changed()

    def advance(self, steps: float = 1, detail: str | None = None) -> None:
        """Count further steps."""
        self.update(self.done + steps, detail)

    @property
    def left_s(self) -> float | None:
        """Seconds to the end by the pace of the last steps; None where that cannot be said, or is over."""
        (since, before), (until, done) = self._seen[0], self._seen[-1]
        if self.total is None or done <= before:
            return None
        to_do = (until - since) / (done - before) * max(0.0, self.total - done)
        left = to_do - (time.monotonic() - until)
        return left if left > 0 else None if to_do else 0.0

    @property
    def counted(self) -> str:
        """The steps, such as `40/100 subnets scored`."""
        of = "" if self.total is None else f"/{self.total:,.0f}"
        return f"{math.floor(self.done):,}{of} {self.unit}".rstrip()

    @property
    def time(self) -> str:
        """The time left, such as `12 s left`, or what it has taken so far."""
        left = self.left_s
        return f"{duration(time.monotonic() - self._began)} so far" if left is None else f"{duration(left)} left"

    @property
    def state(self) -> str:
        """The state without the time, such as `40/100 subnets scored, loss 1.234`; empty if nothing is known yet."""
        counted = self.counted if self.done or self.total is not None else ""
        return ", ".join(part for part in (counted, self.detail) if part)

    def __str__(self) -> str:
        if not (state := self.state):
            return f"... {self.what}, {self.time.removesuffix(' so far')}"
        return f"{self.what}: {state}, {self.time}"


class Reporter:
    """Shows progress: call it with a line of text, and name what is under way with `doing`.

    The state of the innermost activity is a line of its own whenever nothing was written for a while, also while the
    work does not come round to telling; the longer it stays the same, the more seldom. A thread sees to that as long as
    anything is under way.

    Args:
        write: gets every line.
        every_s: seconds of silence before a state is written.
    """

    def __init__(self, write: Progress = silent, every_s: float = EVERY_S):
        self._write, self._every_s = write, every_s
        self._pause_s = 0.25
        self._indent = ""
        self._written = time.monotonic()
        self._told, self._wait_s = ("", ""), every_s  # the state that was last written, and the silence before it
        self._under_way: list[Activity] = []
        self._polls: list[Callable[[], None]] = []
        self._polling = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, line: str) -> None:
        """Write a line that stays."""
        self._written = time.monotonic()
        self._write(textwrap.indent(line, self._indent))

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines of the block."""
        before, self._indent = self._indent, self._indent + "  "
        try:
            yield
        finally:
            self._indent = before

    @contextmanager
    def doing(self, what: str, total: float | None = None, unit: str = "") -> Iterator[Activity]:
        """Show an activity for the time of the block; blocks may lie within one another.

        Args:
            what: a few words, such as `training the supernet`.
            total: number of steps; None if unknown.
            unit: name of the steps, such as `subnets scored`.
        """
        activity = Activity(what, total, unit, self._changed)
        self._under_way.append(activity)
        try:
            if self._write is not silent:
                self._begin()
            yield activity
        finally:
            self._under_way.remove(activity)
            self._end()

    @contextmanager
    def polling(self, poll: Callable[[], None], every_s: float = 0.5) -> Iterator[None]:
        """Call a function every now and then, from the reporter's thread, for the time of the block.

        Raises:
            Exception: the function's own, at the end of the block; it is not called again.
        """
        failed: list[BaseException] = []
        called = time.monotonic()

        def careful() -> None:
            nonlocal called
            if failed or time.monotonic() - called < every_s:
                return
            called = time.monotonic()
            try:
                poll()
            except BaseException as error:
                failed.append(error)

        self._polls.append(careful)
        try:
            self._begin()
            yield
        finally:
            with self._polling:
                self._polls.remove(careful)
            self._end()
        if failed:
            raise failed[0]

    def _changed(self) -> None:
        self._write_state()

    def _write_state(self, later_s: float = 0.0) -> None:
        if self._write is silent or not self._under_way:
            return
        newest = self._under_way[-1]
        state, wait_s = (newest.what, newest.state), self._every_s
        if state == self._told:
            wait_s = min(2 * self._wait_s, LONGEST_S)
        if time.monotonic() - self._written >= wait_s + later_s:
            self._told, self._wait_s = state, wait_s
            self(str(newest))

    def _begin(self) -> None:
        if self._thread is None:
            self._stop.clear()
            self._written = time.monotonic()
            self._thread = threading.Thread(target=self._watch, name="raynas-progress", daemon=True)
            self._thread.start()

    def _end(self) -> None:
        if self._thread is not None and not self._under_way and not self._polls:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._stop.wait(self._pause_s):
            with self._polling:
                for poll in self._polls:
                    poll()
            self._show()

    def _show(self) -> None:
        self._write_state(0.7)  # later than an update, which is told by whoever makes it


class _Terminal(Reporter):
    """Shows what is under way as a bar that rewrites itself below the lines."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False, emoji=False)
        super().__init__(lambda line: self._console.print(line, soft_wrap=True))
        self._live = Live(
            console=self._console,
            get_renderable=self._bar,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _begin(self) -> None:
        self._live.start()
        super()._begin()

    def _end(self) -> None:
        super()._end()
        if self._thread is None:
            self._live.stop()

    def _changed(self) -> None:
        """Leave it to the thread, which redraws the bar."""

    def _show(self) -> None:
        self._live.refresh()

    def _bar(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        under_way = self._under_way[-1:]
        if not under_way:
            return ""
        activity = under_way[0]
        bar: Any = "..."
        known = [activity.time, activity.detail]
        if activity.total is not None:
            bar, known = ProgressBar(activity.total, activity.done, width=24), [activity.counted, *known]
        row = Table.grid(padding=(0, 1))
        row.add_column(min_width=len(activity.what))
        row.add_column(min_width=3 if activity.total is None else 24)
        row.add_column(no_wrap=True, overflow="ellipsis")  # in a narrow terminal its end is left out
        row.add_row(activity.what, bar, ", ".join(part for part in known if part))
        return row


def reporter(progress: Progress) -> Reporter:
    """Return a function's `progress` as a reporter, which it may be already."""
    return progress if isinstance(progress, Reporter) else Reporter(progress)


def terminal() -> Reporter:
    """Return the reporter of a command: a bar where standard output is a terminal, whole lines elsewhere."""
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _Terminal()
    return Reporter(lambda line: print(line, flush=True))

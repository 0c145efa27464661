"""Progress of a training: the events that its loop tells, and the lines that a person can follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.training.context import LocalContext
    from raynas.training.state import TrainingState

STEP_S = 2.0  # seconds between events of steps
EVERY_S = 2.5  # seconds between lines
SILENCE_S = 4.0  # after which a line says that things go on


def duration(seconds: float) -> str:
    """`0:42`, `12:03` or `3:02:10`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Printer:
    """Turns the loop's events into lines: at most one every `EVERY_S` seconds, but every rollback and the last epoch.

    Args:
        write: gets each line.
        waiting_for: what nothing has been heard from yet, for the lines of `tick`.
    """

    def __init__(self, write: Callable[[str], None] = print, waiting_for: str = ""):
        self.write = write
        self.waiting_for = waiting_for
        self.epochs = 0
        self._seen = 0  # entries of the history
        self._began = self._last = time.monotonic()

    def event(self, event: dict[str, Any]) -> None:
        """Take one event of the loop."""
        if event["kind"] == "step":
            self.waiting_for = ""
            self.epochs = event["epochs"]
            if time.monotonic() - self._last >= EVERY_S:
                self.line(
                    f"  epoch {event['epoch']}/{event['epochs']}  step {event['step']:,}/{event['steps']:,}  "
                    f"loss {event['loss']:.3f}  {event['images_per_second']:,.0f} images/s  "
                    f"about {duration(event['eta'])} left"
                )
        elif event["kind"] == "history":
            self.history(event["history"])
        elif event["kind"] == "message":
            self.line(event["text"])

    def history(self, history: Sequence[dict[str, Any]]) -> None:
        """Take the whole history of the training; entries that were told are not told again."""
        new, self._seen = history[self._seen :], max(self._seen, len(history))
        for entry in new:
            if "event" in entry:
                self.line(f"  WARNING {entry['event']}; going on from epoch {entry['epoch']} in another order")
            elif time.monotonic() - self._last >= EVERY_S or entry["epoch"] == self.epochs:
                rows = entry.get("probes", ())
                probes = "  ".join(f"{row['role']} {row['accuracy']:.1%}" for row in rows)
                self.line(
                    f"  epoch {entry['epoch']}{f'/{self.epochs}' if self.epochs else ''}  loss {entry['loss']:.3f}"
                    + (f"  probes: {probes}" if probes else "")
                )

    def tick(self) -> None:
        """Say that things go on, if nothing was said for a while."""
        if time.monotonic() - self._last >= SILENCE_S:
            self.line(f"  {self.waiting_for or 'training goes on'} ({duration(time.monotonic() - self._began)})")

    def line(self, text: str) -> None:
        self._last = time.monotonic()
        self.write(text)


class Events:
    """Progress events from rank 0, at most one every `STEP_S` seconds, and the history after each epoch."""

    def __init__(self, state: TrainingState, steps_per_epoch: int, context: LocalContext):
        self.state, self.context = state, context
        self.steps_per_epoch = steps_per_epoch
        self.began = self.told = time.monotonic()
        self.first = state.step
        self.images = 0.0

    def step(self, loss: float) -> None:
        """A step has been taken."""
        now = time.monotonic()
        if self.context.rank or now - self.told < STEP_S:
            return
        self.told = now
        state = self.state
        done = max(1, state.step - self.first)
        per_step = (now - self.began) / done
        total = self.steps_per_epoch * state.recipe.epochs
        self.context.event(
            {
                "kind": "step",
                "epoch": state.epoch + 1,
                "epochs": state.recipe.epochs,
                "step": state.step,
                "steps": total,
                "loss": loss,
                "images_per_second": state.recipe.batch_size / per_step,
                "eta": (total - state.step) * per_step,
            }
        )

    def history(self) -> None:
        """The history has grown."""
        if self.context.rank == 0:
            self.context.event({"kind": "history", "history": list(self.state.history)})

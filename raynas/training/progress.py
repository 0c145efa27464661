"""Progress of a training: the events that its loop tells, and the lines that a person can follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raynas.text import duration

if TYPE_CHECKING:
    from raynas.training.context import Context
    from raynas.training.state import TrainingState

STEP_S = 2.0  # seconds between events of steps
EVERY_S = 2.5  # seconds between lines


class Printer:
    """Turns the loop's events into lines: at most one every `EVERY_S` seconds, but every rollback and the last epoch.

    Args:
        write: gets each line.
    """

    def __init__(self, write: Callable[[str], None] = print):
        self.write = write
        self.epochs = 0
        self._seen = 0  # entries of the history
        self._last = time.monotonic()

    def event(self, event: dict[str, Any]) -> None:
        """Take one event of the loop."""
        if event["kind"] == "step":
            self.epochs = event["epochs"]
            if time.monotonic() - self._last >= EVERY_S:
                self.line(
                    f"  epoch {event['epoch']}/{event['epochs']}  step {event['step']:,}/{event['steps']:,}  "
                    f"loss {event['loss']:.3f}  {event['images_per_second']:,.0f} images/s  "
                    f"{duration(event['eta'])} left"
                )
        elif event["kind"] == "history":
            self.epochs = event["epochs"]
            self.history(event["history"], event["eta"])
        elif event["kind"] == "message":
            self.line(event["text"])

    def history(self, history: Sequence[dict[str, Any]], left_s: float = 0.0) -> None:
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
                    + (f"  {duration(left_s)} left" if left_s > 0 else "")
                )

    def line(self, text: str) -> None:
        self._last = time.monotonic()
        self.write(text)


class Events:
    """Progress events from rank 0, at most one every `STEP_S` seconds, and the history after each epoch."""

    def __init__(self, state: TrainingState, steps_per_epoch: int, context: Context):
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
        per_step = self._per_step()
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
            state = self.state
            left = self.steps_per_epoch * state.recipe.epochs - state.step
            self.context.event(
                {
                    "kind": "history",
                    "history": list(state.history),
                    "epochs": state.recipe.epochs,
                    "eta": left * self._per_step(),
                }
            )

    def _per_step(self) -> float:
        return (time.monotonic() - self.began) / max(1, self.state.step - self.first)

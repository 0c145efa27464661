"""Progress of a training: the events that its loop sends, and how a reporter shows them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raynas.progress.reporter import EVERY_S, Activity, Progress
from raynas.text import duration

if TYPE_CHECKING:
    from raynas.data.loader import TrainLoader
    from raynas.training.context import Context
    from raynas.training.state import TrainingState

STEP_S = 2.0  # seconds between events of steps

WAITING = "waiting"
"""The kind of the event that tells what a training waits for before it begins: in `text`, empty once it begins."""


class TrainingLines:
    """Shows the events of a training: the state as that of an activity, and lines that stay.

    Lines are written for rollbacks, messages and the last epoch, and for other epochs at most every `EVERY_S` seconds.

    Args:
        progress: gets the lines.
        activity: the training.
        epochs: how many the training has.
    """

    def __init__(self, progress: Progress, activity: Activity, epochs: int):
        self.progress, self.activity, self.epochs = progress, activity, epochs
        self._seen = 0  # entries of the history
        self._last = time.monotonic()

    def event(self, event: dict[str, Any]) -> None:
        """Show one event of the loop."""
        if event["kind"] == "message":
            self.progress(event["text"])
            return
        if event["kind"] == WAITING:
            self.activity.update(detail=event["text"])
            return
        rate = f", {event['images_per_second']:,.0f} images/s" if event["kind"] == "step" else ""
        self.activity.update(event["step"], state_text(event) + rate, event["steps"])
        if event["kind"] == "history":
            self.history(event["history"])

    def history(self, history: Sequence[dict[str, Any]]) -> None:
        """Show the entries that were not there the last time."""
        new = history[self._seen :]
        if not self._seen:  # a training that goes on sends all of its earlier epochs first
            new = [entry for entry in new if "event" in entry or entry is new[-1]]
        self._seen = max(self._seen, len(history))
        for entry in new:
            if "event" in entry:
                self.progress(f"  WARNING {entry['event']}; going on from epoch {entry['epoch']} in another order")
            elif time.monotonic() - self._last >= EVERY_S or entry["epoch"] == self.epochs:
                self._last = time.monotonic()
                rows, left = entry.get("probes", ()), self.activity.left_s
                probes = "  ".join(f"{row['role']} {row['accuracy']:.1%}" for row in rows)
                self.progress(
                    f"  epoch {entry['epoch']}/{self.epochs}  loss {entry['loss']:.3f}"
                    + (f"  probes: {probes}" if probes else "")
                    + (f"  {duration(left)} left" if left else "")
                )


def state_text(event: dict[str, Any]) -> str:
    """Return the state that an event of a step or of the history tells: `epoch 3/40, loss 1.234`."""
    epoch, epochs = event["epoch"], event["epochs"]
    if event["kind"] == "step":
        return f"epoch {epoch}/{epochs}, loss {event['loss']:.3f}"
    if not event["history"]:
        return f"epoch {epoch}/{epochs}"
    last = event["history"][-1]  # an epoch, or a rollback
    return f"epoch {epoch}/{epochs}, " + (f"loss {last['loss']:.3f}" if "loss" in last else last["event"])


class Events:
    """Progress events from rank 0, at most one every `STEP_S` seconds, and the history after each epoch."""

    def __init__(self, state: TrainingState, loader: TrainLoader, context: Context):
        self.state, self.context = state, context
        self.loader = loader
        self.began = self.told = time.monotonic()
        self.first = state.step

    def step(self, loss: float) -> None:
        """Send a step's event if it is time."""
        now, state = time.monotonic(), self.state
        if self.context.rank or now - self.told < STEP_S:
            return
        self.told = now
        rate = self.loader.batch_size * (state.step - self.first) / (now - self.began)
        self._send("step", epoch=state.epoch + 1, loss=loss, images_per_second=rate)

    def history(self) -> None:
        """Send the history, which has grown."""
        if self.context.rank == 0:
            self._send("history", epoch=self.state.epoch, history=list(self.state.history))

    def _send(self, kind: str, **values: Any) -> None:
        recipe, step = self.state.recipe, self.state.step
        total = len(self.loader) * recipe.epochs
        self.context.event({"kind": kind, "epochs": recipe.epochs, "step": step, "steps": total, **values})

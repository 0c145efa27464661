"""Training in this process, without Ray, with checkpoints in a run directory beside those of Ray Train.

Either kind resumes from the newest checkpoint of both, so the number of workers may change between two starts, also to
none (this process) and back.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import torch

from raynas.nets.weights import parse_weights
from raynas.runs.files import LOCAL_CHECKPOINTS, RAY_CHECKPOINTS
from raynas.runs.run import Run
from raynas.training.context import Context, Event, State, read_state

RUN = RAY_CHECKPOINTS.rpartition("/")[2]
"""Name of the Ray Train run, by which a rerun finds the checkpoints in the storage path."""

STATE = "state.pt"  # in each of Ray Train's checkpoints
_SNAPSHOT = f"{RAY_CHECKPOINTS}/checkpoint_manager_snapshot.json"  # Ray Train's own list of committed checkpoints


class RunContext(Context):
    """One process that keeps its checkpoints in a run directory, by path or URI.

    Args:
        run: run directory owned by this process.
        keep: number of checkpoints to keep: those with the best scores, and always the newest.
        on_event: called with progress events.
        device: device to train on.
    """

    def __init__(self, run: Run, keep: int, on_event: Callable[[Event], None], device: str | torch.device):
        super().__init__(None, keep, on_event, device)
        self.run = run

    def save(self, state: State, score: float) -> None:
        written = io.BytesIO()
        torch.save(state, written)
        name = f"{_name(state)}-{max(score, 0.0):.6f}.pt"
        self.run.write_bytes(f"{LOCAL_CHECKPOINTS}/{name}", written.getvalue())
        others = sorted((old for old in self.run.list(LOCAL_CHECKPOINTS) if old != name), key=_score, reverse=True)
        for old in others[max(self.keep - 1, 0) :]:
            self.run.filesystem.delete_file(self.run.at(f"{LOCAL_CHECKPOINTS}/{old}"))

    def load(self) -> State | None:
        return furthest(newest_here(self.run), _newest_of_ray(self.run))


def furthest(*states: State | None) -> State | None:
    """Return the state of most progress, by rollbacks before steps, since a rollback takes steps back."""
    return max((state for state in states if state is not None), key=_name, default=None)


def newest_here(run: Run) -> State | None:
    """Return the newest state of a training without Ray, or None."""
    names = run.list(LOCAL_CHECKPOINTS)
    return _read(run, f"{LOCAL_CHECKPOINTS}/{max(names)}") if names else None


def read_weights(run: Run, name: str | None) -> dict[str, torch.Tensor] | None:
    """Return the weights in a safetensors file of the run; None if no file is named."""
    return None if name is None else parse_weights(run.read_bytes(name), name)


def _newest_of_ray(run: Run) -> State | None:
    if not run.exists(_SNAPSHOT):
        return None
    found = json.loads(run.read_bytes(_SNAPSHOT)).get("latest_checkpoint_result")
    return None if found is None else _read(run, f"{RAY_CHECKPOINTS}/{found['checkpoint_dir_name']}/{STATE}")


def _read(run: Run, name: str) -> State:
    return read_state(io.BytesIO(run.read_bytes(name)))


def _name(state: State) -> str:
    """Return the start of a checkpoint's file name, which sorts by progress."""
    return f"{state['rollbacks']:02d}-{state['step']:09d}"


def _score(name: str) -> str:
    return name.removesuffix(".pt").rpartition("-")[2]

"""A training in this process, without Ray, whose checkpoints lie in a run directory beside those of Ray Train.

Whichever wrote the newest checkpoint, either goes on from it: the number of workers may change between two starts, to
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
"""The Ray Train run's name; with its storage path it is how a rerun finds the checkpoints."""

STATE = "state.pt"  # in each of Ray Train's checkpoints
_SNAPSHOT = f"{RAY_CHECKPOINTS}/checkpoint_manager_snapshot.json"  # Ray Train's own list of committed checkpoints


class RunContext(Context):
    """One process that keeps its checkpoints in a run directory, by path or URI.

    Args:
        run: owned by this process.
        keep: how many checkpoints are kept: those with the best scores, and always the newest.
        on_event: gets progress events.
        device: where to train.
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
    """The state of most progress: a rollback counts before steps, since it takes some of them back."""
    return max((state for state in states if state is not None), key=_name, default=None)


def newest_here(run: Run) -> State | None:
    """The newest state that a training without Ray has left; None where there is none."""
    names = run.list(LOCAL_CHECKPOINTS)
    return _read(run, f"{LOCAL_CHECKPOINTS}/{max(names)}") if names else None


def read_weights(run: Run, name: str | None) -> dict[str, torch.Tensor] | None:
    """The weights of a safetensors file of the run; None where no file is named."""
    return None if name is None else parse_weights(run.read_bytes(name), name)


def _newest_of_ray(run: Run) -> State | None:
    if not run.exists(_SNAPSHOT):
        return None
    found = json.loads(run.read_bytes(_SNAPSHOT)).get("latest_checkpoint_result")
    return None if found is None else _read(run, f"{RAY_CHECKPOINTS}/{found['checkpoint_dir_name']}/{STATE}")


def _read(run: Run, name: str) -> State:
    return read_state(io.BytesIO(run.read_bytes(name)))


def _name(state: State) -> str:
    """The start of a checkpoint's file name: names sort as progress does."""
    return f"{state['rollbacks']:02d}-{state['step']:09d}"


def _score(name: str) -> str:
    return name.removesuffix(".pt").rpartition("-")[2]

"""Training in this process, without Ray, with checkpoints in a run directory beside those of Ray Train.

Either kind resumes from the newest checkpoint of both, so the number of workers may change between two starts, also to
none (this process) and back.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import torch

from raynas.runs.files import local_checkpoints, ray_checkpoints
from raynas.runs.run import Run
from raynas.training.context import Context, Event, State, read_state

STATE = "state.pt"  # in each of Ray Train's checkpoints
_SNAPSHOT = "checkpoint_manager_snapshot.json"  # Ray Train's own list of committed checkpoints


class RunContext(Context):
    """One process that keeps its checkpoints in a run directory, by path or URI.

    Args:
        run: run directory owned by this process.
        keep: number of checkpoints to keep: those with the best scores, and always the newest.
    """

    def __init__(self, run: Run, name: str, keep: int, on_event: Callable[[Event], None], device: str | torch.device):
        super().__init__(on_event, device)
        self.run, self.name, self.keep = run, name, keep

    def save(self, state: State, score: float) -> None:
        written = io.BytesIO()
        torch.save(state, written)
        folder, file = local_checkpoints(self.name), f"{_progress(state)}-{max(score, 0.0):.6f}.pt"
        self.run.write_bytes(f"{folder}/{file}", written.getvalue())
        others = [old for old in self.run.list(folder) if old != file]
        others.sort(key=lambda name: name.removesuffix(".pt").rpartition("-")[2], reverse=True)  # by score
        for old in others[max(self.keep - 1, 0) :]:
            self.run.filesystem.delete_file(self.run.at(f"{folder}/{old}"))

    def load(self) -> State | None:
        return furthest(newest_here(self.run, self.name), _newest_of_ray(self.run, self.name))


def furthest(*states: State | None) -> State | None:
    """Return the state of most progress, by rollbacks before steps, since a rollback takes steps back."""
    return max((state for state in states if state is not None), key=_progress, default=None)


def newest_here(run: Run, name: str) -> State | None:
    """Return the newest state of a training without Ray, or None."""
    folder = local_checkpoints(name)
    files = run.list(folder)
    return _read(run, f"{folder}/{max(files)}") if files else None


def _newest_of_ray(run: Run, name: str) -> State | None:
    folder = ray_checkpoints(name)
    if not run.exists(f"{folder}/{_SNAPSHOT}"):
        return None
    found = json.loads(run.read_bytes(f"{folder}/{_SNAPSHOT}")).get("latest_checkpoint_result")
    return None if found is None else _read(run, f"{folder}/{found['checkpoint_dir_name']}/{STATE}")


def _read(run: Run, name: str) -> State:
    return read_state(io.BytesIO(run.read_bytes(name)))


def _progress(state: State) -> str:
    """Return the start of a checkpoint's file name, which sorts by progress."""
    return f"{state['rollbacks']:02d}-{state['step']:09d}"

"""Resumed training is uninterrupted training, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from raynas.errors import RunDirError, UserError
from raynas.runs.files import local_checkpoints
from raynas.training.context import State, read_state
from raynas.training.loop import train_loop
from tests.training.training_parts import SPACE, Keeping, few, plan, recipe, same

EVERYTHING = {
    "augment": {"shift": 1, "hflip": 0.5, "reprob": 0.5},
    "mixup": 0.8,
    "cutmix": 1.0,
    "smoothing": 0.1,
    "drop_path": 0.3,
    "ema": 0.9,
    "clip_grad": 1.0,
    "accumulate": 2,
    "checkpoints": {"every_steps": 2, "keep": 100},
    "health": {"conflict": {"steps": 2, "layers": True}},
}


class Killed(Exception):
    """Stands for a kill: nothing after it runs."""


class Dying(Keeping):
    """Dies after so many checkpoints."""

    def __init__(self, folder: Path, lives: int):
        super().__init__(folder, keep=100)
        self.lives = lives

    def save(self, state: State, score: float) -> None:
        super().save(state, score)
        self.lives -= 1
        if not self.lives:
            raise Killed


# Of six checkpoints the odd ones lie within an epoch of three steps, the even ones end it.
@pytest.mark.parametrize(
    ("sampler", "saved"), [("single_path", 1), ("single_path", 4), ("sandwich", 2), ("sandwich", 5)]
)
def test_resumed_equals_uninterrupted(tmp_path: Path, sampler: str, saved: int) -> None:
    settings = recipe(**EVERYTHING)
    whole = train_loop(SPACE, few(), plan(sampler), settings)
    with pytest.raises(Killed):
        train_loop(SPACE, few(), plan(sampler), settings, Dying(tmp_path, saved))
    torch.manual_seed(99)  # another process would have other streams
    resumed = train_loop(SPACE, few(), plan(sampler), settings, Keeping(tmp_path))
    assert same(resumed.model.state_dict(), whole.model.state_dict())
    assert same(resumed.weights, whole.weights)
    assert not same(resumed.weights, resumed.model.state_dict())  # the average is another one
    priced = ("seconds", "memory")
    learnt = [{k: v for k, v in entry.items() if k not in priced} for entry in resumed.history]
    assert learnt == [{k: v for k, v in entry.items() if k not in priced} for entry in whole.history]


def test_another_seed_gives_other_weights() -> None:
    first, second = (train_loop(SPACE, few(), plan(), recipe(seed=seed)).weights for seed in (0, 1))
    assert not same(first, second)


def test_finished_training_returns_at_once(tmp_path: Path) -> None:
    first = train_loop(SPACE, few(), plan(), recipe(), Keeping(tmp_path))
    events: list[dict[str, Any]] = []
    again = train_loop(SPACE, few(), plan(), recipe(), Keeping(tmp_path, on_event=events.append))
    assert same(first.weights, again.weights)
    assert [event["kind"] for event in events] == ["message", "history"]
    assert events[0]["text"] == "  going on after epoch 3, step 9"


def test_best_and_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    context = Keeping(tmp_path, keep=3)
    for step, score in enumerate([0.1, 0.9, 0.3, 0.8, 0.2]):
        context.save({"step": step, "rollbacks": 0, "tensor": torch.zeros(1)}, score)
    assert [name.split("-")[1] for name in context.checkpoints()] == ["000000001", "000000003", "000000004"]
    newest = context.load()
    assert newest is not None and newest["step"] == 4


def test_a_checkpoint_that_is_a_pipe_is_refused_in_one_line(tmp_path: Path) -> None:
    context, folder = Keeping(tmp_path), tmp_path / local_checkpoints("supernet")
    folder.mkdir(parents=True)
    os.mkfifo(folder / "000000001-0-0.500000.pt")
    with pytest.raises(RunDirError, match=r"000000001-0-0\.500000\.pt is a pipe"):
        context.load()
    with pytest.raises(UserError, match="not an ordinary file"):
        read_state(folder / "000000001-0-0.500000.pt")

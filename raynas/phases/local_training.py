"""Training of one network in one process: retraining, fine-tuning, debugging."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raynas.data.load import Data
from raynas.phases.teachers import load_teachers, teacher_settings
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.space import Space
from raynas.training.context import Context, Event
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from raynas.training.preflight import check_trainable
from raynas.training.recipe import Recipe
from raynas.training.teachers import Teachers


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        weights: trained state dict, on the CPU.
        history: one entry for each epoch: loss, seconds, images, learning rate, probe scores.
    """

    weights: dict[str, Tensor]
    history: list[dict[str, Any]]

    @property
    def loss(self) -> float:
        """Mean training loss of the last epoch."""
        return next(entry["loss"] for entry in reversed(self.history) if "loss" in entry)

    @property
    def seconds(self) -> float:
        """Wall time of the epochs."""
        return sum(entry.get("seconds", 0.0) for entry in self.history)


def train_network(
    space: Space,
    data: Data,
    recipe: Recipe,
    *,
    seed: int | None = None,
    out_dir: str | os.PathLike[str] | None = None,
    init: Mapping[str, Tensor] | None = None,
    plan: Plan | None = None,
    train_on: str = "train",
    device: str = "cpu",
    on_event: Callable[[Event], None] = lambda event: None,
) -> Trained:
    """Train the network of a one-point space (`space.fix(arch)`), or a supernet, in this process.

    It runs anywhere, in a notebook or as a Ray task. Called again with the same `out_dir` and arguments, it resumes
    from the newest checkpoint, or returns at once if it was finished.

    Args:
        space: space with the data's image size, channels and classes.
        seed: seed instead of the recipe's.
        out_dir: folder for checkpoints; None for no checkpoints.
        init: initial weights, such as `supernet.extract(arch).state_dict()`.
        train_on: `train` or `train+search`.
        on_event: called with progress events, which `raynas.training.progress.TrainingLines` shows.

    Raises:
        RunDirError: `out_dir` holds a training with other settings.
        UserError: as in `raynas.training.loop.train_loop`.
    """
    if seed is not None:
        recipe = recipe.model_copy(update={"seed": seed})
    plan, teachers = plan or Plan(), load_teachers(recipe, data)
    if out_dir is not None:  # check everything before the folder records the settings
        recipe.check_device(torch.device(device).type)
        check_trainable(space, data, plan, recipe, train_on=train_on)
        _check_settings(Path(out_dir), space, data, recipe, plan, train_on, teachers)
    context = Context(
        None if out_dir is None else Path(out_dir) / "checkpoints", recipe.checkpoints.keep, on_event, device
    )
    state = train_loop(space, data, plan, recipe, context, init=init, train_on=train_on, teachers=teachers)
    return Trained(state.weights, state.history)


def _check_settings(
    folder: Path, space: Space, data: Data, recipe: Recipe, plan: Plan, train_on: str, teachers: Teachers | None
) -> None:
    settings = {
        "space": space.fingerprint,
        "data": data.fingerprint,
        "train_on": train_on,
        "plan": plan.model_dump(),
        "recipe": recipe.model_dump(exclude={"checkpoints"}),
        **teacher_settings(teachers),
    }
    begin(Run(folder, create=True), "training", settings, "give the same, or another folder")

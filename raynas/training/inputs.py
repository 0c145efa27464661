"""The space and data of a preset, fitted to each other, and what training on them will cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raynas.costs import cost
from raynas.data import Data, DataConfig, load_data
from raynas.data.config import EMBEDDED
from raynas.errors import UserError
from raynas.preset import Preset
from raynas.space import Space, load_space
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe

DRAWS = 200  # steps whose archs give the mean cost of a step


def resolve_data(preset: Preset, space: Space) -> DataConfig:
    """The preset's data with the image size and channels that it leaves open: for files, those of the space.

    Embedded datasets and datasets of the user's own keep theirs, and the space follows.

    Raises:
        UserError: the preset names no data.
    """
    config = preset.data
    if config is None:
        raise UserError("this preset names no dataset: give one (data=..., or --data on the command line)")
    files = config.name not in EMBEDDED and ("://" in config.name or ":" not in config.name)
    if not files:
        return config
    return config.model_copy(
        update={"size": config.size or space.input_size, "channels": config.channels or space.channels}
    )


def load_inputs(preset: Preset, space: Space | None = None) -> tuple[Space, Data]:
    """Load the data, and the space with the data's image size, channels and classes.

    Args:
        space: in place of the one that the preset names.

    Raises:
        UserError: space or data are missing or wrong, or the space cannot take such images.
    """
    space = space or load_space(preset.space)
    data = load_data(resolve_data(preset, space))
    return space.with_input(size=data.size, channels=data.channels, classes=data.classes), data


@dataclass(frozen=True)
class Estimate:
    """What a training will cost.

    Attributes:
        steps: optimiser steps.
        images: images drawn, each seen once by every pass of its step.
        macs: multiply-accumulates of all forward passes over one image, on average; training takes about three times
            as many.
    """

    steps: int
    images: int
    macs: float

    def __str__(self) -> str:
        total = 3 * self.macs * self.images
        return (
            f"{self.steps:,} steps, {self.images:,} images x {_giga(self.macs)} MACs forward; "
            f"forward and backward about {_giga(total)} MACs in all"
        )


def estimate(space: Space, data: Data, plan: Plan, recipe: Recipe, train_on: str = "train") -> Estimate:
    """Count what training will cost, from the archs that the sampler draws."""
    sampler, rng = plan.build_sampler(), np.random.default_rng(recipe.seed)
    macs = 0.0
    for i in range(DRAWS):
        opened = plan.open_space(space, i * recipe.epochs // DRAWS, recipe.epochs)
        for this in sampler(opened, rng, lambda archs: [0.0] * len(archs)):
            macs += float(cost(space, list(this.archs))["macs"].mean()) / DRAWS
    count = len(data.images(train_on))
    steps = max(1, count // recipe.batch_size)
    return Estimate(recipe.epochs * steps, recipe.epochs * steps * min(recipe.batch_size, count), macs)


def _giga(number: float) -> str:
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.0f}"

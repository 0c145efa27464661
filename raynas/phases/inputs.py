"""The space and data of a preset, fitted to each other, and the estimated cost of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raynas.costs import cost
from raynas.costs.expectation import expected_cost
from raynas.data.config import EMBEDDED, DataConfig
from raynas.data.images import decoded_bytes
from raynas.data.load import Data, load_data, without_unreadable
from raynas.errors import UserError
from raynas.nets.sharing import sides_of
from raynas.presets.preset import Preset
from raynas.runs.run import Run
from raynas.space import Arch, Space, load_space
from raynas.space.choices import with_fixed
from raynas.training.draws import distribution
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe
from raynas.training.samplers import SAMPLERS, Pass, check_emitted, on_sides

SAID_FROM = 2**27  # bytes of decoded images

_FEW = 0.05  # share of the images that may be left out of an epoch without a word

_STEPS = 200
"""Number of steps that are drawn at a time, spread evenly over the epochs."""

_ERROR, _PATIENCE_S = 0.005, 2.0
"""End of drawing for a mean cost: a small enough relative standard error, or a time limit in seconds."""


def resolve_data(preset: Preset, space: Space) -> DataConfig:
    """Return the preset's data settings with defaults filled in; image files get the space's size and channels.

    Embedded datasets and the user's own keep their size and channels, and the space is fitted to them.

    Raises:
        UserError: the preset names no data, or they are missing.
    """
    config = named_data(preset)
    if config.name not in EMBEDDED:
        config = without_unreadable(config.model_copy(update={"exif": config.exif or "upright"}))
    if not are_files(config):
        return config
    return config.model_copy(
        update={"size": config.size or space.input_size, "channels": config.channels or space.channels}
    )


def named_data(preset: Preset) -> DataConfig:
    """Return the preset's data settings; refuse a preset that names no data."""
    if preset.data is None or not preset.data.name:
        raise UserError("this preset names no dataset: give one (data=..., or --data on the command line)")
    return preset.data


def are_files(config: DataConfig) -> bool:
    """Return True if the images are files or rows of Parquet files."""
    return config.name not in EMBEDDED and ("://" in config.name or ":" not in config.name)


def with_known_skips(preset: Preset, run: Run) -> Preset:
    """Return the preset with `skip: unreadable` replaced by the images that the run is known to skip."""
    if preset.data is None or preset.data.skip != "unreadable" or not run.has_preset:
        return preset
    known = run.data_config.skip
    return preset.model_copy(update={"data": preset.data.model_copy(update={"skip": known})})


def space_of(preset: Preset) -> Space:
    """Return the preset's space.

    Raises:
        UserError: the preset names none, or it is wrong.
    """
    if preset.space is None:
        raise UserError("this preset names no space, which follows from a model: raynas adapt MODEL --preset NAME")
    return with_fixed(load_space(preset.space), preset.fix)


def load_inputs(preset: Preset, space: Space | None = None) -> tuple[Space, Data]:
    """Load the data, and the space with the data's image size, channels and classes.

    Args:
        space: space to use instead of the preset's.

    Raises:
        UserError: space or data are missing or wrong, or the space does not support the images.
    """
    space = space or space_of(preset)
    data = load_data(resolve_data(preset, space))
    return space.with_input(size=data.size, channels=data.channels, classes=data.classes), data


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a training.

    Attributes:
        steps: number of optimiser steps.
        images: number of images drawn, each used once by every pass of its step.
        left_out: images that each epoch leaves out, others each time, since batches are whole; 0 if they are few.
        macs: mean multiply-accumulates of all forward passes over one image; training takes about three times as many.
        search_images: number of images that subnets are scored on.
        search_bytes: size of these images decoded, which every node with scoring replicas keeps if it has room.
    """

    steps: int
    images: int
    left_out: int
    macs: float
    search_images: int
    search_bytes: int

    def __str__(self) -> str:
        total = 3 * self.macs * self.images
        return (
            f"{self.steps:,} steps, {self.images:,} images x {_giga(self.macs)} MACs forward; "
            f"forward and backward about {_giga(total)} MACs in all"
            + (
                f"; each epoch leaves out {self.left_out:,}, others each time: a smaller batch leaves out fewer"
                if self.left_out
                else ""
            )
            + (
                f"; scoring keeps {self.search_images:,} decoded images ({self.search_bytes / 1e9:.1f} GB) on a node "
                "that has room for them, and decodes them for each subnet on others"
                if self.search_bytes >= SAID_FROM
                else ""
            )
        )


def estimate(space: Space, data: Data, plan: Plan, recipe: Recipe) -> Estimate:
    """Estimate the cost of a training from the passes that the sampler emits.

    Raises:
        UserError: the sampler cannot draw from this space.
    """
    count = len(data.train)
    steps = max(1, count // recipe.batch_size)
    macs = _mean_macs(space, plan, recipe)
    drawn = steps * min(recipe.batch_size, count)
    left_out = count - drawn if count - drawn > _FEW * count else 0
    search = data.search
    return Estimate(recipe.epochs * steps, recipe.epochs * drawn, left_out, macs, len(search), decoded_bytes(search))


def _mean_macs(space: Space, plan: Plan, recipe: Recipe) -> float:
    """Return the mean MACs of a step: exact for raynas's samplers without selection of archs, else from draws.

    Candidates whose loss a sampler asks for count a third, since they have no backward pass.
    """
    sampler, rng = plan.build_sampler(), np.random.default_rng(recipe.seed)
    opened = [plan.open_space(space, i * recipe.epochs // _STEPS, recipe.epochs) for i in range(_STEPS)]

    sides = sides_of(space)

    def passes(of: Space, asked: list[Pass] | None = None) -> list[Pass]:
        def losses(archs: Sequence[Arch]) -> list[float]:
            if asked is not None:
                asked.extend(Pass("candidate", "random", (arch,)) for arch in archs)
            return rng.random(len(archs)).tolist()  # each may be chosen

        emitted = sampler(of, rng, losses)
        check_emitted(emitted)
        return on_sides(emitted, sides)

    options = plan.sampler.options
    if plan.sampler.name in SAMPLERS and options.get("within") is None and options.get("attentive") is None:
        draws = {name: options[name] for name in ("uniform_over", "align") if name in options}
        means = {}
        for of in set(opened):
            step = passes(of)
            drawn = expected_cost(distribution(of, **draws))["macs"]
            fixed = [this for this in step if this.role in ("largest", "smallest")]
            means[of] = drawn * (len(step) - len(fixed)) + _macs(space, [fixed])[0]
        return float(np.mean([means[of] for of in opened]))
    began = time.monotonic()
    macs = np.empty(0)
    while True:
        candidates: list[list[Pass]] = [[] for _ in opened]
        steps = [passes(of, asked) for of, asked in zip(opened, candidates, strict=True)]
        macs = np.append(macs, _macs(space, steps) + len(sides) * _macs(space, candidates) / 3)
        error = macs.std() / len(macs) ** 0.5
        if error <= _ERROR * macs.mean() or time.monotonic() - began > _PATIENCE_S:
            return float(macs.mean())


def _macs(space: Space, steps: Sequence[Sequence[Pass]]) -> np.ndarray:
    """Return the MACs per image of all passes of each step, [steps]; the archs of one pass share its images."""
    runs = [(i, arch, 1 / len(this.archs)) for i, step in enumerate(steps) for this in step for arch in this.archs]
    places, archs, shares = zip(*runs, strict=True) if runs else ((), (), ())
    return np.bincount(places, np.multiply(shares, cost(space, archs)["macs"]), minlength=len(steps))


def _giga(number: float) -> str:
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,.0f}"

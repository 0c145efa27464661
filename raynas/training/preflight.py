"""Checks before training, on the meta device: everything that training would refuse once it runs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from raynas.data.config import CalibrationConfig
from raynas.data.load import Data
from raynas.data.loader import images_of_step
from raynas.errors import ConfigError, UserError, reason
from raynas.nets import build_supernet
from raynas.nets.calibration import wants_calibration
from raynas.nets.classifier import check_token_head
from raynas.space import Space
from raynas.training.objectives import OBJECTIVES
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe, build_optimizer, build_schedule
from raynas.training.samplers import Pass, check_emitted, check_rows
from raynas.training.sorting import check_sortable
from raynas.user_code import kind, running


def check_trainable(
    space: Space, data: Data, plan: Plan, recipe: Recipe, workers: int = 1, train_on: str = "train"
) -> None:
    """Raise unless the space can be trained by the plan and the recipe on this data.

    Args:
        space: the space, with the data's image size, channels and classes.
        data: the images.
        plan: the parts of a step; a sampler draws archs, and an objective gets a loss of fake logits.
        recipe: the recipe.
        workers: number of workers.
        train_on: `train` or `train+search`.

    Raises:
        UserError: plan and recipe do not fit each other, the space, the data or the number of workers.
    """
    check_recipe(space, recipe)
    if recipe.sync_batchnorm and plan.sampler.per_rank:
        raise ConfigError(
            "recipe.sync_batchnorm needs the same archs on all workers: leave out per_rank of plan.sampler"
        )
    if recipe.augment.needs_images:
        from raynas.data.transforms import image_transform  # slow import

        image_transform(recipe.augment, data.images(train_on).geometry, data.mean, data.std)
    recipe.micro_batch(workers)
    together = recipe.dealt_together
    images = images_of_step(len(data.images(train_on)), recipe.batch_size, workers, together)
    fewest = max(1, images // (workers * together) * together // recipe.accumulate)
    if plan.sort_channels:
        check_sortable(space)
    rng = np.random.default_rng(recipe.seed)
    for epoch in (0, recipe.epochs - 1):
        opened = plan.open_space(space, epoch, recipe.epochs)
        with running(f"plan.sampler: {plan.sampler.name!r}"):
            passes = plan.build_sampler()(opened, rng, lambda archs: [0.0] * len(archs))
        check_emitted(passes)
        for this in passes:
            for arch in this.archs:
                space.check_own(arch)
            check_rows(this, fewest)
        if recipe.drops and recipe.drop_for == "largest" and all(this.role != "largest" for this in passes):
            raise ConfigError(
                "recipe.drop_for largest: no pass is of the largest subnet alone, so that drop_path and dropout would "
                "never act: set drop_for to all, or use a sampler that runs it, such as sandwich"
            )
        with running(f"plan.gradients: {plan.gradients.name!r}: assign(passes)"):
            names = plan.build_gradients().assign(passes)
        if (
            not isinstance(names, list | tuple)
            or len(names) != len(passes)
            or not all(isinstance(n, str) for n in names)
        ):
            raise ConfigError(
                f"plan.gradients: {plan.gradients.name!r}: assign(passes) must return a set's name for each of the "
                f"{len(passes)} passes; it returned {kind(names)}"
            )
        _check_objective(plan, passes)


def check_calibration(space: Space, data: Data, config: CalibrationConfig) -> None:
    """Refuse training images that do not fill a batch of the calibration that the space's networks need."""
    with torch.device("meta"):
        if len(data.train) < config.batch_size and wants_calibration(build_supernet(space)):
            raise UserError(
                f"calibration.batch_size {config.batch_size} is more than the {len(data.train)} training images"
            )


def check_recipe(space: Space, recipe: Recipe) -> None:
    """Refuse a recipe whose optimiser takes other arguments, or with labels for patches that can have none."""
    _take_a_step(recipe)
    if recipe.augment.shift >= min(space.input_size):
        raise ConfigError(
            f"recipe.augment.shift {recipe.augment.shift} moves images of {space.input_size[0]} x "
            f"{space.input_size[1]} pixels out of sight: give less"
        )
    if recipe.teachers is not None and recipe.teachers.weight == 1 and space.constants.distillation_token:
        raise ConfigError(
            "recipe.teachers.weight 1 leaves the class token nothing to learn, since teachers teach the distillation "
            "token: give less, such as DeiT's 0.5"
        )
    if recipe.token_labels is not None:
        check_token_head(space)
        with torch.device("meta"):
            _ = build_supernet(space).token_grid


def _take_a_step(recipe: Recipe) -> None:
    """Take a step with the recipe's optimiser, since many arguments are only checked by a step."""
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(recipe, model)
    try:
        build_schedule(recipe, optimizer, steps_per_epoch=1).step_update(0)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        moved = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    except Exception as error:  # timm's and torch's optimisers raise whatever their arguments lead to
        raise ConfigError(f"{recipe.shown_opt} takes no step: {reason(error)}") from error
    if not moved:
        raise ConfigError(f"{recipe.shown_opt}: its first step is not finite")


def _check_objective(plan: Plan, passes: list[Pass]) -> None:
    """Try the objective. What a user's own raises is ignored here: it may need what only workers have (a GPU)."""
    ours = plan.objective.name in OBJECTIVES
    objective, outputs = plan.build_objective(), {}
    for this in passes:
        outputs[this.name] = torch.zeros(1, 2, requires_grad=True)
        targets = torch.full((1, 2), 0.5)
        try:
            objective(this, outputs[this.name], targets, outputs)
        except Exception as error:
            if ours or (isinstance(error, ConfigError) and error.__cause__ is None):  # the latter: a wrong answer
                raise
            return

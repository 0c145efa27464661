"""One optimiser step: passes, gradient sets, one reduction over workers for each set, one update."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raynas.space import Arch, Space
from raynas.training.conflict import compare, unseen
from raynas.training.context import Context
from raynas.training.gradients import GradientPolicy, Gradients, accumulating, added, average, check_gradient, scaled
from raynas.training.recipe import Mixer, Recipe
from raynas.training.samplers import Pass, check_emitted, check_rows, on_sides
from raynas.training.state import TrainingState
from raynas.training.teachers import Teachers
from raynas.user_code import running

KeyT = TypeVar("KeyT", bound=Hashable)
Targeted = tuple[Tensor, Tensor, Tensor | None]
"""A micro-batch: images [batch, channels, height, width], their targets for objectives, and a distillation token's."""


@dataclass
class StepParts:
    """The parts of an optimiser step; fixed, except for the space, which may widen from epoch to epoch.

    Attributes:
        parameters: the trained parameters by name.
        teachers: external teachers, if the recipe has any.
        around: context of every forward pass, such as autocast.
        images: number of a step's images for each rank, on average: a rank with more counts more.
    """

    space: Space
    recipe: Recipe
    parameters: dict[str, nn.Parameter]
    sampler: Callable[..., list[Pass]]
    objective: Callable[..., Tensor]
    policy: GradientPolicy
    mixer: Mixer
    teachers: Teachers | None
    around: Callable[[], AbstractContextManager[Any]]
    images: float


@dataclass(frozen=True)
class StepResult:
    """The results of a step.

    Attributes:
        loss: loss averaged over passes and images.
        norm: norm of the gradient before `recipe.clip_grad`; not finite if fp16 overflowed, which skips the update.
        conflicts: counts for the conflict ratio, if gradients were compared.
    """

    loss: float
    norm: float
    conflicts: dict[str, float]


def train_step(
    state: TrainingState,
    parts: StepParts,
    images: Tensor,
    labels: Tensor,
    indices: Tensor,
    context: Context,
    comparing: bool = False,
) -> StepResult:
    """Run one optimiser step on this rank's images.

    Args:
        images: [batch, channels, height, width], normalised and augmented.
        labels: int64 [batch].
        indices: int64 [batch] on the CPU, the images' indices in the training set.
        comparing: True to compare the largest subnet's gradient with the others'.
    """
    batches = micro_batches(parts, images, labels, indices, getattr(state.model, "distils", False))
    drawn = parts.sampler(parts.space, state.sampler, _candidate_losses(state, parts, batches[0], context))
    check_emitted(drawn)
    passes = on_sides(drawn, getattr(state.model, "sides", (None,)))
    names = parts.policy.assign(passes)
    # For the comparison, the largest subnet's passes of a set are kept apart from its others.
    keys = [(name, comparing and this.role == "largest") for name, this in zip(names, passes, strict=True)]
    by_key, loss = averaged(state, parts, context, *run_passes(state, parts, batches, passes, keys))
    conflicts = _compare(state, parts, batches, by_key, context) if comparing else {}
    sets = {name: added(*(one for key, one in by_key.items() if key[0] == name)) for name in dict.fromkeys(names)}
    with running("plan.gradients: combine(sets, names, done)"):
        combined = parts.policy.combine(sets, list(parts.parameters), state.epoch / parts.recipe.epochs)
    check_gradient(combined, list(parts.parameters.values()))
    return StepResult(loss.item(), update(state, parts, combined), conflicts)


def micro_batches(
    parts: StepParts, images: Tensor, labels: Tensor, indices: Tensor, distils: bool = False
) -> list[Targeted]:
    """Split the images of a step into `recipe.accumulate` micro-batches, mix them and add their targets.

    Args:
        distils: True if a distillation token learns from the teachers; else their predictions go into the targets.
    """
    count = min(parts.recipe.accumulate, len(labels))
    pieces = [tensor.tensor_split(count) for tensor in (images, labels, indices)]
    batches = []
    for image, label, index in zip(*pieces, strict=True):
        mixed, targets = parts.mixer(image, label)
        answers = None
        if parts.teachers is not None:
            with parts.around():
                if distils:
                    answers = parts.teachers.answers(mixed, index)
                else:
                    targets = parts.teachers.blend(mixed, targets, index)
        batches.append((mixed, targets, answers))
    return batches


def run_passes(
    state: TrainingState, parts: StepParts, batches: Sequence[Targeted], passes: Sequence[Pass], keys: Sequence[KeyT]
) -> tuple[dict[KeyT, Gradients], Tensor]:
    """Run every pass forward and backward on every micro-batch.

    Args:
        keys: each pass's key; gradients with equal keys are added.

    Returns:
        This rank's gradients of the scaled loss by key, and its mean loss over passes and images. Both count by the
        rank's share of the step, so that their means over ranks are those over images.
    """
    parameters = list(parts.parameters.values())
    sets: dict[KeyT, Gradients] = {key: [None] * len(parameters) for key in keys}
    total = torch.zeros((), device=batches[0][0].device)
    for batch, targets, answers in batches:
        share = len(batch) / parts.images
        outputs = [dict[str, Tensor]() for _ in range(1 if answers is None else 2)]
        for this, key in zip(passes, keys, strict=True):
            with parts.around():
                logits = run_pass(
                    state.model, parts.recipe, batch, this, patches=targets.ndim == 3, distilled=answers is not None
                )
            loss = torch.zeros((), device=total.device)
            tokens = _by_token(parts.recipe, logits.float(), targets, answers)
            for known, (own, wanted, weight) in zip(outputs, tokens, strict=True):
                loss = loss + weight * parts.objective(this, own, wanted, known)
                known[this.name] = own.detach()
            with accumulating(parameters, sets[key]):
                state.scaler.scale(loss * share).backward()
            total += loss.detach() * share / len(passes)
    return sets, total


def _by_token(
    recipe: Recipe, logits: Tensor, targets: Tensor, answers: Tensor | None
) -> list[tuple[Tensor, Tensor, float]]:
    """Return the logits, targets and weight of each loss of a pass.

    There is one; where a distillation token has answers to learn from, the class token's and that token's (DeiT).
    """
    if answers is None or recipe.teachers is None:
        return [(logits, targets, 1.0)]
    weight, own = recipe.teachers.weight, logits[:, 0]
    if targets.ndim == 3:  # with patches
        own = torch.cat([logits[:, :1], logits[:, 2:]], dim=1)
    return [(own, targets, 1 - weight), (logits[:, 1], answers, weight)]


def averaged(
    state: TrainingState, parts: StepParts, context: Context, sets: dict[KeyT, Gradients], loss: Tensor
) -> tuple[dict[KeyT, Gradients], Tensor]:
    """Average gradients and loss over workers, and remove fp16's loss scale for policies that compare and clip."""
    parameters, unscale = list(parts.parameters.values()), 1 / state.scaler.get_scale()
    found = {}
    mean = loss
    for key, gradients in sets.items():
        gradients, mean = average(parameters, gradients, loss, context.all_reduce, context.world_size)
        found[key] = scaled(gradients, unscale)
    return found, mean


def update(state: TrainingState, parts: StepParts, gradients: Gradients) -> float:
    """Clip and apply a gradient, and return its norm before clipping."""
    parameters, limit = list(parts.parameters.values()), parts.recipe.clip_grad
    # The scaler detects overflow while unscaling, so the gradient is scaled again.
    for parameter, gradient in zip(parameters, scaled(gradients, state.scaler.get_scale()), strict=True):
        parameter.grad = gradient
    state.scaler.unscale_(state.optimizer)
    by_norm = limit is not None and parts.recipe.clip_mode == "norm"
    norm = nn.utils.clip_grad_norm_(parameters, limit if by_norm else torch.inf)  # type: ignore[arg-type]
    if limit is not None and not by_norm:
        nn.utils.clip_grad_value_(parameters, limit)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)
    if state.ema is not None:
        state.ema.update(state.model)
    return norm.item()


def run_pass(
    model: nn.Module, recipe: Recipe, images: Tensor, this: Pass, patches: bool, distilled: bool = False
) -> Tensor:
    """Return the logits of one arch, or of a batch shared by several, for images and optionally their patches.

    Args:
        distilled: return the distillation token's logits apart, see `Supernet.forward`.

    Raises:
        ConfigError: the batch has fewer images than archs.
    """
    check_rows(this, len(images))
    drop(model, recipe, largest=this.role == "largest")
    archs = this.archs[0] if len(this.archs) == 1 else list(this.archs)
    asked = {"side": this.side, "patches": patches, "distilled": distilled}
    return model(images, archs, **{name: value for name, value in asked.items() if value})


def drop(model: nn.Module, recipe: Recipe, largest: bool) -> None:
    """Set the rates of stochastic depth and dropout for the next pass."""
    on = largest or recipe.drop_for == "all"
    model.drop_path = recipe.drop_path if on else 0.0  # type: ignore[assignment]
    model.dropout = recipe.dropout if on else 0.0  # type: ignore[assignment]
    model.drop_path_over = recipe.drop_path_over  # type: ignore[assignment]


def _candidate_losses(
    state: TrainingState, parts: StepParts, batch: Targeted, context: Context
) -> Callable[[Sequence[Arch]], list[float]]:
    def losses(archs: Sequence[Arch]) -> list[float]:
        drop(state.model, parts.recipe, largest=False)
        with torch.no_grad(), parts.around():
            targets = batch[1] if batch[1].ndim == 2 else batch[1][:, 0]  # of the images
            values = [nn.functional.cross_entropy(state.model(batch[0], arch).float(), targets) for arch in archs]
        means = torch.stack(values)
        if not state.per_rank:  # all ranks must choose the same archs
            means = means * (len(batch[0]) * parts.recipe.accumulate / parts.images)  # the rank's share
            context.all_reduce(means)
            means = means / context.world_size
        return means.tolist()

    return losses


def _compare(
    state: TrainingState,
    parts: StepParts,
    batches: Sequence[Targeted],
    by_key: dict[tuple[str, bool], Gradients],
    context: Context,
) -> dict[str, float]:
    """Count the conflicts between the largest subnet's gradient and the others'."""
    largest = [one for (_, is_largest), one in by_key.items() if is_largest]
    others = [one for (_, is_largest), one in by_key.items() if not is_largest]
    if not others:
        return {}
    if not largest:
        this = Pass("largest", "largest", (parts.space.largest(),))
        with unseen(state.model, context.device):
            found, _ = averaged(state, parts, context, *run_passes(state, parts, batches, [this], [True]))
        largest = [found[True]]
    config = parts.recipe.health.conflict
    return compare(added(*largest), added(*others), list(parts.parameters), config is not None and config.layers)

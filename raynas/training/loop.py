"""The training loop: a plain function of one process, independent of Ray.

Ranks, sums over ranks, checkpoints and progress are provided by a context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from raynas.data.load import Data
from raynas.data.loader import TrainLoader
from raynas.errors import ConfigError, TrainingCollapsed
from raynas.nets import build_supernet
from raynas.space import Space
from raynas.training.conflict import is_compared, ratios
from raynas.training.context import LocalContext, average_buffers, check_ranks_agree, preflight
from raynas.training.health import Diverged, ProbeImages, choose_probes, score_probes, verdict
from raynas.training.plan import Plan
from raynas.training.progress import Events
from raynas.training.recipe import Mixer, Recipe, build_optimizer, build_schedule, check_pairs
from raynas.training.sorting import sort_channels
from raynas.training.state import TrainingState
from raynas.training.step import Step, train_step
from raynas.training.streams import derive
from raynas.training.sync_batchnorm import over_workers
from raynas.training.teachers import Teachers

ROLLBACKS = 1  # rollbacks before a breakdown ends training


def train_loop(
    space: Space,
    data: Data,
    plan: Plan,
    recipe: Recipe,
    context: LocalContext | None = None,
    *,
    init: Mapping[str, Tensor] | None = None,
    train_on: str = "train",
    teachers: Teachers | None = None,
    build: Callable[[Space], nn.Module] = build_supernet,
) -> TrainingState:
    """Train the supernet of a space, or the one network of a one-point space, from scratch or from a checkpoint.

    Called again with the same arguments and checkpoints, it continues; a finished training returns at once.

    Args:
        space: the space, whose input size, channels and classes must match `data`.
        data: images to train on, and the search split for probes.
        context: rank, device, checkpoints and progress; by default one CPU process that keeps nothing.
        init: weights to start from instead of random ones.
        train_on: `train` or `train+search`.
        teachers: those of the recipe, loaded.
        build: builds the network of a space.

    Returns:
        The final state, with the trained `weights` and the `history` of epochs and rollbacks.

    Raises:
        ConfigError: plan and recipe do not fit the data, the space or the number of workers.
        UserError: the workers cannot reach each other, or have different weights or teachers.
        TrainingCollapsed: training broke down again after a rollback.
    """
    if (recipe.teachers is None) != (teachers is None):
        raise ConfigError("the teachers of the recipe must be loaded and given: load_teachers(recipe, data)")
    context = context or LocalContext()
    preflight(context)
    images_per_rank = recipe.micro_batch(context.world_size) * recipe.accumulate

    torch.manual_seed(derive(recipe.seed, "weights"))  # the same initial weights on every rank
    model = build(space)
    if init is not None:
        model.load_state_dict(dict(init))
    model = model.to(context.device).train()
    if teachers is not None:
        teachers.join(context)
    state = TrainingState(
        recipe=recipe,
        model=model,
        optimizer=build_optimizer(recipe, model),
        ema=_ema(recipe, model),
        scaler=torch.amp.GradScaler(context.device.type, enabled=recipe.amp == "fp16"),
        per_rank=plan.sampler.per_rank,
    )
    state.seed_streams(context)

    def load_images() -> TrainLoader:  # again after a rollback, which changes the data's seed
        return TrainLoader(
            data,
            recipe.augment,
            batch_size=images_per_rank,
            seed=state.data_seed,
            rank=context.rank,
            world_size=context.world_size,
            train_on=train_on,
            pin_memory=context.device.type == "cuda",
        )

    loader = load_images()
    if loader.shortage is not None and context.rank == 0:
        context.event({"kind": "message", "text": f"  {loader.shortage}"})
    check_pairs(recipe, loader.batch_size)
    autocast = _autocast(recipe, context.device)
    schedule = build_schedule(recipe, state.optimizer, len(loader))
    step = Step(
        space=space,
        recipe=recipe,
        parameters={name: p for name, p in model.named_parameters() if p.requires_grad},
        sampler=plan.build_sampler(),
        objective=plan.build_objective(),
        policy=plan.build_gradients(),
        mixer=Mixer(recipe, space.classes, _token_grid(recipe, model)),
        teachers=teachers,
        around=autocast if not recipe.sync_batchnorm or context.world_size == 1 else over_workers(autocast),
    )
    probes = choose_probes(space, recipe.seed)
    probe_images = ProbeImages(data, recipe.health.probe_images, recipe.seed, context)

    saved = context.load()
    if saved is not None:
        state.restore(saved, context)
        if state.rollbacks:
            loader = load_images()
        if context.rank == 0 and state.step:
            context.event({"kind": "message", "text": f"  going on after epoch {state.epoch}, step {state.step:,}"})
    if teachers is not None and state.epoch < recipe.epochs:
        teachers.remember(recipe, loader, context, autocast)
    check_ranks_agree(context, model)
    good = state.capture(context)
    progress = Events(state, len(loader), context)
    progress.history()

    while state.epoch < recipe.epochs:
        step.space = plan.open_space(space, state.epoch, recipe.epochs)
        if plan.sort_channels and not state.step_in_epoch and state.epoch <= plan.sort_channels * recipe.epochs:
            sort_channels(state.model, state.optimizer, None if state.ema is None else state.ema.module)
        try:
            train_epoch(state, step, loader, schedule, context, progress)
            for network in [model] if state.ema is None else [model, state.ema.module]:
                average_buffers(context, network)
            entry = end_epoch(state, loader, context)
            if state.epoch % recipe.health.probe_every == 0 or state.epoch == recipe.epochs:
                rows = score_probes(model, probes, probe_images, context, autocast)
                earlier = [row for old in state.history for row in old.get("probes", ())]
                entry["probes"] = rows
                if (broken := verdict(rows, earlier, probe_images.chance)) is not None:
                    raise Diverged(broken)
        except Diverged as error:
            where = f"epoch {state.epoch + bool(state.step_in_epoch)}, step {state.step}: {error}"
            if state.rollbacks >= ROLLBACKS:
                raise TrainingCollapsed(
                    f"training broke down again after a rollback, at {where}. The checkpoints kept are from before it; "
                    "lower recipe.lr, lengthen recipe.warmup_epochs or set recipe.clip_grad"
                ) from error
            state.roll_back(good, context, where)
            loader = load_images()
            good = state.capture(context)
            context.save(good, _score(state))
            progress.history()
            continue
        state.history.append(entry)
        if state.epoch % recipe.health.checksum_every == 0:
            check_ranks_agree(context, model)
        good = state.capture(context)
        if state.epoch % recipe.checkpoints.every_epochs == 0 or state.epoch == recipe.epochs:
            context.save(good, _score(state))
        progress.history()
    return state


def train_epoch(
    state: TrainingState, step: Step, loader: TrainLoader, schedule: Any, context: LocalContext, progress: Events
) -> None:
    """Train the rest of the current epoch.

    Raises:
        Diverged: the loss is not finite.
    """
    every, conflict = step.recipe.checkpoints.every_steps, step.recipe.health.conflict
    conflict = conflict if step.space.cardinality() > 1 else None
    skip = state.step_in_epoch
    began = time.monotonic()
    before = state.running.get("seconds", 0.0)
    for (images, labels), indices in zip(
        loader.epoch(state.epoch, skip), loader.indices(state.epoch, skip), strict=True
    ):
        schedule.step_update(state.step)
        images = images.to(context.device, non_blocking=True)
        labels = labels.to(context.device, non_blocking=True)
        comparing = conflict is not None and is_compared(state.step_in_epoch, len(loader), conflict.steps)
        found = train_step(state, step, images, labels, indices, context, comparing)
        loss, norm = found.loss, found.norm
        state.step += 1
        state.step_in_epoch += 1
        if not (loss - loss == 0):  # NaN or infinite; on every rank, since the loss is averaged
            raise Diverged(f"the loss is {loss}")
        seen = {"loss": loss, "images": len(labels) * context.world_size, "steps": 1, **found.conflicts}
        if norm - norm == 0:  # fp16's scaler skips a step whose gradient overflowed
            seen |= {"gradient_norm": norm, "norms": 1}
        state.running |= {name: state.running.get(name, 0.0) + value for name, value in seen.items()}
        state.running["seconds"] = before + time.monotonic() - began
        progress.step(loss)
        if every and state.step_in_epoch % every == 0 and state.step_in_epoch < len(loader):
            context.save(state.capture(context), _score(state))


def end_epoch(state: TrainingState, loader: TrainLoader, context: LocalContext) -> dict[str, Any]:
    """Close the epoch and return its entry for the history."""
    running = state.running
    state.epoch += 1
    state.step_in_epoch = 0
    state.running = {}
    return {
        "epoch": state.epoch,
        "step": state.step,
        "loss": running["loss"] / running["steps"],
        "gradient_norm": running.get("gradient_norm", 0.0) / max(running.get("norms", 0.0), 1.0),
        "learning_rate": state.optimizer.param_groups[0]["lr"],
        "images": int(running["images"]),
        "seconds": running["seconds"],
        "workers": context.world_size,
        **ratios(running),
    }


def _score(state: TrainingState) -> float:
    """Return the mean accuracy of the newest probes, 0 if there are none."""
    for entry in reversed(state.history):
        if "probes" in entry:
            return sum(row["accuracy"] for row in entry["probes"]) / len(entry["probes"])
    return 0.0


def _token_grid(recipe: Recipe, model: nn.Module) -> tuple[int, int] | None:
    """Return rows and columns of the patches that get labels; None for none."""
    return None if recipe.token_labels is None else model.token_grid  # type: ignore[return-value]


def _ema(recipe: Recipe, model: nn.Module) -> Any:
    if recipe.ema is None:
        return None
    from timm.utils import ModelEmaV3

    return ModelEmaV3(model, decay=recipe.ema)


def _autocast(recipe: Recipe, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    recipe.check_device(device.type)
    if recipe.amp == "none":
        return nullcontext
    dtype = torch.bfloat16 if recipe.amp == "bf16" else torch.float16
    return lambda: torch.autocast(device.type, dtype)

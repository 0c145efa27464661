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
from raynas.training.context import (
    Context,
    Interrupted,
    State,
    average_buffers,
    check_connection,
    check_ranks_agree,
    share_buffers,
)
from raynas.training.health import Diverged, ProbeImages, choose_probes, score_probes, verdict
from raynas.training.memory import peak_memory
from raynas.training.plan import Plan
from raynas.training.progress import Events
from raynas.training.recipe import Mixer, Recipe, build_optimizer, build_schedule
from raynas.training.sorting import sort_channels
from raynas.training.state import TrainingState
from raynas.training.step import StepParts, train_step
from raynas.training.streams import derive
from raynas.training.sync_batchnorm import over_workers
from raynas.training.teachers import Teachers

ROLLBACKS = 1  # rollbacks before a breakdown ends training
MOST_OF_START = 0.02  # share of the first weights in the averaged ones that is not told
ASK_EVERY = 10  # steps between two questions whether this process will be ended


def train_loop(
    space: Space,
    data: Data,
    plan: Plan,
    recipe: Recipe,
    context: Context | None = None,
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
        init: weights to start from instead of random ones, on every rank; rank 0's buffers count.
        train_on: `train` or `train+search`.
        teachers: those of the recipe, loaded.
        build: builds the network of a space.

    Returns:
        The final state, with the trained `weights` and the `history` of epochs and rollbacks.

    Raises:
        ConfigError: plan and recipe do not fit the data, the space or the number of workers.
        UserError: the workers cannot reach each other, or have different weights or teachers.
        TrainingCollapsed: training broke down again after a rollback.
        Interrupted: this process will be ended; the state is saved.
    """
    trainer = Trainer(space, data, plan, recipe, context or Context(), init, train_on, teachers, build)
    trainer.resume()
    trainer.train()
    return trainer.state


class Trainer:
    """The parts of one training, and its loop over epochs; arguments and errors as for `train_loop`.

    Attributes:
        state: everything that changes and is saved.
        good: the last state that is known to be healthy.
    """

    good: State
    progress: Events

    def __init__(
        self,
        space: Space,
        data: Data,
        plan: Plan,
        recipe: Recipe,
        context: Context,
        init: Mapping[str, Tensor] | None,
        train_on: str,
        teachers: Teachers | None,
        build: Callable[[Space], nn.Module],
    ):
        if (recipe.teachers is None) != (teachers is None):
            raise ConfigError("the teachers of the recipe must be loaded and given: load_teachers(recipe, data)")
        check_connection(context)
        self.space, self.data, self.plan, self.recipe = space, data, plan, recipe
        self.context, self.train_on, self.teachers = context, train_on, teachers
        recipe.micro_batch(context.world_size)

        torch.manual_seed(derive(recipe.seed, "weights"))  # the same initial weights on every rank
        model = build(space)
        if init is not None:
            model.load_state_dict(dict(init))
        self.model = model = model.to(context.device).train()
        if init is not None:
            share_buffers(context, model)
        if teachers is not None:
            teachers.join(context)
        self.state = TrainingState(
            recipe=recipe,
            model=model,
            optimizer=build_optimizer(recipe, model),
            ema=_ema(recipe, model),
            scaler=torch.amp.GradScaler(context.device.type, enabled=recipe.amp == "fp16"),
            per_rank=plan.sampler.per_rank,
        )
        self.state.seed_streams(context)

        self.loader = self._loader()
        for warning in (self.loader.shortage, _slow_average(recipe, recipe.epochs * len(self.loader))):
            if warning is not None:
                self._tell(warning)
        self.autocast = autocast = _autocast(recipe, context.device)
        self.schedule = build_schedule(recipe, self.state.optimizer, len(self.loader))
        grid: Any = None if recipe.token_labels is None else model.token_grid  # of the patches that get labels
        self.parts = StepParts(
            space=space,
            recipe=recipe,
            parameters={name: p for name, p in model.named_parameters() if p.requires_grad},
            sampler=plan.build_sampler(),
            objective=plan.build_objective(),
            policy=plan.build_gradients(),
            mixer=Mixer(recipe, space.classes, grid),
            teachers=teachers,
            around=autocast if not recipe.sync_batchnorm or context.world_size == 1 else over_workers(autocast),
            images=self.loader.batch_size / context.world_size,
        )
        self.probes = choose_probes(space, recipe.seed)
        self.probe_images = ProbeImages(data, recipe.health.probe_images, recipe.seed, context)

    def _loader(self) -> TrainLoader:
        """Build the loader of training images; its seed changes with every rollback."""
        return TrainLoader(
            self.data,
            self.recipe.augment,
            batch_size=self.recipe.batch_size,
            seed=self.state.data_seed,
            rank=self.context.rank,
            world_size=self.context.world_size,
            together=self.recipe.dealt_together,
            train_on=self.train_on,
            pin_memory=self.context.device.type == "cuda",
        )

    def _tell(self, text: str) -> None:
        if self.context.rank == 0:
            self.context.event({"kind": "message", "text": f"  {text}"})

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        state, context = self.state, self.context
        saved = context.load()
        if saved is not None:
            state.restore(saved, context)
            if state.rollbacks:
                self.loader = self._loader()
            if state.step:
                workers = f" with {context.world_size} workers" if context.world_size > 1 else ""
                self._tell(f"going on after epoch {state.epoch}, step {state.step:,}{workers}")
        if self.teachers is not None and state.epoch < self.recipe.epochs:
            self.teachers.remember(self.recipe, self.loader, context, self.autocast)
        check_ranks_agree(context, self.model)
        self.good = state.capture(context)
        self.progress = Events(state, self.loader, context)
        self.progress.history()

    def train(self) -> None:
        """Train the remaining epochs."""
        while self.state.epoch < self.recipe.epochs:
            try:
                self._begin_epoch()
                self._train_epoch()
                entry = self._end_epoch()
            except Diverged as error:
                self._roll_back(error)
            else:
                self._keep(entry)
            self.progress.history()

    def _begin_epoch(self) -> None:
        state, recipe, plan = self.state, self.recipe, self.plan
        self.parts.space = plan.open_space(self.space, state.epoch, recipe.epochs)
        if plan.sort_channels and not state.step_in_epoch and state.epoch <= plan.sort_channels * recipe.epochs:
            sort_channels(self.model, state.optimizer, None if state.ema is None else state.ema.module)

    def _train_epoch(self) -> None:
        """Train the rest of the current epoch.

        Raises:
            Diverged: the loss is not finite.
            Interrupted: this process will be ended; the state is saved.
        """
        state, context, steps = self.state, self.context, len(self.loader)
        every, conflict = self.recipe.checkpoints.every_steps, self.recipe.health.conflict
        conflict = conflict if self.parts.space.cardinality() > 1 else None
        skip = state.step_in_epoch
        began = time.monotonic()
        before = state.running.get("seconds", 0.0)
        for (images, labels), indices in zip(
            self.loader.epoch(state.epoch, skip), self.loader.indices(state.epoch, skip), strict=True
        ):
            self.schedule.step_update(state.step)
            images = images.to(context.device, non_blocking=True)
            labels = labels.to(context.device, non_blocking=True)
            comparing = conflict is not None and is_compared(state.step_in_epoch, steps, conflict.steps)
            found = train_step(state, self.parts, images, labels, indices, context, comparing)
            loss, norm = found.loss, found.norm
            state.step += 1
            state.step_in_epoch += 1
            if not (loss - loss == 0):  # NaN or infinite; on every rank, since the loss is averaged
                raise Diverged(f"the loss is {loss}")
            seen = {"loss": loss, "images": self.loader.batch_size, "steps": 1, **found.conflicts}
            if norm - norm == 0:  # fp16's scaler skips a step whose gradient overflowed
                seen |= {"gradient_norm": norm, "norms": 1}
            state.running |= {name: state.running.get(name, 0.0) + value for name, value in seen.items()}
            state.running["seconds"] = before + time.monotonic() - began
            self.progress.step(loss)
            if every and state.step_in_epoch % every == 0 and state.step_in_epoch < steps:
                self._save(state.capture(context))
            if state.step % ASK_EVERY == 0 and context.must_end():
                self._save(state.capture(context))
                raise Interrupted

    def _end_epoch(self) -> dict[str, Any]:
        """Close the epoch, score the probes if it is time, and return the epoch's entry for the history.

        Raises:
            Diverged: the probes have collapsed.
        """
        state, recipe = self.state, self.recipe
        for network in [self.model] if state.ema is None else [self.model, state.ema.module]:
            average_buffers(self.context, network, self.loader.share)
        running = state.running
        state.epoch += 1
        state.step_in_epoch = 0
        state.running = {}
        entry = {
            "epoch": state.epoch,
            "step": state.step,
            "loss": running["loss"] / running["steps"],
            "gradient_norm": running.get("gradient_norm", 0.0) / max(running.get("norms", 0.0), 1.0),
            "learning_rate": max(group["lr"] for group in state.optimizer.param_groups),  # of late layers
            "images": int(running["images"]),
            "seconds": running["seconds"],
            "workers": self.context.world_size,
            "memory": self._memory(),
            **ratios(running),
        }
        if state.epoch % recipe.health.probe_every == 0 or state.epoch == recipe.epochs:
            rows = score_probes(self.model, self.probes, self.probe_images, self.context, self.autocast)
            earlier = [row for old in state.history for row in old.get("probes", ())]
            if (broken := verdict(rows, earlier, self.probe_images.chance)) is not None:
                raise Diverged(broken)
            entry["probes"] = rows
        return entry

    def _memory(self) -> int:
        """Return the peak memory of this training so far, in bytes; of the ranks the largest."""
        peak = torch.tensor(float(peak_memory(self.context.device)), dtype=torch.float64, device=self.context.device)
        self.context.all_reduce(peak, "max")
        return int(peak)

    def _keep(self, entry: dict[str, Any]) -> None:
        """Add an epoch to the history, and save the state if it is time."""
        state, recipe = self.state, self.recipe
        state.history.append(entry)
        if state.epoch % recipe.health.checksum_every == 0:
            check_ranks_agree(self.context, self.model)
        self.good = state.capture(self.context)
        if state.epoch % recipe.checkpoints.every_epochs == 0 or state.epoch == recipe.epochs:
            self._save(self.good)

    def _roll_back(self, error: Diverged) -> None:
        """Return to the last good state, with another order of data and archs.

        Raises:
            TrainingCollapsed: training has been rolled back before.
        """
        state = self.state
        where = f"epoch {state.epoch + bool(state.step_in_epoch)}, step {state.step}: {error}"
        if state.rollbacks >= ROLLBACKS:
            raise TrainingCollapsed(
                f"training broke down again after a rollback, at {where}. The checkpoints kept are from before it; "
                "lower recipe.lr, lengthen recipe.warmup_epochs or set recipe.clip_grad"
            ) from error
        state.roll_back(self.good, self.context, where)
        self.loader = self._loader()
        self.good = state.capture(self.context)
        self._save(self.good)

    def _save(self, saved: State) -> None:
        """Keep a checkpoint, rated by the mean accuracy of the newest probes, 0 if there are none."""
        probes = next((entry["probes"] for entry in reversed(self.state.history) if "probes" in entry), ())
        self.context.save(saved, sum(row["accuracy"] for row in probes) / max(len(probes), 1))


def _ema(recipe: Recipe, model: nn.Module) -> Any:
    if recipe.ema is None:
        return None
    from timm.utils import ModelEmaV3

    return ModelEmaV3(model, decay=recipe.ema)


def _slow_average(recipe: Recipe, steps: int) -> str | None:
    """Return what to tell if the averaged weights still hold much of those at the start; None if they do not."""
    if recipe.ema is None or (share := recipe.ema**steps) < MOST_OF_START:
        return None
    return (
        f"recipe.ema {recipe.ema:g} is slow for {steps:,} steps: {share:.0%} of the averaged weights, which training "
        f"returns, will be those at its start: give less, such as {max(0.5, 1 - 5 / steps):.3g}, or leave it out"
    )


def _autocast(recipe: Recipe, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    recipe.check_device(device.type)
    if recipe.amp == "none":
        return nullcontext
    dtype = torch.bfloat16 if recipe.amp == "bf16" else torch.float16
    return lambda: torch.autocast(device.type, dtype)

"""The state of training, and its checkpoint form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from raynas.training.context import Context, State
from raynas.training.recipe import Recipe
from raynas.training.streams import capture_global_streams, derive, restore_global_streams, seed_streams

FORMAT = 1


@dataclass
class TrainingState:
    """Everything that changes during training.

    Attributes:
        sampler: the subnet sampler's generator.
        per_rank: True if ranks draw different archs.
        epoch: finished epochs.
        step_in_epoch: finished optimiser steps of the current epoch.
        step: finished optimiser steps in all.
        rollbacks: number of returns to a good state; each changes the order of data and archs.
        running: sums over the steps of the current epoch, for its row.
        history: one entry for each finished epoch and each rollback; kept in rollbacks.
    """

    recipe: Recipe
    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Any
    scaler: torch.amp.GradScaler
    per_rank: bool
    sampler: np.random.Generator = field(default_factory=np.random.default_rng)
    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    rollbacks: int = 0
    running: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def seed_streams(self, context: Context) -> None:
        """Seed the random streams for this rank and number of rollbacks."""
        rank = context.rank
        seed_streams(derive(self.recipe.seed, "global", rank, self.rollbacks))
        sampler_seed = derive(self.recipe.seed, "sampler", rank if self.per_rank else 0, self.rollbacks)
        self.sampler = np.random.default_rng(sampler_seed)

    @property
    def data_seed(self) -> int:
        """Seed of the order and augmentation of the training images."""
        return derive(self.recipe.seed, "data", self.rollbacks)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The result of training: averaged weights if there are any, else the raw ones."""
        model = self.model if self.ema is None else self.ema.module
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}

    def capture(self, context: Context) -> State:
        """Copy the state to the CPU, as values for `torch.load(weights_only=True)`; every rank must call it."""
        mine = {
            "sampler": self.sampler.bit_generator.state,
            "global": capture_global_streams(context.device),
        }
        return {
            "format": FORMAT,
            "model": _copy(self.model.state_dict()),
            "optimizer": _copy(self.optimizer.state_dict()),
            "ema": None if self.ema is None else _copy(self.ema.module.state_dict()),
            "scaler": self.scaler.state_dict(),
            "streams": context.gather(mine),
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "step": self.step,
            "rollbacks": self.rollbacks,
            "running": dict(self.running),
            "history": _copy(self.history),
        }

    def restore(self, saved: State, context: Context) -> None:
        """Restore a saved state; ranks that were not there when it was saved start new random streams."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(_copy(saved["optimizer"]))  # the optimiser keeps the given tensors
        if self.ema is not None:
            self.ema.module.load_state_dict(saved["ema"] if saved["ema"] is not None else saved["model"])
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        self.epoch, self.step_in_epoch, self.step = saved["epoch"], saved["step_in_epoch"], saved["step"]
        self.rollbacks, self.running, self.history = saved["rollbacks"], dict(saved["running"]), _copy(saved["history"])
        self.seed_streams(context)
        streams = saved["streams"]
        if context.rank < len(streams):
            restore_global_streams(streams[context.rank]["global"], context.device)
            self.sampler.bit_generator.state = streams[context.rank]["sampler"]
        elif not self.per_rank:
            self.sampler.bit_generator.state = streams[0]["sampler"]

    def roll_back(self, good: State, context: Context, verdict: str) -> None:
        """Return to a good state, with another order of data and archs."""
        history, rollbacks = self.history, self.rollbacks
        self.restore(good, context)
        self.rollbacks = rollbacks + 1
        self.seed_streams(context)
        # The order of data has changed, so a partial epoch starts again.
        self.step -= self.step_in_epoch
        self.step_in_epoch, self.running = 0, {}
        self.history = [*history, {"epoch": self.epoch, "step": self.step, "event": f"rollback: {verdict}"}]


def _copy(value: Any) -> Any:
    """Return a deep copy with every tensor on the CPU."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), value)

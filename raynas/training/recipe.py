"""The recipe: optimiser, schedule, regularisation and precision, under timm's names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from raynas.config import Config, Seed
from raynas.data.augment import AugmentConfig
from raynas.data.token_labels import TokenLabelsConfig
from raynas.errors import ConfigError, reason
from raynas.text import shown
from raynas.training.teacher_config import TeachersConfig

if TYPE_CHECKING:
    import torch
    from timm.scheduler.scheduler import Scheduler

LEAST_ALPHA = 1e-6
"""The least alpha of Mixup and CutMix but 0: far below any that mixes."""


Epoch = Annotated[int, Field(ge=1, le=10**6)]


class CheckpointConfig(Config):
    """Checkpoint intervals of training.

    Attributes:
        every_epochs: epochs between checkpoints (and always after the last).
        every_steps: optimiser steps between additional checkpoints within an epoch.
        keep: number of checkpoints to keep: the newest, and those with the best probes.
    """

    every_epochs: int = Field(default=1, ge=1, le=10**6)
    every_steps: int | None = Field(default=None, ge=1, le=10**9)
    keep: int = Field(default=3, ge=1, le=1000)


class ConflictConfig(Config):
    """Measurement of gradient conflicts between the largest subnet and the others (see `raynas.training.conflict`).

    Attributes:
        steps: number of compared steps of each epoch, spread evenly, or all if there are fewer. Each costs one more
            pass if the sampler does not run the largest subnet.
        layers: True to also keep the ratio of every layer.
    """

    steps: int = Field(default=4, ge=1, le=10**6)
    layers: bool = False


class HealthConfig(Config):
    """Health checks of training.

    Attributes:
        probe_every: epochs between scorings of the probe subnets (the last epoch is always scored).
        probe_images: number of images of the search split to score probes on, fixed over the run.
        checksum_every: epochs between comparisons of the parameters over ranks.
        conflict: measurement of the conflict ratio of every epoch; None does not measure it.
    """

    probe_every: int = Field(default=1, ge=1, le=10**6)
    probe_images: int = Field(default=1000, ge=1, le=10**7)
    checksum_every: int = Field(default=1, ge=1, le=10**6)
    conflict: ConflictConfig | None = None


class Recipe(Config):
    """Hyperparameters of training.

    Attributes:
        epochs: passes over the training images.
        batch_size: images of one optimiser step, over all workers and accumulated micro-batches. It need not be a
            multiple of their number: every image counts the same.
        accumulate: number of micro-batches of one worker's share of a step.
        opt: a timm optimiser name.
        opt_args: arguments of the optimiser, such as `{betas: [0.9, 0.95]}`.
        lr: learning rate for `lr_base_batch` images; scaled linearly with `batch_size`, see `effective_lr`.
        lr_base_batch: reference batch size of `lr`; None does not scale `lr`.
        scale_all_lrs: scale `warmup_lr` and `min_lr` like `lr` (NASViT).
        weight_decay: weight decay, except for 1-D tensors and the parameters of the model's `no_weight_decay()`.
        momentum: momentum, for optimisers that have one.
        sched: a timm schedule, stepped at every update, after a linear warm-up.
        decay_epochs: epochs between two decays, for `step`.
        decay_milestones: ascending epochs after each of which the rate decays, for `multistep`.
        decay_rate: factor of one decay (at most 1), for `step` and `multistep`; the power of `poly`.
        warmup_epochs: epochs of the linear warm-up; by default half of the epochs if these are fewer than 5.
        warmup_lr: initial rate of the warm-up; by default at most its final rate.
        min_lr: final rate of the schedule; by default at most its initial rate.
        smoothing: label smoothing.
        mixup, cutmix: alphas of the Beta distributions of the mixing strength; 0 is off.
        mixup_prob: probability of mixing a batch.
        mixup_switch_prob: probability of CutMix if both are on.
        mixup_mode: unit of separate mixing, as in timm: the `batch`, a `pair` of images or every image (`elem`).
        token_labels: labels for every patch, with their own mixing; the space needs a token head. None for none.
        teachers: external teachers, whose predictions replace labels; None for none.
        augment: augmentation of single images.
        drop_path: drop-path rate of the deepest block.
        drop_path_over: range over which the rate rises from 0: all places of the `supernet`, of which a single network
            fills a part (AutoFormer), or the blocks of the `network` itself (ViT-ResNAS, S3).
        dropout: dropout rate of features before the classifier.
        drop_for: passes with drop path and dropout: `all`, or only the `largest` subnet's (BigNAS; AlphaNet), as
            which a network that is trained alone counts.
        clip_grad: bound on the gradient; None does not clip.
        clip_mode: bounded quantity: the global `norm`, or every `value` (AlphaNet).
        ema: decay of an exponential moving average of the weights; None for none. Training then returns the averaged
            weights; probes score the raw ones.
        amp: autocast precision on GPU.
        sync_batchnorm: BatchNorm statistics over the images of all workers.
        seed: seed of everything random in training.
        checkpoints: checkpoint intervals.
        health: health checks.
    """

    epochs: int = Field(ge=1, le=10**6)
    batch_size: int = Field(ge=1, le=10**7)
    accumulate: int = Field(default=1, ge=1, le=10**4)
    opt: str = "adamw"
    opt_args: dict[str, Any] = Field(default_factory=dict)
    lr: float = Field(gt=0, le=1e4)
    lr_base_batch: int | None = Field(default=512, ge=1, le=10**7)
    scale_all_lrs: bool = False
    weight_decay: float = Field(default=0.05, ge=0, le=1e3)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    sched: Literal["cosine", "tanh", "step", "multistep", "poly", "constant"] = "cosine"
    decay_epochs: float = Field(default=90, ge=0.1, le=1e6)
    decay_milestones: tuple[Epoch, ...] = Field(default=(90, 180, 270), max_length=1000)
    decay_rate: float = Field(default=0.1, gt=0, le=100)
    warmup_epochs: int = Field(default=5, ge=0, le=10**6)
    warmup_lr: float = Field(default=1e-6, ge=0, le=1e4)
    min_lr: float = Field(default=1e-5, ge=0, le=1e4)
    smoothing: float = Field(default=0.1, ge=0, lt=1)
    mixup: float = Field(default=0.0, ge=0, le=1000)
    cutmix: float = Field(default=0.0, ge=0, le=1000)
    mixup_prob: float = Field(default=1.0, ge=0, le=1)
    mixup_switch_prob: float = Field(default=0.5, ge=0, le=1)
    mixup_mode: Literal["batch", "pair", "elem"] = "batch"
    token_labels: TokenLabelsConfig | None = None
    teachers: TeachersConfig | None = None
    augment: AugmentConfig = AugmentConfig()
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    drop_path_over: Literal["supernet", "network"] = "supernet"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    drop_for: Literal["all", "largest"] = "all"
    clip_grad: float | None = Field(default=None, gt=0, le=1e9)
    clip_mode: Literal["norm", "value"] = "norm"
    ema: float | None = Field(default=None, gt=0, lt=1)
    amp: Literal["none", "bf16", "fp16"] = "none"
    sync_batchnorm: bool = False
    seed: Seed = 0
    checkpoints: CheckpointConfig = CheckpointConfig()
    health: HealthConfig = HealthConfig()

    @model_validator(mode="after")
    def _give_way(self) -> Recipe:
        """Fit defaults to the given values."""
        highest = self.lr if self.scale_all_lrs else self.effective_lr
        fitting = {
            "warmup_epochs": self.warmup_epochs if self.warmup_epochs <= self.epochs else self.epochs // 2,
            "warmup_lr": min(self.warmup_lr, highest),
            "min_lr": min(self.min_lr, highest),
        }
        # Bypasses the frozen model and keeps these fields marked as defaults, for overrides.
        self.__dict__.update({name: value for name, value in fitting.items() if name not in self.model_fields_set})
        return self

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        for name in ("warmup_lr", "min_lr"):
            rate = self.scaled_lr(getattr(self, name)) if self.scale_all_lrs else getattr(self, name)
            used = self.warmup_epochs > 0 if name == "warmup_lr" else self.sched != "constant"
            if used and rate > self.effective_lr * (1 + 1e-9):
                raise ValueError(
                    f"{name} ({rate:g}) is above the learning rate ({self.effective_lr:g}; lr is for lr_base_batch "
                    "images)"
                )
        if self.sched in ("step", "multistep") and self.decay_rate > 1:
            raise ValueError(f"decay_rate: at most 1 for sched: {self.sched}, since the learning rate would grow")
        if list(self.decay_milestones) != sorted(set(self.decay_milestones)):
            raise ValueError("decay_milestones: give ascending epochs")
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warmup_epochs ({self.warmup_epochs}) is longer than the training ({self.epochs} epochs)")
        for name in ("mixup", "cutmix"):  # numpy's Beta distribution has no draws for the least of numbers
            if 0 < getattr(self, name) < LEAST_ALPHA:
                raise ValueError(f"{name}: an alpha is 0, for none, or at least {LEAST_ALPHA:g}")
        if self.token_labels is not None and self.token_labels.mixing != "none" and self.mixes:
            raise ValueError("token_labels has mixing of its own: leave out mixup and cutmix, or set its mixing: none")
        if self.token_labels is not None and self.cutmix:
            raise ValueError("cutmix pastes parts of patches, which have no label: use token_labels' own mixing")
        return self

    @property
    def effective_lr(self) -> float:
        """The learning rate after warm-up."""
        return self.scaled_lr(self.lr)

    @property
    def shown_opt(self) -> str:
        """The optimiser's name and arguments, for messages."""
        return f"recipe.opt {shown(self.opt)}" + (f" {shown(self.opt_args)}" if self.opt_args else "")

    def scaled_lr(self, lr: float) -> float:
        """Scale a learning rate from `lr_base_batch` to `batch_size` images."""
        return lr * self.batch_size / self.lr_base_batch if self.lr_base_batch else lr

    @property
    def mixes(self) -> bool:
        """True if images of a batch are mixed."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def drops(self) -> bool:
        """True if blocks or features are dropped at random."""
        return self.drop_path > 0 or self.dropout > 0

    def check_device(self, device: str) -> None:
        """Check that the recipe can be trained on a device.

        Args:
            device: the device's type, `cpu` or `cuda`.

        Raises:
            ConfigError: fp16 on a CPU.
        """
        if self.amp == "fp16" and device == "cpu":
            raise ConfigError("recipe.amp fp16 needs a GPU: set recipe.amp to none (or bf16) to train on CPU")

    @property
    def dealt_together(self) -> int:
        """Images of a step that go to one worker together: mixing needs pairs in each of its micro-batches."""
        return 2 * self.accumulate if self.mixes else 1

    def micro_batch(self, workers: int) -> int:
        """Return the number of images of the largest forward pass on one worker.

        Raises:
            ConfigError: there is no worker, a micro-batch would be empty, or mixed images cannot be paired.
        """
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, not {workers}")
        together = self.dealt_together
        if self.batch_size % together:
            raise ConfigError(
                f"recipe: Mixup and CutMix pair the images of a micro-batch: use a batch_size that is a multiple of "
                f"{together} (twice accumulate), not {self.batch_size}"
            )
        least = workers * max(together, self.accumulate)
        if self.batch_size < least:
            raise ConfigError(
                f"recipe.batch_size {self.batch_size} cannot be dealt to {workers} worker(s) x {self.accumulate} "
                f"micro-batch(es): use at least {least}, or fewer workers"
            )
        share = math.ceil(self.batch_size / (workers * together)) * together
        return math.ceil(share / self.accumulate)


def build_optimizer(recipe: Recipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build timm's optimiser, without weight decay on 1-D tensors and the parameters of `model.no_weight_decay()`.

    Raises:
        ConfigError: timm has no such optimiser, or it does not take these arguments.
    """
    from timm.optim import create_optimizer_v2

    try:
        return create_optimizer_v2(
            model,
            opt=recipe.opt,
            lr=recipe.effective_lr,
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            **recipe.opt_args,
        )
    except Exception as error:  # timm's and torch's optimisers raise any kind of error
        raise ConfigError(f"{recipe.shown_opt}: {reason(error)}") from error


def build_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> Scheduler:
    """Build timm's schedule: `schedule.step_update(n)` sets the learning rates of update n, which depend on n only."""
    from timm.scheduler import create_scheduler_v2

    scale = recipe.scaled_lr if recipe.scale_all_lrs else float
    schedule, _ = create_scheduler_v2(
        optimizer,
        sched=recipe.sched,
        num_epochs=recipe.epochs,
        decay_epochs=recipe.decay_epochs,
        decay_milestones=list(recipe.decay_milestones),
        decay_rate=recipe.decay_rate,
        min_lr=scale(recipe.min_lr),
        warmup_lr=scale(recipe.warmup_lr),
        warmup_epochs=recipe.warmup_epochs,
        step_on_epochs=False,
        updates_per_epoch=steps_per_epoch,
    )
    return schedule


class Mixer:
    """A conversion of integer labels to target distributions, with mixing of images if the recipe has it.

    timm draws from numpy's global stream, which training seeds and saves in checkpoints.

    Args:
        recipe: the recipe.
        classes: number of classes.
        token_grid: rows and columns of patches, if they get labels.
    """

    def __init__(self, recipe: Recipe, classes: int, token_grid: tuple[int, int] | None = None):
        self.classes = classes
        self.token_labels = recipe.token_labels
        self.token_grid = token_grid
        self.smoothing = recipe.smoothing
        self._mixup = None
        if recipe.mixes:
            from timm.data import Mixup

            self._mixup = Mixup(
                mixup_alpha=recipe.mixup,
                cutmix_alpha=recipe.cutmix,
                prob=recipe.mixup_prob,
                switch_prob=recipe.mixup_switch_prob,
                mode=recipe.mixup_mode,
                label_smoothing=recipe.smoothing,
                num_classes=classes,
            )

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert images [batch, channels, height, width] and labels [batch] to images and targets.

        Targets are [batch, classes]; with token labels [batch, 1 + patches, classes], see `mix_tokens`.
        """
        from timm.data.mixup import mixup_target

        from raynas.data.token_mixing import mix_tokens

        if self._mixup is not None:
            images, targets = self._mixup(images, labels)
        else:
            targets = mixup_target(labels, self.classes, lam=1.0, smoothing=self.smoothing)
        if self.token_labels is None or self.token_grid is None:
            return images, targets
        return mix_tokens(images, targets, self.token_grid, self.token_labels)

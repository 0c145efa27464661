"""Training of a segmenter or a detector: seeded, in one process; killed and called again, it goes on."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from raynas.config import Config, Seed
from raynas.data.streams import global_streams_kept, mix
from raynas.errors import UserError
from raynas.filesystem import whole_file
from raynas.progress.reporter import Progress, reporter, silent


class DenseRecipe(Config):
    """Recipe of the training of a segmenter or a detector: AdamW, a warm-up, and a cosine to zero, step by step.

    Attributes:
        epochs: number of passes over the scenes.
        batch_size: scenes of a step.
        lr: the highest learning rate.
        weight_decay: of tensors with more than one dimension.
        warmup: share of all steps in which the rate rises linearly.
        clip: largest norm of all gradients together.
        seed: seed of the head's weights, the order of scenes, and what is random in training.
    """

    epochs: int = pydantic.Field(default=20, ge=1, le=10**4)
    batch_size: int = pydantic.Field(default=16, ge=2, le=10**4)
    lr: float = pydantic.Field(default=1e-3, gt=0)
    weight_decay: float = pydantic.Field(default=0.05, ge=0)
    warmup: float = pydantic.Field(default=0.1, ge=0, lt=1)
    clip: float = pydantic.Field(default=1.0, gt=0)
    seed: Seed = 0


def train_dense(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    count: int,
    recipe: DenseRecipe,
    kept: Path | None = None,
    progress: Progress = silent,
) -> list[float]:
    """Train a model in place.

    Args:
        loss_of: the loss of some scenes, given their indices int64 [batch].
        count: number of scenes to train on.
        kept: file that holds the state after every epoch; if it is there, training goes on from it.

    Returns:
        The mean loss of each epoch.

    Raises:
        UserError: there are fewer scenes than a batch, the loss is not finite, or the file is of another model.
    """
    steps = count // recipe.batch_size
    if not steps:
        raise UserError(f"{count} scenes are fewer than a batch of {recipe.batch_size}: make more, or smaller batches")
    total = steps * recipe.epochs
    optimizer = create_optimizer_v2(model, "adamw", lr=recipe.lr, weight_decay=recipe.weight_decay)

    def rate(step: int) -> float:
        """Return the learning rate of a step, as a share of the highest."""
        warmup = recipe.warmup * total
        return (step + 1) / (warmup + 1) if step < warmup else 0.5 + 0.5 * math.cos(math.pi * step / total)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    losses: list[float] = []
    if kept is not None and kept.exists():
        state = torch.load(kept, weights_only=True, map_location="cpu")
        try:
            for name, part in parts.items():
                part.load_state_dict(state[name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise UserError(f"{kept} is of another model: give another folder") from error
        losses = state["losses"]
    model.train()
    with global_streams_kept(), reporter(progress).doing("training", recipe.epochs, "epochs") as activity:
        for epoch in range(len(losses), recipe.epochs):
            activity.update(epoch)
            torch.manual_seed(mix(recipe.seed, 1, epoch))  # so that an epoch is the same after a kill
            order = torch.randperm(count)[: steps * recipe.batch_size].view(steps, -1)
            added = 0.0
            for step, indices in enumerate(order):
                loss = loss_of(indices)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                schedule.step()
                added += float(loss.detach())
                activity.update(epoch + (step + 1) / steps, f"loss {added / (step + 1):.3f}")
            losses.append(added / steps)
            if not math.isfinite(losses[-1]):
                raise UserError(f"the loss is {losses[-1]} after epoch {epoch + 1}: lower the learning rate")
            if kept is not None:
                stream = io.BytesIO()
                torch.save({**{name: part.state_dict() for name, part in parts.items()}, "losses": losses}, stream)
                with whole_file(kept) as file:
                    file.write(stream.getvalue())
    return losses

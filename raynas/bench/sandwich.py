"""Timing of a sandwich step, and of the steps of its subnets on their own, in turns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import Measured, in_turns
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.progress.reporter import Progress, silent
from raynas.space import Space, load_space
from raynas.training.context import Context
from raynas.training.plan import Plan
from raynas.training.recipe import Mixer, Recipe, build_optimizer
from raynas.training.samplers import Pass, sandwich
from raynas.training.state import TrainingState
from raynas.training.step import StepParts, train_step


def bench_sandwich(
    space: Space | str = "autoformer/tiny",
    rounds: int = 5,
    batch_size: int = 4,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Measured]:
    """Time a training step of the largest, the smallest and two random subnets, and a step of each of them, extracted.

    Every step is a whole one: forward, backward and the update of AdamW, on the same images.

    Returns:
        Seconds of the sandwich step beside the sum of the others'.
    """
    space = load_space(space) if isinstance(space, str) else space
    passes = sandwich(space, np.random.default_rng(0), lambda archs: [])
    with on_device(device, threads) as place:
        supernet = build_supernet(space).to(place)
        together = _step(supernet, passes, batch_size, place)
        apart = []
        for each in passes:
            own = supernet.extract(each.archs[0])
            apart.append(_step(own, [Pass("largest", "largest", (own.space.largest(),))], batch_size, place))
        kinds = {
            "sandwich": lambda: seconds(place, together),
            "apart": lambda: sum(seconds(place, step) for step in apart),
        }
        values = in_turns(kinds, rounds, progress)
    name = f"sandwich step of {space.name} / its {len(passes)} subnets' own steps"
    return [Measured(name, "s", values["sandwich"], values["apart"])]


def _step(model: Supernet, passes: list[Pass], batch_size: int, device: torch.device) -> Callable[[], object]:
    """Return a function that runs one training step of a network, with given passes."""
    recipe, plan, space = Recipe(epochs=1, batch_size=batch_size, lr=1e-3, amp="none"), Plan(), model.space
    model.train()
    state = TrainingState(
        recipe=recipe,
        model=model,
        optimizer=build_optimizer(recipe, model),
        ema=None,
        scaler=torch.amp.GradScaler(device.type, enabled=False),
        per_rank=False,
    )
    parts = StepParts(
        space=space,
        recipe=recipe,
        parameters=dict(model.named_parameters()),
        sampler=lambda *_: passes,
        objective=plan.build_objective(),
        policy=plan.build_gradients(),
        mixer=Mixer(recipe, space.classes),
        teachers=None,
        around=nullcontext,
        images=batch_size,
    )
    images = torch.randn(batch_size, space.channels, *space.input_size, device=device)
    labels = torch.randint(space.classes, (batch_size,), device=device)
    context, indices = Context(device=device), torch.arange(batch_size)
    return lambda: train_step(state, parts, images, labels, indices, context)

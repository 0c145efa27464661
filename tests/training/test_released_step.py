"""One whole step of NASViT's release: four networks, an outside target, alpha divergences, clipping, projection."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raynas.families.hybrid.checkpoint import Layout, read_released
from raynas.nets import build_supernet
from raynas.training.context import Context
from raynas.training.gradients import LARGEST, Gradients
from raynas.training.projection import Project
from raynas.training.samplers import Pass, Role
from raynas.training.state import TrainingState
from raynas.training.step import StepParts, train_step
from tests.families.nasvit_golden import arch_of, golden, golden_space
from tests.training.training_parts import plan, recipe

SETS: dict[str, Gradients] = {}


class Kept(Project):
    """Keeps the sets that it combines."""

    def combine(self, sets: Mapping[str, Gradients], names: Any, done: float) -> Gradients:
        SETS.update(sets)
        return super().combine(sets, names, done)


def test_a_whole_step_is_the_released_one() -> None:
    about, arrays, weights = golden()
    space = golden_space(about)
    model = build_supernet(space)
    model.load_state_dict(read_released(weights, space)[1])
    model = model.double().train()
    archs = [arch_of(about["subnets"][name], space) for name in ("largest", "smallest", "sub_a_res80", "sub_b_res96")]
    roles: tuple[Role, ...] = ("largest", "smallest", "random", "random")
    with np.load(Path(__file__).parents[1] / "golden" / "nasvit_sandwich_step.npz") as file:
        step_of = {name: file[name] for name in file}
    settings = recipe(opt="momentum", momentum=0.0, weight_decay=0.0, epochs=1, batch_size=3)
    parameters = dict(model.named_parameters())
    state = TrainingState(
        recipe=settings,
        model=model,
        optimizer=torch.optim.SGD(parameters.values(), lr=1.0),
        ema=None,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        per_rank=False,
    )
    parts = StepParts(
        space=space,
        recipe=settings,
        parameters=parameters,
        sampler=lambda *_: [
            Pass(f"{role}{i or ''}", role, (arch,)) for i, (role, arch) in enumerate(zip(roles, archs, strict=True))
        ],
        objective=plan("sandwich", objective="alpha_divergence").build_objective(),
        policy=Kept(form="released", clip_subnets=1.0),
        mixer=lambda images, labels: (images, torch.tensor(step_of["soft_target"])),  # type: ignore[arg-type]
        teachers=None,
        around=nullcontext,
        images=3,
    )
    before = {name: tensor.detach().clone() for name, tensor in parameters.items()}
    nothing = torch.zeros(3, dtype=torch.int64)
    train_step(state, parts, arrays["input"].double(), nothing, nothing, Context())

    released, place = Layout(space).sources, {str(name): i for i, name in enumerate(step_of["names"])}
    projected = 0
    for (name, tensor), largest in zip(parameters.items(), SETS[LARGEST], strict=True):
        at = place.pop(released[name])
        combined = before[name] - tensor.detach()
        largest = torch.zeros_like(combined) if largest is None else largest  # a shortcut that keeps the width
        norms = step_of["g_sup_norm"][at], step_of["final_projected_norm"][at]
        assert largest.norm().item() == pytest.approx(norms[0], rel=1e-5, abs=1e-9), name
        assert combined.norm().item() == pytest.approx(norms[1], rel=1e-4, abs=1e-8), name
        inner = (combined * largest).sum().item()
        assert inner == pytest.approx(
            step_of["final_projected_dot_gsup"][at], rel=1e-3, abs=1e-5 * norms[0] * norms[1] + 1e-12
        )
        projected += bool(step_of["inner"][at] < 0)
    assert projected > 150 and not [name for name in place if step_of["g_sup_norm"][place[name]] > 0]

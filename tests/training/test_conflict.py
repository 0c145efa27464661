"""The conflict ratio: counted by hand, for every sampler, without a trace in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_projection import CONTRARY, gradients_of_a_step

from raynas.space import load_space
from raynas.training.conflict import compare, is_compared, ratios
from raynas.training.gradients import Gradients
from raynas.training.loop import train_loop
from raynas.training.projection import layer_of
from tests.training.training_parts import SPACE, few, plan, recipe, same

WATCHED = {"health": {"conflict": {"steps": 1, "layers": True}, "probe_every": 100}}


def test_compared_steps_are_spread_evenly() -> None:
    assert [step for step in range(10) if is_compared(step, 10, 3)] == [0, 4, 7]
    assert [step for step in range(2500) if is_compared(step, 2500, 1)] == [0]
    assert all(is_compared(step, 5, 8) for step in range(5))


def test_counts_by_hand() -> None:
    """Of three layers one conflicts (its bias alone does not), one agrees, one was used by one set alone."""
    names = ["a.weight", "a.bias", "b.weight", "c.weight"]
    largest: Gradients = [torch.tensor([1.0, 0.0]), torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([1.0])]
    others: Gradients = [torch.tensor([-2.0, 5.0]), torch.tensor([1.0]), torch.tensor([3.0]), None]
    first = compare(largest, others, names, layers=True)
    assert ratios(first) == {"conflict": 1 / 2, "conflict_layers": {"a": 1.0, "b": 0.0}}
    second = compare(largest, [torch.ones(2), None, -torch.ones(1), -torch.ones(1)], names, layers=True)
    both = {key: first[key] + second[key] for key in first}
    assert ratios(both) == {"conflict": 3 / 5, "conflict_layers": {"a": 1 / 2, "b": 1 / 2, "c": 1.0}}
    overflowed = compare([torch.tensor([torch.inf])], [torch.tensor([-1.0])], ["a.weight"], layers=False)
    assert ratios(overflowed) == {} == ratios({})


@pytest.mark.parametrize("gradients", ["sum", {"name": "project", "clip_subnets": 1.0}])
def test_a_sandwich_step_is_compared_as_it_is(gradients: Any) -> None:
    model, largest, smallest = gradients_of_a_step()
    inner: dict[str, float] = {}
    for (name, _), s, b in zip(model.named_parameters(), largest, smallest, strict=True):
        if b is not None and s is not None:
            inner[layer_of(name)] = inner.get(layer_of(name), 0.0) + (s * b).sum().item()
    step = plan({"name": "sandwich", "random": 0}, gradients=gradients, objective=CONTRARY)
    entry = train_loop(SPACE, few(), step, recipe(epochs=1, warmup_epochs=0, batch_size=96, **WATCHED)).history[0]
    assert entry["conflict_layers"] == {layer: float(value < 0) for layer, value in inner.items()}
    assert entry["conflict"] == np.mean([value < 0 for value in inner.values()]) > 0


@pytest.mark.parametrize("sampler", ["single_path", {"name": "mixed", "archs": 3}])
def test_the_largest_is_run_for_it_alone_where_the_sampler_has_none(sampler: Any) -> None:
    """Drop path draws from the streams and BatchNorm moves its averages: of neither is anything left."""
    space = load_space("digits/vit_resnas")
    settings = {"epochs": 1, "warmup_epochs": 0, "drop_path": 0.3, "batch_size": 16}
    watched, unwatched = (
        train_loop(space, few(32), plan(sampler), recipe(**settings, **extra)) for extra in (WATCHED, {})
    )
    assert same(watched.model.state_dict(), unwatched.model.state_dict())
    assert 0 <= watched.history[0]["conflict"] < 0.5 and "conflict" not in unwatched.history[0]
    assert watched.history[0]["loss"] == unwatched.history[0]["loss"]


def test_one_network_has_no_conflict_to_measure() -> None:
    only = SPACE.fix(SPACE.largest())
    assert "conflict" not in train_loop(only, few(), plan(), recipe(epochs=1, warmup_epochs=0, **WATCHED)).history[0]

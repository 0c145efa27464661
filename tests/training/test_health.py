"""Breakdowns: found, rolled back once, then told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raynas.costs import cost
from raynas.errors import TrainingCollapsed
from raynas.nets import build_supernet
from raynas.space import Space
from raynas.training.health import choose_probes, verdict
from raynas.training.loop import train_loop
from tests.training.training_parts import SPACE, Keeping, few, plan, recipe, same


def breaking(at: set[int], how: str) -> Any:
    """A builder of networks that break at these training passes (counted from 1 over the whole run)."""
    calls = 0

    def build(space: Space) -> torch.nn.Module:
        model = build_supernet(space)

        def count(module: torch.nn.Module, args: Any) -> None:
            nonlocal calls
            calls += module.training
            if module.training and calls in at and how == "dead":
                with torch.no_grad():  # every image gets the same answer from now on
                    for parameter in module.parameters():
                        parameter.zero_()

        def spoil(module: torch.nn.Module, args: Any, logits: torch.Tensor) -> torch.Tensor | None:
            return logits * float("nan") if module.training and calls in at and how == "nan" else None

        model.register_forward_pre_hook(count)
        model.register_forward_hook(spoil)
        return model

    return build


def test_a_loss_that_is_not_finite_rolls_back_once(tmp_path: Path) -> None:
    state = train_loop(SPACE, few(), plan(), recipe(), Keeping(tmp_path), build=breaking({5}, "nan"))
    assert [entry.get("epoch") for entry in state.history] == [1, 1, 2, 3]
    assert "rollback: epoch 2, step 5: the loss is nan" in state.history[1]["event"]
    assert (state.epoch, state.step, state.rollbacks) == (3, 9, 1)
    assert all(torch.isfinite(tensor).all() for tensor in state.weights.values())
    untouched = train_loop(SPACE, few(), plan(), recipe())
    assert not same(state.weights, untouched.weights)  # the order after the rollback is another one
    again = train_loop(SPACE, few(), plan(), recipe(), Keeping(tmp_path))
    assert same(again.weights, state.weights) and again.history == state.history


def test_the_second_breakdown_stops_with_a_verdict(tmp_path: Path) -> None:
    context = Keeping(tmp_path)
    with pytest.raises(TrainingCollapsed, match=r"again after a rollback, at epoch 2, step 5: the loss is nan"):
        train_loop(SPACE, few(), plan(), recipe(), context, build=breaking({5, 7}, "nan"))
    saved = context.load()
    assert saved is not None and saved["epoch"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in saved["model"].values())


def test_collapsed_probes_roll_back() -> None:
    settings = recipe(epochs=26, lr=2e-2, warmup_epochs=2)
    state = train_loop(SPACE, few(search=200), plan(), settings, build=breaking({3 * 24 + 1}, "dead"))
    events = [entry for entry in state.history if "event" in entry]
    assert len(events) == 1
    assert "epoch 25" in events[0]["event"] and "probe subnets collapsed" in events[0]["event"]
    assert state.epoch == 26 and state.rollbacks == 1


def row(role: str, accuracy: float, loss: float = 1.0, images: int = 1000) -> dict[str, Any]:
    return {"role": role, "accuracy": accuracy, "loss": loss, "images": images}


def test_verdict() -> None:
    before = [row("smallest", 0.6), row("median", 0.7), row("largest", 0.8), row("largest", 0.5)]
    assert verdict([row("smallest", 0.5), row("median", 0.12), row("largest", 0.75)], before, 0.1) is None
    found = verdict([row("smallest", 0.5), row("median", 0.12), row("largest", 0.16)], before, 0.1)
    assert found == "probe subnets collapsed (chance is 10.0%): median: 70.0% to 12.0%, largest: 80.0% to 16.0%"
    low = [row("smallest", 0.2), row("median", 0.2), row("largest", 0.2)]  # never far from chance: not a collapse
    assert verdict([row(r["role"], 0.1) for r in low], low, 0.1) is None
    assert "loss nan" in str(verdict([row("largest", 0.1, float("nan"))], [], 0.1))


def test_on_few_images_a_fall_may_be_luck() -> None:
    """11 of 20 images, then 6: two standard errors. A fall from all to few of them is none."""
    for images, best, now, broken in ((20, 0.55, 0.3, False), (2000, 0.55, 0.3, True), (20, 1.0, 0.35, True)):
        before = [row("largest", best, images=images)]
        assert bool(verdict([row("largest", now, images=images)], before, 0.35)) == broken


def test_probes_are_the_extremes_and_quartiles() -> None:
    probes = choose_probes(SPACE, 0)
    assert list(probes) == ["smallest", "q1", "median", "q3", "largest"]
    macs = cost(SPACE, probes.values())["macs"].tolist()
    assert macs == sorted(macs) and macs[0] < macs[2] < macs[4]
    assert probes == choose_probes(SPACE, 0)
    assert list(choose_probes(SPACE.fix(SPACE.largest()), 0)) == ["largest"]

"""What is dropped in which pass, learning rates of another batch, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raynas.errors import ConfigError
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Space, load_space
from raynas.training.loop import train_loop
from raynas.training.preflight import check_trainable
from raynas.training.recipe import build_optimizer, build_schedule
from tests.training.training_parts import SPACE, few, plan, recipe


@pytest.mark.parametrize(("drop_for", "others"), [("largest", 0.0), ("all", 0.5)])
def test_who_is_dropped(drop_for: str, others: float) -> None:
    """The candidates of an attentive sampler are no pass of the largest either."""
    seen: list[tuple[bool, float, float]] = []
    ramps: set[str] = set()

    def spy(space: Space) -> nn.Module:
        model = build_supernet(space)

        def note(module: Supernet, args: Any) -> None:
            if module.training:
                ramps.add(module.drop_path_over)
                seen.append((args[1] == space.largest() and torch.is_grad_enabled(), module.drop_path, module.dropout))

        model.register_forward_pre_hook(note)
        return model

    sampler = {"name": "sandwich", "random": 1, "attentive": {"candidates": 2, "choose": "worst"}}
    rates = {"drop_path": 0.2, "drop_path_over": "network", "dropout": 0.5, "drop_for": drop_for}
    settings = recipe(epochs=1, warmup_epochs=0, batch_size=96, **rates)
    train_loop(SPACE, few(), plan(sampler), settings, build=spy)
    path = 0.2 if others else 0.0
    assert seen[:3] == [(False, path, others)] * 2 + [(True, 0.2, 0.5)] and len(seen) == 5
    assert all(entry == (False, path, others) for entry in seen[3:] if not entry[0])
    assert ramps == {"network"}


@pytest.mark.parametrize("name", ["digits/vit", "digits/twins", "digits/vit_resnas", "digits/nasvit"])
def test_features_before_the_classifier_are_dropped(name: str) -> None:
    model = build_supernet(load_space(name))
    features: list[Tensor] = []
    head: nn.Module = model.head  # type: ignore[assignment]
    head.register_forward_pre_hook(lambda module, args: features.append(args[0].detach()))
    images = torch.randn(64, model.space.channels, *model.space.input_size)
    model.dropout = 0.25
    for training in (True, False):
        model.train(training)(images, model.space.largest())
    zeros = [(each == 0).float().mean().item() for each in features]
    assert zeros[0] == pytest.approx(0.25, abs=0.05) and zeros[1] < 0.01
    assert model.extract(model.space.smallest()).dropout == 0.25


def test_all_learning_rates_follow_the_batch() -> None:
    """NASViT's: 3e-4, 5e-7 and 5e-6 for 512 images, at four times as many."""
    settings = recipe(
        epochs=10, batch_size=2048, lr=3e-4, lr_base_batch=512, warmup_lr=5e-7, min_lr=5e-6, scale_all_lrs=True
    )
    optimizer = build_optimizer(settings, nn.Linear(1, 1))
    schedule = build_schedule(settings, optimizer, steps_per_epoch=10)
    rates = []
    for step in (0, 10, 100):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    top, low = 4 * 3e-4, 4 * 5e-6
    cosine = low + (top - low) * (1 + torch.cos(torch.tensor(torch.pi / 10)).item()) / 2
    assert rates == pytest.approx([4 * 5e-7, cosine, low])


def test_nesterov() -> None:
    optimizer = build_optimizer(recipe(opt="sgd", momentum=0.9), nn.Linear(1, 1))
    assert optimizer.param_groups[0]["nesterov"] and optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("rates", [{"drop_path": 0.1}, {"dropout": 0.1}])
def test_drops_that_would_never_act_are_refused(rates: dict[str, float]) -> None:
    check_trainable(SPACE, few(), plan("sandwich"), recipe(drop_for="largest", **rates))
    check_trainable(SPACE, few(), plan(), recipe(drop_for="largest"))
    with pytest.raises(ConfigError, match=r"no pass is of the largest subnet alone.* set drop_for to all"):
        check_trainable(SPACE, few(), plan(), recipe(drop_for="largest", **rates))


def test_batch_norm_over_workers_with_archs_of_their_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sync_batchnorm needs the same archs on all workers: leave out per_rank"):
        check_trainable(SPACE, few(), plan({"name": "single_path", "per_rank": True}), recipe(sync_batchnorm=True))

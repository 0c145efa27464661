"""Many subnets in one pass, the space opening step by step, labels for patches: what training does with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raynas.data.loader import TrainLoader
from raynas.data.token_labels import TokenLabelsConfig
from raynas.data.token_mixing import mix_tokens
from raynas.errors import ConfigError, UserError
from raynas.nets import build_supernet
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from raynas.training.streams import derive
from tests.training.training_parts import SPACE, few, plan, recipe

TOKENS = SPACE.replace(constants=SPACE.constants.model_copy(update={"token_head": True}))
ONE_STEP = {"opt": "momentum", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.1, "warmup_epochs": 0}


def test_a_step_of_many_archs_is_the_mean_of_their_own_steps() -> None:
    """Four archs on 96 images: each learns from its 24, and the gradient is their mean."""
    settings = recipe(**ONE_STEP, epochs=1, batch_size=96)
    sampler = {"name": "mixed", "archs": 4, "dealt": True}
    trained = train_loop(SPACE, few(), plan(sampler), settings).model.state_dict()
    torch.manual_seed(derive(0, "weights"))
    model = build_supernet(SPACE)
    rng = np.random.default_rng(derive(0, "sampler", 0, 0))
    (this,) = plan(sampler).build_sampler()(SPACE, rng, None)
    ((images, labels),) = list(TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0)).epoch(0))
    for index, arch in enumerate(this.archs):
        (F.cross_entropy(model(images[index::4], arch), labels[index::4]) / 4).backward()
    for name, parameter in model.named_parameters():
        step = torch.zeros_like(parameter) if parameter.grad is None else 0.1 * parameter.grad
        torch.testing.assert_close(trained[name], parameter.detach() - step, atol=1e-6, rtol=1e-5)


def test_more_archs_than_images_is_told() -> None:
    with pytest.raises(ConfigError, match="40 archs share a micro-batch of 32 images"):
        train_loop(SPACE, few(), plan({"name": "mixed", "archs": 40}), recipe())


def test_archs_that_do_not_divide_the_batch() -> None:
    trained = train_loop(SPACE, few(), plan({"name": "mixed", "archs": 7}), recipe(epochs=1, warmup_epochs=0))
    assert np.isfinite(trained.history[0]["loss"])


def test_while_the_space_is_closed_the_largest_alone_is_trained() -> None:
    """One epoch of three with the largest arch alone: as a plan that knows no other."""
    opening = plan("single_path", widening=1.0)
    closed = train_loop(SPACE, few(), opening, recipe(epochs=1, warmup_epochs=0))
    only = SPACE.fix(SPACE.largest())
    alone = train_loop(only, few(), plan("single_path"), recipe(epochs=1, warmup_epochs=0))
    for name, weight in alone.weights.items():
        torch.testing.assert_close(closed.weights[name], weight, atol=1e-6, rtol=1e-5)


def test_patches_learn_their_labels() -> None:
    """One step with the released mixing, its loss and gradient computed here from the same draws."""
    settings = recipe(**ONE_STEP, epochs=1, batch_size=96, token_labels={"mixing": "none"})
    only = TOKENS.fix(TOKENS.largest())
    trained = train_loop(only, few(), plan("single_path"), settings)
    torch.manual_seed(derive(0, "weights"))
    model = build_supernet(only)
    ((images, labels),) = list(TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0)).epoch(0))
    logits = model(images, patches=True)
    assert logits.shape == (96, 5, 10)
    loss = F.cross_entropy(logits[:, 0], labels)
    for patch in range(4):
        loss = loss + F.cross_entropy(logits[:, 1 + patch], labels) / 4
    loss.backward()
    assert trained.history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    weights = dict(model.named_parameters())
    assert weights["token_head.weight"].grad is not None
    for name, parameter in weights.items():
        assert parameter.grad is not None
        torch.testing.assert_close(
            trained.weights[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("mixing", ["released", "switch"])
def test_a_winner_is_trained_with_token_labels_too(mixing: str) -> None:
    settings = recipe(epochs=2, token_labels={"mixing": mixing}, smoothing=0.1)
    trained = train_loop(TOKENS.fix(TOKENS.largest()), few(), Plan(), settings)
    assert trained.history[1]["loss"] < trained.history[0]["loss"] < 6  # two losses of at most ln 10 or so each


def test_token_labels_without_a_token_head() -> None:
    with pytest.raises(UserError, match="has no token head: set its constant token_head: true"):
        train_loop(SPACE, few(), plan("single_path"), recipe(token_labels={}))


def test_every_arch_sees_both_kinds_of_mixing() -> None:
    """The released mixing pastes into the first half and blends the second: rows are dealt to archs one by one."""
    images = torch.arange(16.0).view(16, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    torch.manual_seed(0)
    np.random.seed(0)
    mixed, _ = mix_tokens(images, torch.eye(16), (2, 2), TokenLabelsConfig())
    blended = (mixed != mixed.round()).flatten(1).any(1)
    for arch in range(4):
        assert 0 < int(blended[arch::4].sum()) < 4

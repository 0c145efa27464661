"""What one step does to the weights, and what the loop refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.data.loader import TrainLoader
from raynas.errors import ConfigError
from raynas.nets import build_supernet
from raynas.space import Arch, Space
from raynas.training import progress
from raynas.training.context import Context
from raynas.training.gradients import Gradients
from raynas.training.loop import train_loop
from raynas.training.samplers import Losses, Pass
from raynas.training.streams import derive
from tests.training.training_parts import SPACE, few, plan, recipe, same


def smallest(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    return [Pass("smallest", "smallest", (space.smallest(),))]


def mixed(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    return [Pass("mixed", "mixed", tuple(space.sample(rng) for _ in range(4)))]


def worst_of_four(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    archs = [space.sample(rng) for _ in range(4)]
    found = losses(archs)
    assert len(found) == 4 and all(np.isfinite(found))
    return [Pass("worst", "random", (archs[int(np.argmax(found))],))]


class LargestAlone:
    """Two sets, of which the second is thrown away."""

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        return ["largest" if this.role == "largest" else "rest" for this in passes]

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        assert set(sets) == {"largest", "rest"}
        return sets["largest"]


def largest_alone(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    return [Pass("largest", "largest", (space.largest(),))]


HERE = __name__


def start_weights(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(derive(seed, "weights"))
    return build_supernet(SPACE).state_dict()


def test_one_plain_step_by_hand() -> None:
    """SGD on one batch: weights move by the learning rate times the gradient, computed here."""
    settings = recipe(opt="momentum", momentum=0.0, weight_decay=0.0, epochs=1, batch_size=96, lr=0.1, warmup_epochs=0)
    trained = train_loop(SPACE, few(), plan(f"{HERE}:smallest"), settings)
    model = build_supernet(SPACE)
    model.load_state_dict(start_weights())
    loader = TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0))
    ((images, labels),) = list(loader.epoch(0))
    loss = F.cross_entropy(model(images, SPACE.smallest()), labels)
    loss.backward()
    learnt = trained.model.state_dict()
    for name, parameter in model.named_parameters():
        step = torch.zeros_like(parameter) if parameter.grad is None else 0.1 * parameter.grad
        torch.testing.assert_close(learnt[name], parameter.detach() - step, atol=1e-6, rtol=1e-5)
    assert trained.history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_what_no_pass_used_does_not_move() -> None:
    """AdamW with decay would move the second block's zero gradients; None keeps them where they were."""
    trained = train_loop(SPACE, few(), plan(f"{HERE}:smallest"), recipe(weight_decay=0.5)).model.state_dict()
    start = start_weights()
    moved = {name for name in start if not torch.equal(start[name], trained[name])}
    assert not [name for name in moved if name.startswith("blocks.1.")]
    assert [name for name in moved if name.startswith("blocks.0.")]


def test_accumulated_micro_batches_equal_one_large_batch() -> None:
    one, four = (
        train_loop(SPACE, few(), plan("sandwich"), recipe(opt="momentum", lr=0.1, accumulate=n)).model.state_dict()
        for n in (1, 4)
    )
    for name in one:
        torch.testing.assert_close(one[name], four[name], atol=1e-5, rtol=1e-4)


def test_sandwich_gradient_is_the_sum_of_its_passes() -> None:
    settings = recipe(opt="momentum", momentum=0.0, weight_decay=0.0, epochs=1, batch_size=96, lr=0.1, warmup_epochs=0)
    trained = train_loop(SPACE, few(), plan({"name": "sandwich", "random": 0}), settings).model.state_dict()
    model = build_supernet(SPACE)
    model.load_state_dict(start_weights())
    ((images, labels),) = list(TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0)).epoch(0))
    for arch in (SPACE.largest(), SPACE.smallest()):
        F.cross_entropy(model(images, arch), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(trained[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-6, rtol=1e-5)


def test_both_paths_of_a_bilateral_supernet_are_trained() -> None:
    """The smallest subnet on its left and on its right path; the largest, which is all of it, once."""
    space = SPACE.replace(constants=SPACE.constants.model_copy(update={"sharing": "bilateral"}))
    settings = recipe(opt="momentum", momentum=0.0, weight_decay=0.0, epochs=1, batch_size=96, lr=0.1, warmup_epochs=0)
    trained = train_loop(space, few(), plan({"name": "sandwich", "random": 0}), settings).model.state_dict()
    model = build_supernet(space)
    model.load_state_dict(start_weights())
    ((images, labels),) = list(TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0)).epoch(0))
    F.cross_entropy(model(images, space.largest(), side="left"), labels).backward()
    for side in ("left", "right"):
        F.cross_entropy(model(images, space.smallest(), side=side), labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(trained[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-6, rtol=1e-5)
    # What is scored is the mean of both paths' logits.
    both = [model(images, space.smallest(), side=side) for side in ("left", "right")]
    torch.testing.assert_close(model(images, space.smallest()), (both[0] + both[1]) / 2)


def test_gradient_sets_are_kept_apart() -> None:
    apart = train_loop(SPACE, few(), plan("sandwich", gradients=f"{HERE}:LargestAlone"), recipe())
    alone = train_loop(SPACE, few(), plan(f"{HERE}:largest_alone"), recipe())
    assert same(apart.weights, alone.weights)


@pytest.mark.parametrize("sampler", ["mixed", "worst_of_four"])
def test_other_samplers_train(sampler: str) -> None:
    history = train_loop(SPACE, few(), plan(f"{HERE}:{sampler}"), recipe(epochs=4)).history
    assert history[-1]["loss"] < history[0]["loss"]


def test_average_of_weights_by_hand() -> None:
    """After n steps with decay d: d^n of the start, and (1 - d) d^(n-1-k) of the weights after step k."""
    seen: list[dict[str, Tensor]] = []

    def spy(space: Space) -> torch.nn.Module:
        model = build_supernet(space)
        model.register_forward_pre_hook(
            lambda module, args: (
                seen.append({k: v.clone() for k, v in module.state_dict().items()}) if module.training else None
            )
        )
        return model

    state = train_loop(SPACE, few(), plan(), recipe(epochs=1, ema=0.6), build=spy)
    weights = [*seen, state.model.state_dict()]  # at the start of each of three steps, and at the end
    assert len(weights) == 4
    for name, averaged in state.weights.items():
        expected = 0.6**3 * weights[0][name] + 0.4 * sum(0.6 ** (3 - k) * weights[k][name] for k in (1, 2, 3))
        torch.testing.assert_close(averaged, expected, atol=1e-6, rtol=1e-5)


def test_few_images_are_learnt_by_heart() -> None:
    only = SPACE.fix(SPACE.largest())
    state = train_loop(only, few(32), plan(), recipe(epochs=100, lr=2e-2, warmup_epochs=5, health={"probe_every": 100}))
    assert state.history[-1]["loss"] < 0.05


def test_odd_micro_batches_cannot_be_mixed() -> None:
    with pytest.raises(ConfigError, match="multiple of 2"):
        train_loop(SPACE, few(), plan(), recipe(batch_size=33, mixup=0.8))
    with pytest.raises(ConfigError, match="multiple of 8"):
        train_loop(SPACE, few(), plan(), recipe(batch_size=20, accumulate=4, mixup=0.8))
    mixed = train_loop(SPACE, few(33), plan(), recipe(batch_size=64, epochs=1, mixup=0.8))
    plain = train_loop(SPACE, few(33), plan(), recipe(batch_size=33, epochs=1))
    assert [state.history[0]["images"] for state in (mixed, plain)] == [32, 33]


def test_every_worker_and_micro_batch_gets_an_image() -> None:
    assert [recipe(accumulate=3).micro_batch(workers) for workers in (1, 3, 10)] == [11, 4, 2]
    assert recipe(accumulate=2, mixup=0.8).micro_batch(3) == 6  # pairs stay together: 12, 12 and 8 images
    with pytest.raises(ConfigError, match=r"cannot be dealt to 11 worker.* use at least 33"):
        recipe(accumulate=3).micro_batch(11)


def test_distillation_without_a_largest_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="such as sandwich"):
        train_loop(SPACE, few(), plan("single_path", objective="inplace_distillation"), recipe())


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        train_loop(SPACE, few(), plan(), recipe(amp="fp16"))


def test_bf16_autocast_trains_on_cpu() -> None:
    history = train_loop(SPACE, few(), plan(), recipe(amp="bf16", epochs=4)).history
    assert history[-1]["loss"] < history[0]["loss"]


def test_learning_rates_follow_warmup_and_cosine() -> None:
    """Per update: linear from warmup_lr, then cosine to min_lr over the whole training."""
    rates: list[float] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    from raynas.training import loop

    original = loop.build_optimizer
    loop.build_optimizer = lambda recipe, model: Spy(model.parameters(), lr=recipe.effective_lr)  # type: ignore
    try:
        settings = recipe(lr=0.5, lr_base_batch=64, warmup_lr=0.01, min_lr=0.02, warmup_epochs=1)
        train_loop(SPACE, few(), plan(), settings)
    finally:
        loop.build_optimizer = original
    top = 0.5 * 32 / 64
    expected = [0.01 + (top - 0.01) * k / 3 for k in range(3)]
    expected += [0.02 + (top - 0.02) * (1 + np.cos(np.pi * k / 9)) / 2 for k in range(3, 9)]
    assert rates == pytest.approx(expected)


def test_archs_of_a_seed_are_those_of_the_sampler(tmp_path: Any) -> None:
    """The loop draws archs from a generator of their own: drop path and mixing do not change them."""
    drawn: list[list[Arch]] = []
    for changes in ({}, {"drop_path": 0.2, "mixup": 0.8}):
        archs: list[Arch] = []

        def spy(space: Space, archs: list[Arch] = archs) -> torch.nn.Module:
            model = build_supernet(space)
            model.register_forward_pre_hook(lambda m, args: archs.append(args[1]) if m.training else None)
            return model

        train_loop(SPACE, few(), plan(), recipe(**changes), build=spy)
        drawn.append(archs)
    assert len(drawn[0]) == 9 and drawn[0] == drawn[1]


def test_uneven_micro_batches_count_by_their_images() -> None:
    # Ten images are all of the training set: micro-batches of them hold 3, 3, 2 and 2, or 2, 2 and six times 1.
    whole = train_loop(SPACE, few(10), plan("sandwich"), recipe(epochs=1, warmup_epochs=0))
    for parts in (4, 8):
        cut = train_loop(SPACE, few(10), plan("sandwich"), recipe(epochs=1, warmup_epochs=0, accumulate=parts))
        for name in ("loss", "gradient_norm"):
            assert cut.history[0][name] == pytest.approx(whole.history[0][name], rel=1e-5)


def test_fewer_images_than_one_step_are_told() -> None:
    events: list[dict[str, Any]] = []
    for images in (32, 31):
        train_loop(SPACE, few(images), plan(), recipe(epochs=1), Context(on_event=events.append))
    told = [event["text"] for event in events if event["kind"] == "message"]
    assert told == ["  31 training images are fewer than one step of 32: an epoch is one step of 31"]


def test_images_a_second_are_those_that_a_step_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images a step take more than 0.1 ms; counted as the recipe's ten million they would be far more a second."""
    monkeypatch.setattr(progress, "STEP_S", 0.0)
    events: list[dict[str, Any]] = []
    train_loop(SPACE, few(10), plan(), recipe(batch_size=10**7), Context(on_event=events.append))
    rates = [event["images_per_second"] for event in events if event["kind"] == "step"]
    assert len(rates) == 3 and all(0 < rate < 1e5 for rate in rates)


@pytest.mark.parametrize(("ema", "share"), [(0.9996, "100%"), (0.7, "4%"), (0.6, None)])
def test_an_average_that_keeps_its_first_weights_is_told(ema: float, share: str | None) -> None:
    """Of a linear average, the first weights have the share 0.7 ** 9 after three epochs of three steps."""
    events: list[dict[str, Any]] = []
    train_loop(SPACE, few(), plan(), recipe(ema=ema), Context(on_event=events.append))
    told = [event["text"] for event in events if event["kind"] == "message"]
    assert len(told) == (share is not None) and all(f" 9 steps: {share} of the averaged" in text for text in told)


def test_the_rate_of_an_epoch_is_that_of_the_last_layers() -> None:
    plain, decayed = (
        train_loop(SPACE, few(), plan(), recipe(epochs=1, opt_args=given)).history[0]["learning_rate"]
        for given in ({}, {"layer_decay": 0.5})
    )
    assert decayed == pytest.approx(plain)

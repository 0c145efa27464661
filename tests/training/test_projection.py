"""Conflicting gradients: as the release projects them, as the paper's equation does, and as the loop does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.config import validate
from raynas.data.loader import TrainLoader
from raynas.documents import parse_yaml
from raynas.errors import ConfigError
from raynas.nets import build_supernet
from raynas.space import Space
from raynas.training.gradients import LARGEST, SUBNETS, Gradients, Sum, check_gradient
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from raynas.training.preflight import check_trainable
from raynas.training.projection import Project, layer_of, unit_of
from raynas.training.samplers import Losses, Pass
from raynas.training.streams import derive
from tests.training.training_parts import SPACE, few, plan, recipe, same

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "nasvit_gradient_projection.npz")
NAMES = [f"{i}.weight" for i in range(6)]
ONE_STEP = {"opt": "momentum", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.1, "warmup_epochs": 0}


def golden(case: str, name: str) -> Gradients:
    return [torch.tensor(GOLDEN[f"{case}/{name}/{i}"]) for i in range(6)]


def combined(
    policy: Project | Sum, largest: Gradients, subnets: Gradients, done: float = 0.0, names: Any = None
) -> Gradients:
    names = NAMES[: len(largest)] if names is None else names
    return policy.combine({LARGEST: largest, SUBNETS: subnets}, names, done)


@pytest.mark.parametrize("case", ["random", "agree", "conflict", "conflict_big_sup", "tiny_sub"])
@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("official_projected", {"form": "released"}),
        ("official_plain_sum", {"form": "released", "start": 0.5}),
        ("eq1_per_tensor", {}),
        ("eq1_per_tensor", {"unit": "layer"}),  # each tensor is its module's only one
        ("eq1_whole_model", {"unit": "model"}),
    ],
)
def test_as_released_and_as_written(case: str, expected: str, options: dict[str, Any]) -> None:
    found = combined(Project(**options), golden(case, "g_sup"), golden(case, "g_sub"))
    for mine, theirs in zip(found, golden(case, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_who_gives_way() -> None:
    """s = (1, 0), b = (-1, 1): their inner product is -1."""
    largest, subnets = [torch.tensor([1.0, 0.0])], [torch.tensor([-1.0, 1.0])]
    (found,) = combined(Project(), [*largest], [*subnets])
    assert found is not None and found.tolist() == [0.5 - 1, 0.5 + 1]  # s without its part along b, and b
    (found,) = combined(Project(priority="largest"), [*largest], [*subnets])
    assert found is not None and found.tolist() == [1, 1]  # s, and b without its part along s
    (found,) = combined(Project(), [*subnets], [*subnets])
    assert found is not None and found.tolist() == [-2, 2]  # no conflict, no projection
    (found,) = combined(Project(), [*largest], [torch.zeros(2)])
    assert found is not None and found.tolist() == [1, 0]


def test_units() -> None:
    names = ["class_token", "blocks.0.qkv.weight", "blocks.0.qkv.bias", "blocks.0.proj.weight"]
    assert [layer_of(name) for name in names] == ["class_token", "blocks.0.qkv", "blocks.0.qkv", "blocks.0.proj"]
    assert [unit_of(names, unit) for unit in ("tensor", "layer", "model")] == [[0, 1, 2, 3], [0, 1, 1, 2], [0] * 4]
    # Alone the bias conflicts; with its weight, of the same layer, it does not.
    largest: Gradients = [torch.ones(1), torch.tensor([2.0, 0.0]), torch.tensor([1.0]), None]
    subnets: Gradients = [torch.ones(1), torch.tensor([1.0, 0.0]), torch.tensor([-1.0]), None]
    alone = combined(Project(), largest, subnets, names=names)
    layer = combined(Project(unit="layer"), largest, subnets, names=names)
    assert alone[2] is not None and alone[2].tolist() == [-1] and layer[2] is not None and layer[2].tolist() == [0]
    assert alone[3] is None and layer[3] is None


@pytest.mark.parametrize("policy", [Project(), Project(form="released"), Project(unit="model"), Sum(clip_subnets=9.0)])
def test_what_one_set_alone_used_counts_once(policy: Project | Sum) -> None:
    """The release, under a `zero_grad` that sets None, adds such a gradient to itself."""
    largest: Gradients = [torch.tensor([3.0, 4.0]), torch.tensor([1.0]), None, None]
    subnets: Gradients = [None, torch.tensor([1.0]), torch.tensor([2.0]), None]
    before = [None if one is None else one.clone() for one in (*largest, *subnets)]
    found = combined(policy, largest, subnets, names=["a.w", "b.w", "c.w", "d.w"])
    assert [None if one is None else one.tolist() for one in found] == [[3, 4], [2], [2], None]
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(before, (*largest, *subnets), strict=True))  # type: ignore[arg-type]


def test_the_subnets_sum_is_clipped_before_it_is_projected_on() -> None:
    """b = (-3, 4) is of norm 5 and becomes (-0.6, 0.8); s = (10, 0) stays, and so does what is projected off it."""
    largest, subnets = [torch.tensor([10.0, 0.0])], [torch.tensor([-3.0, 4.0])]
    (found,) = combined(Project(clip_subnets=1.0), [*largest], [*subnets])
    assert found is not None
    expected = np.array([10, 0]) + 6 * np.array([-0.6, 0.8]) + np.array([-0.6, 0.8])
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    (found,) = combined(Project(form="released", clip_subnets=1.0), [*largest], [*subnets])
    assert found is not None and found.tolist() == pytest.approx([10 - 3 * 0.6, 3 * 0.8], abs=1e-4)  # 2 of 6 at most
    (found,) = combined(Sum(clip_subnets=1.0), [*largest], [*subnets])
    assert found is not None and found.tolist() == pytest.approx([9.4, 0.8], abs=1e-5)


def contrary(this: Pass, logits: Tensor, targets: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
    """The largest subnet learns the labels, all others those of the classes beside: their gradients conflict."""
    return F.cross_entropy(logits, targets if this.role == "largest" else targets.roll(1, 1))


CONTRARY = f"{__name__}:contrary"


def gradients_of_a_step(space: Space = SPACE) -> tuple[torch.nn.Module, Gradients, Gradients]:
    """The network that training starts from, and both gradients of its first step of two passes."""
    torch.manual_seed(derive(0, "weights"))
    model = build_supernet(space)
    ((images, labels),) = list(TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0)).epoch(0))
    found: list[Gradients] = []
    for arch, classes in ((space.largest(), labels), (space.smallest(), (labels + 1) % 10)):
        F.cross_entropy(model(images, arch), classes).backward()
        found.append([p.grad for p in model.parameters()])
        model.zero_grad()
    return model, found[0], found[1]


def test_a_step_of_the_loop_by_hand() -> None:
    """SGD moves the weights by Equation 1 of the gradients computed here; the smallest uses one block of two."""
    model, largest, smallest = gradients_of_a_step()
    step = plan({"name": "sandwich", "random": 0}, gradients="project", objective=CONTRARY)
    trained = train_loop(SPACE, few(), step, recipe(**ONE_STEP, epochs=1, batch_size=96)).model.state_dict()
    projected = absent = 0
    for (name, parameter), s, b in zip(model.named_parameters(), largest, smallest, strict=True):
        assert s is not None
        if b is None:
            expected, absent = s, absent + 1
        else:
            inner = (s * b).sum()
            expected = s + b - (inner / (b * b).sum() * b if inner < 0 else 0)
            projected += bool(inner < 0)
        torch.testing.assert_close(trained[name], parameter.detach() - 0.1 * expected, atol=1e-6, rtol=1e-4)
    assert projected >= 3 and absent >= 8


DONE: list[float] = []


class Noting(Project):
    """Notes how much of the training is over at each step."""

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        DONE.append(done)
        return super().combine(sets, names, done)


def test_projection_begins_at_its_epoch() -> None:
    """Of three epochs the first is as without it; the golden data has both kinds of steps."""
    sandwich = {"name": "sandwich", "random": 0}
    states = {
        start: train_loop(SPACE, few(), plan(sandwich, gradients=policy, objective=CONTRARY), recipe(batch_size=96))
        for start, policy in ((1, "sum"), (1 / 3, {"name": f"{__name__}:Noting", "start": 1 / 3}), (0, "project"))
    }
    assert DONE == [0, 1 / 3, 2 / 3]
    # The gradient's norm at the first step, and at the last.
    never, late, always = ([entry["gradient_norm"] for entry in state.history] for state in states.values())
    assert late[0] == pytest.approx(never[0], rel=1e-5) and always[0] != pytest.approx(never[0], rel=1e-3)
    assert late[2] != pytest.approx(never[2], rel=1e-3)


def test_micro_batches_are_added_up_before_projection() -> None:
    step = plan("sandwich", gradients={"name": "project", "clip_subnets": 1.0}, objective="alpha_divergence")
    settings = {"opt": "momentum", "lr": 0.1, "batch_size": 48, "epochs": 1, "warmup_epochs": 0}
    one, three = (train_loop(SPACE, few(), step, recipe(**settings, accumulate=n)).model.state_dict() for n in (1, 3))
    for name in one:
        torch.testing.assert_close(one[name], three[name], atol=1e-5, rtol=1e-3)


def test_both_paths_of_a_bilateral_supernet_count_as_subnets() -> None:
    bilateral = SPACE.replace(constants=SPACE.constants.model_copy(update={"sharing": "bilateral"}))
    sets: list[list[str]] = []

    def spy(passes: Any, assign: Any = Project.assign) -> list[str]:
        sets.append(assign(None, passes))
        return sets[-1]

    policy = Project()
    policy.assign = spy  # type: ignore[method-assign]
    step = plan({"name": "sandwich", "random": 1})
    object.__setattr__(step, "build_gradients", lambda: policy)
    train_loop(bilateral, few(), step, recipe(epochs=1, warmup_epochs=0, batch_size=96))
    assert sets == [[LARGEST, *[SUBNETS] * 4]]


def test_scaled_losses_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16's scale, here of float32 on a CPU: policies see true gradients, and what overflows is skipped."""
    gradients = {"name": "project", "form": "released", "clip_subnets": 0.5}
    step = plan({"name": "sandwich", "random": 1}, gradients=gradients, objective=CONTRARY)
    settings = recipe(epochs=1, warmup_epochs=0, clip_grad=0.7, lr=0.1, opt="momentum", batch_size=12)
    scaler, states = torch.amp.GradScaler, [train_loop(SPACE, few(), step, settings)]
    for exponent in (16, 127):  # 2.0 ** 127 times the loss is too much for float32
        scale = 2.0**exponent
        monkeypatch.setattr(torch.amp, "GradScaler", lambda kind, enabled, scale=scale: scaler(kind, init_scale=scale))
        states.append(train_loop(SPACE, few(), step, settings))
    plainly, scaled, overflowed = states
    assert same(plainly.model.state_dict(), scaled.model.state_dict())  # a power of two is exact
    assert plainly.history[0]["gradient_norm"] == scaled.history[0]["gradient_norm"]
    assert overflowed.scaler.get_scale() < 2.0**127 and 0 < overflowed.history[0]["gradient_norm"] < 100
    assert all(torch.isfinite(tensor).all() for tensor in overflowed.model.state_dict().values())


def smallest_alone(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    return [Pass("smallest", "smallest", (space.smallest(),))]


@pytest.mark.parametrize("gradients", ["project", {"name": "sum", "clip_subnets": 1.0}])
@pytest.mark.parametrize("sampler", ["single_path", {"name": "mixed", "archs": 2}, f"{__name__}:smallest_alone"])
def test_a_sampler_without_the_largest_is_refused_before_training(sampler: Any, gradients: Any) -> None:
    with pytest.raises(ConfigError, match="use a sampler that runs both, such as sandwich"):
        check_trainable(SPACE, few(), plan(sampler, gradients=gradients), recipe())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("priority: subnet", "priority of project is 'subnet' (did you mean 'subnets'?)"),
        ("unit: layers", "unit of project is 'layers' (did you mean 'layer'?)"),
        ("form: capped", "form of project is 'capped' (known: exact, released)"),
        ("start: 101", "start of project is a share of the epochs, from 0 to below 1, not 101"),
        ("clip_subnets: 0", "clip_subnets must be a number above 0, not 0"),
        ("cap: 2", "gradient policy 'project' has no option 'cap'"),
    ],
)
def test_wrong_options_are_told_when_the_preset_is_read(options: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Plan, parse_yaml(f"gradients: {{name: project, {options}}}", "p.yaml"))
    assert message in str(caught.value) and str(caught.value).startswith("p.yaml:1: gradients: ")


def test_clipping_by_value() -> None:
    """AlphaNet's: no weight moves further than the learning rate times the bound."""
    model, *_ = gradients_of_a_step()
    settings = recipe(**ONE_STEP, epochs=1, batch_size=96, clip_grad=1e-3, clip_mode="value")
    trained = train_loop(SPACE, few(), plan({"name": "sandwich", "random": 0}), settings)
    moved = [(trained.model.state_dict()[n] - p.detach()).abs().max().item() for n, p in model.named_parameters()]
    assert max(moved) == pytest.approx(1e-4, rel=1e-3)
    assert trained.history[0]["gradient_norm"] > 0.1  # as it was before


@pytest.mark.parametrize("wrong", [None, "abc", 5, [None], [torch.zeros(2), 1.0], [torch.zeros(3), None]])
def test_what_is_no_gradient_is_refused(wrong: Any) -> None:
    parameters = [torch.zeros(2), torch.zeros(1)]
    check_gradient([None, torch.ones(1)], parameters)
    with pytest.raises(ConfigError, match=r"combine\(sets, names, done\) must return a list of 2 gradients or None"):
        check_gradient(wrong, parameters)

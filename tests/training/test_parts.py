"""Samplers, objectives, and how a plan names them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raynas.config import validate
from raynas.data.config import DataConfig
from raynas.data.load import load_data
from raynas.documents import parse_yaml
from raynas.errors import ConfigError
from raynas.space import Arch, Space
from raynas.training.objectives import inplace_distillation, labels
from raynas.training.plan import Plan
from raynas.training.preflight import check_trainable
from raynas.training.samplers import Pass, sandwich, single_path
from tests.training.training_parts import SPACE, plan, recipe


def no_losses(archs: object) -> list[float]:
    raise AssertionError("these samplers ask for no losses")


def test_sandwich_is_largest_smallest_then_random() -> None:
    passes = sandwich(SPACE, np.random.default_rng(0), no_losses, random=2)
    assert [this.role for this in passes] == ["largest", "smallest", "random", "random"]
    assert passes[0].archs == (SPACE.largest(),) and passes[1].archs == (SPACE.smallest(),)
    assert len({this.name for this in passes}) == 4


def test_single_path_draws_every_choice_equally_often() -> None:
    """Uniform over dimensions, as AutoFormer draws: each depth half of the time, though depth 2 has more archs."""
    rng = np.random.default_rng(0)
    depths = [single_path(SPACE, rng, no_losses)[0].archs[0]["depth"] for _ in range(1000)]
    assert depths.count(1) == pytest.approx(500, abs=4 * math.sqrt(250))


def test_the_same_seed_gives_the_same_archs() -> None:
    drawn = [
        [sandwich(SPACE, rng, no_losses)[3].archs for _ in range(20)] for rng in map(np.random.default_rng, (5, 5, 6))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_label_loss_by_hand() -> None:
    """Logits (0, ln 3): probabilities 1/4, 3/4."""
    logits = torch.tensor([[0.0, math.log(3)]])
    this = Pass("random", "random", ())
    hard = labels(this, logits, torch.tensor([[0.0, 1.0]]), {})
    mixed = labels(this, logits, torch.tensor([[0.4, 0.6]]), {})
    assert hard.item() == pytest.approx(-math.log(3 / 4))
    assert mixed.item() == pytest.approx(-0.4 * math.log(1 / 4) - 0.6 * math.log(3 / 4))


def test_distillation_loss_by_hand() -> None:
    """The teacher says 1/4, 3/4; the student 1/2, 1/2. At temperature 2 the teacher says 1/(1+sqrt 3), the rest."""
    teacher = torch.tensor([[0.0, math.log(3)]])
    student = torch.tensor([[0.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0]])
    this = Pass("smallest", "smallest", ())
    loss = inplace_distillation(this, student, targets, {"largest": teacher})
    assert loss.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient[0].tolist() == pytest.approx([1 / 2 - 1 / 4, 1 / 2 - 3 / 4])  # softmax minus teacher: that of KL
    warm = inplace_distillation(this, student, targets, {"largest": teacher}, temperature=2.0)
    (gradient,) = torch.autograd.grad(warm, student)
    share = 1 / (1 + math.sqrt(3))
    assert gradient[0].tolist() == pytest.approx([2 * (1 / 2 - share), 2 * (share - 1 / 2)])
    largest = inplace_distillation(Pass("largest", "largest", ()), teacher, targets, {})
    assert largest.item() == pytest.approx(-math.log(1 / 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampler: sandwhich", "p.yaml:1: sampler: unknown sampler 'sandwhich' (did you mean 'sandwich'?)"),
        (
            "sampler:\n  name: sandwich\n  randoms: 3",
            "sampler 'sandwich' has no option 'randoms' (did you mean 'random'?)",
        ),
        ("objective: {name: labels, temperature: 2}", "objective 'labels' has no option 'temperature' (it has none)"),
        ("gradients: {name: sum, weight: 1}", "gradient policy 'sum' has no option 'weight' (known: clip_subnets)"),
        ("sampler: nowhere:thing", "sampler 'nowhere:thing' cannot be imported"),
        ("sampler: os:system", "sampler 'os:system' takes 1 arguments by position, and is called with 3"),
        ("samplr: sandwich", "unknown key 'samplr' (did you mean 'sampler'?)"),
    ],
)
def test_wrong_names_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Plan, parse_yaml(text, "p.yaml"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"lr": 1e300}, {"epochs": 10**40}, {"batch_size": 10**40}])
def test_numbers_beyond_any_use_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="less than or equal"):
        recipe(**changes)


def test_own_part_needs_its_required_option() -> None:
    with pytest.raises(ConfigError, match="needs the option 'share'"):
        validate(Plan, parse_yaml(f"sampler: {__name__}:needy", "p.yaml"))
    assert plan({"name": f"{__name__}:needy", "share": 0.5}).build_sampler()(SPACE, None, no_losses) == [0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gradients: os:getcwd", r"'os:getcwd' must make an object with assign\(passes\) and combine.*: text '/"),
        ("gradients: sys:exit", r"'sys:exit': making it ended the program"),
        ("gradients: builtins:print", "has no such assign"),
        ("sampler: operator:xor", "builtins|takes 2 arguments"),
        (f"sampler: {__name__}:sampler_of_text", "must return a list of Pass; it returned text 'abc'"),
        (f"sampler: {__name__}:sampler_of_archs", "must return a list of Pass, each with archs; in it is an Arch"),
        (f"sampler: {__name__}:sampler_of_one_name", "emitted two passes named 'random': give each a name"),
        (f"sampler: {__name__}:sampler_of_a_role", "a pass has the role 'teacher': it is one of largest, smallest, "),
        (f"sampler: {__name__}:sampler_of_an_arch_alone", "each with archs; the archs are an Arch"),
        (f"sampler: {__name__}:sampler_of_values", "each with archs; among the archs is a dict"),
        (f"sampler: {__name__}:sampler_of_a_number", "each with archs and a name; a name is the number 1"),
        (f"objective: {__name__}:objective_of_text", "must return a loss, a scalar tensor"),
        (f"objective: {__name__}:objective_without_gradient", "must return a loss, a scalar tensor with a gradient"),
    ],
)
def test_parts_that_break_their_contract_are_named_before_any_work(text: str, message: str) -> None:
    data = load_data(DataConfig(name="digits"))
    with pytest.raises(ConfigError, match=message):
        check_trainable(SPACE, data, validate(Plan, parse_yaml(text, "p.yaml")), recipe())


def sampler_of_text(space: object, rng: object, losses: object) -> str:
    return "abc"


def sampler_of_archs(space: Space, rng: object, losses: object) -> list[Arch]:
    return [space.smallest()]


def sampler_of_one_name(space: Space, rng: object, losses: object) -> list[Pass]:
    return [Pass("random", "random", (arch,)) for arch in (space.smallest(), space.largest())]


def sampler_of_a_role(space: Space, rng: object, losses: object) -> list[Pass]:
    return [Pass("first", "teacher", (space.largest(),))]  # type: ignore[arg-type]


def sampler_of_an_arch_alone(space: Space, rng: object, losses: object) -> list[Pass]:
    return [Pass("first", "largest", space.largest())]  # type: ignore[arg-type]


def sampler_of_values(space: Space, rng: object, losses: object) -> list[Pass]:
    return [Pass("first", "largest", (dict(space.largest()),))]  # type: ignore[arg-type]


def sampler_of_a_number(space: Space, rng: object, losses: object) -> list[Pass]:
    return [Pass(1, "largest", (space.largest(),))]  # type: ignore[arg-type]


def objective_without_gradient(this: object, logits: object, targets: object, outputs: object) -> torch.Tensor:
    return torch.tensor(1)


def objective_of_text(this: object, logits: object, targets: object, outputs: object) -> str:
    return "low"


def needy(space: object, rng: object, losses: object, *, share: float) -> list[float]:
    return [share]


def test_token_label_loss_by_hand() -> None:
    """The image says 1/4, 3/4; its two patches say 1/2, 1/2 and 1/4, 3/4; all are of the second class."""
    logits = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0], [0.0, math.log(3)]]])
    targets = torch.tensor([[[0.0, 1.0]] * 3])
    expected = -math.log(3 / 4) - (math.log(1 / 2) + math.log(3 / 4)) / 2
    assert labels(Pass("random", "random", ()), logits, targets, {}).item() == pytest.approx(expected)
    largest = {"largest": logits}
    student = logits.clone().requires_grad_()
    inplace_distillation(Pass("smallest", "smallest", ()), student, targets, largest).backward()
    assert student.grad is not None and student.grad.abs().max() < 1e-7  # it says what its teacher says


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixup": 1e-320}, "mixup: an alpha is 0, for none, or at least 1e-06"),
        ({"token_labels": {}, "mixup": 0.8}, "token_labels has mixing of its own"),
        ({"token_labels": {"mixing": "none"}, "cutmix": 1.0}, "cutmix pastes parts of patches"),
        ({"token_labels": {"mixing": "random"}}, "token_labels.mixing"),
    ],
)
def test_token_labels_with_what_they_do_not_go_with(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**changes)

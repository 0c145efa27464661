"""Python callers that give objects of wrong types: one line each that says what was expected."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
import torch

import raynas
from raynas.arguments import checked
from raynas.errors import UserError

if TYPE_CHECKING:
    from fractions import Fraction

SPACE = raynas.load_space("digits/vit")
SUPERNET = raynas.build_supernet(SPACE)

Name: TypeAlias = "str | os.PathLike[str]"


@checked(Fraction="fractions")
def take(
    name: Name,
    part: Fraction | None = None,
    seeds: Sequence[int] = (0,),
    values: Mapping[str, Any] | None = None,
    unsaid: Any = None,
) -> tuple[Any, ...]:
    """Take them."""
    return name, part, seeds, values, unsaid


def test_right_arguments_are_passed_on_and_numpys_numbers_as_pythons() -> None:
    from fractions import Fraction

    values = {"a": np.int64(1)}
    name, part, seeds, given, unsaid = take(Path("x"), Fraction(1, 2), np.arange(2), values, unsaid=[values])
    assert (name, part, seeds) == (Path("x"), Fraction(1, 2), [0, 1]) and given is values and unsaid[0] is values
    assert type(take("x", seeds=[np.int64(5)])[2][0]) is int
    assert take("x", seeds=range(2))[2] == [0, 1] and take("x") == ("x", None, (0,), None, None)


def test_a_checked_function_keeps_its_name_and_signature() -> None:
    assert take.__doc__ == "Take them." and take.__name__ == "take"
    with pytest.raises(TypeError):
        take()  # type: ignore[call-arg]


ROUND: list[Any] = []
ROUND.append(ROUND)

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: take(7), r"take: name must be str | os.PathLike\[str\], not 7"),
    (lambda: take(b"x"), "name must be"),
    (lambda: take("x", 0.5), "part must be Fraction | None, not 0.5"),
    (lambda: take("x", seeds="12"), "seeds must be"),
    (lambda: take("x", seeds=[True]), "seeds must be"),
    (lambda: take("x", seeds=ROUND), "seeds must be"),
    (lambda: take("x", values=[1]), "values must be"),
    (lambda: raynas.load_space(None), "load_space: name must be"),
    (lambda: raynas.load_arch(3.5), "load_arch: name must be"),
    (lambda: raynas.load_preset([]), "load_preset: name must be"),
    (lambda: raynas.load_preset("digits", [1]), "load_preset: overrides must be"),
    (lambda: raynas.open_run(None), "uri must be"),
    (lambda: raynas.Run(b"run"), "uri must be"),
    (lambda: raynas.report(None), "report: run must be Run | str"),
    (lambda: raynas.report("run", tensorboard=1), "tensorboard must be"),
    (lambda: raynas.status({}), "status: run must be"),
    (lambda: raynas.train(None), "train: preset must be Preset | str"),
    (lambda: raynas.train("digits", 5), "run_dir must be"),
    (lambda: raynas.train("digits", "run", data=5), "data must be DataConfig | Mapping"),
    (lambda: raynas.train("digits", "run", resources=2), "resources must be Resources | None"),
    (lambda: raynas.train("digits", "run", progress="yes"), "progress must be"),
    (lambda: raynas.pipeline("digits", None), "pipeline: run_dir must be"),
    (lambda: raynas.evolve_space("digits", "run", values=[1]), "values must be"),
    (lambda: raynas.evolve_space("digits", "run", values={"recipe.lr": 1}), "give a list of values"),
    (lambda: raynas.evolve_space("digits", "run", trials="2"), "trials must be int | None"),
    (lambda: raynas.import_model("timm", 1, "run", "digits"), "checkpoint must be"),
    (lambda: raynas.search_run("run", images=2.5), "images must be"),
    (lambda: raynas.search_run("run", precision="half"), "precision must be Literal"),
    (lambda: raynas.rank("run", archs="x"), "archs must be int"),
    (lambda: raynas.rank("run", truth=[1]), "truth must be"),
    (lambda: raynas.retrain("run", SPACE.smallest()), "archs must be Sequence"),
    (lambda: raynas.retrain("run", "best"), "archs must be Sequence"),
    (lambda: raynas.evaluate("run", 5), "evaluate: arch must be str | None"),
    (lambda: raynas.export("run", None), "export: arch must be Arch | str"),
    (lambda: raynas.export("run", seed="0"), "seed must be"),
    (lambda: raynas.check("digits", overrides=3), "check: overrides must be"),
    (lambda: raynas.Resources(workers=[1]), r"workers must be at least 0, not \[1\]"),
    (lambda: raynas.Resources(cpus=True), "cpus must be"),
    (lambda: raynas.Resources(replicas=1.5), "replicas must be"),
    (lambda: raynas.Resources(gpus="1"), "gpus must be between 0 and 1, not '1'"),
    (lambda: raynas.Space.from_dict([1]), "definition must be"),
    (lambda: raynas.Space.from_dict({1: 2}), "definition must be"),
    (lambda: raynas.Evolution(SPACE, objectives=["accuracy"]), "a search needs an objective"),
    (lambda: raynas.Evolution(SPACE, objectives="accuracy"), "a search needs an objective"),
    (lambda: raynas.Evolution(SPACE, constraints=5), "constraints: give a mapping"),
    (lambda: raynas.Evolution(SPACE, seed={}), "seed must be a whole number"),
    (lambda: raynas.Evolution(SPACE, seed=-1), "seed must be a whole number"),
    (lambda: raynas.Evolution(SPACE, constraints=np.array([1, 2])), "constraints: give a mapping"),
    (lambda: raynas.Evolution(SPACE).tell(5, [0.1]), "tell a list of archs"),
    (lambda: raynas.Evolution(SPACE).tell([], iter([0.1])), "tell a list of archs"),
    (lambda: SPACE.encode(None), "expected archs"),
    (lambda: SPACE.encode(SPACE.smallest()), "expected archs in a list"),
    (lambda: raynas.cost(SPACE, 0.5), "expected archs"),
    (lambda: SUPERNET(torch.zeros(2, 1, 8, 8), 7), "expected an arch, or"),
    (lambda: SUPERNET("images", SPACE.smallest()), "expected images as a tensor"),
    (lambda: SUPERNET(np.zeros((2, 1, 8, 8)), SPACE.smallest()), "expected images as a tensor"),
    (lambda: SUPERNET(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), SPACE.smallest()), "expected images as a tensor"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_a_wrong_type_is_one_line(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace(" | ", r" \| ")) as caught:
        call()
    assert "\n" not in str(caught.value)

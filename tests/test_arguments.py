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
from raynas.bench.truths import load_truth
from raynas.config import validate
from raynas.documents import parse_yaml
from raynas.errors import UserError
from raynas.nets.device import device_there
from raynas.search import Rung
from raynas.search import run_search as typed_run_search
from raynas.training.teacher_config import TeacherConfig

if TYPE_CHECKING:
    from fractions import Fraction

SPACE: Any = raynas.load_space("digits/vit")
SUPERNET: Any = raynas.build_supernet(SPACE)

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


given: Any = take  # not checked by types here
untyped: Any = raynas
run_search: Any = typed_run_search


def test_right_arguments_are_passed_on_and_numpys_numbers_as_pythons() -> None:
    from fractions import Fraction

    values = {"a": np.int64(1)}
    name, part, seeds, taken, unsaid = given(Path("x"), Fraction(1, 2), np.arange(2), values, unsaid=[values])
    assert (name, part, seeds) == (Path("x"), Fraction(1, 2), [0, 1]) and taken is values and unsaid[0] is values
    assert type(take("x", seeds=[np.int64(5)])[2][0]) is int
    assert take("x", seeds=range(2))[2] == [0, 1] and take("x") == ("x", None, (0,), None, None)


def test_a_checked_function_keeps_its_name_and_signature() -> None:
    assert take.__doc__ == "Take them." and take.__name__ == "take"
    with pytest.raises(TypeError):
        given()


class Scores:
    """A scorer of a user's own that returns something else than scores."""

    def __init__(self, returned: Any):
        self.returned = returned

    def score(self, archs: Any) -> Any:
        return self.returned


OF_ONE: Any = Scores([0.5])


def tell(score: Any) -> None:
    search = raynas.Evolution(SPACE)
    search.tell(search.ask(1), [score])


ROUND: list[Any] = []
ROUND.append(ROUND)

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: given(7), r"take: name must be str | os.PathLike\[str\], not 7"),
    (lambda: given(b"x"), "name must be"),
    (lambda: given("x", 0.5), "part must be Fraction | None, not 0.5"),
    (lambda: given("x", seeds="12"), "seeds must be"),
    (lambda: given("x", seeds=[True]), "seeds must be"),
    (lambda: given("x", seeds=ROUND), "seeds must be"),
    (lambda: given("x", values=[1]), "values must be"),
    (lambda: untyped.load_space(None), "load_space: name must be"),
    (lambda: untyped.load_arch(3.5), "load_arch: name must be"),
    (lambda: untyped.load_preset([]), "load_preset: name must be"),
    (lambda: untyped.load_preset("digits", [1]), "load_preset: overrides must be"),
    (lambda: untyped.open_run(None), "uri must be"),
    (lambda: untyped.Run(b"run"), "uri must be"),
    (lambda: untyped.report(None), "report: run must be Run | str"),
    (lambda: untyped.report("run", tensorboard=1), "tensorboard must be"),
    (lambda: untyped.status({}), "status: run must be"),
    (lambda: untyped.train(None), "train: preset must be Preset | str"),
    (lambda: untyped.train("digits", 5), "run_dir must be"),
    (lambda: untyped.train("digits", "run", data=5), "data must be DataConfig | Mapping"),
    (lambda: untyped.train("digits", "run", resources=2), "resources must be Resources | None"),
    (lambda: untyped.train("digits", "run", progress="yes"), "progress must be"),
    (lambda: untyped.pipeline("digits", None), "pipeline: run_dir must be"),
    (lambda: untyped.evolve_space("digits", "run", values=[1]), "values must be"),
    (lambda: untyped.evolve_space("digits", "run", values={"recipe.lr": 1}), "give a list of values"),
    (lambda: untyped.evolve_space("digits", "run", trials="2"), "trials must be a whole number from 1 | None"),
    (lambda: untyped.import_model("timm", 1, "run", "digits"), "checkpoint must be"),
    (lambda: untyped.search_run("run", images=2.5), "images must be"),
    (lambda: untyped.search_run("run", images=0), "images must be a whole number from 1 | None, not 0"),
    (lambda: untyped.search_run("run", name="../x"), "name must be a name of letters, digits, - and _, not"),
    (lambda: untyped.search_run("run", name=""), "name must be"),
    (lambda: untyped.rank("run", train=-1), "train must be a whole number from 0, not -1"),
    (lambda: untyped.rank("run", seeds=[]), "seeds must be a list of different whole numbers from 0 | None"),
    (lambda: untyped.retrain("run", seeds=[0, 0]), "seeds must be"),
    (lambda: untyped.retrain("run", seeds=[-1]), "seeds must be"),
    (lambda: untyped.retrain("run", seeds=[2**63]), "seeds must be"),
    (lambda: untyped.export("run", size=0), "size must be"),
    (lambda: untyped.search_run("run", precision="half"), "precision must be Literal"),
    (lambda: untyped.rank("run", archs="x"), "archs must be a whole number from 1"),
    (lambda: untyped.rank("run", truth=[1]), "truth must be"),
    (lambda: untyped.retrain("run", SPACE.smallest()), "archs must be Sequence"),
    (lambda: untyped.retrain("run", "best"), r"archs must be Sequence.*: give \['best'\]"),
    (lambda: untyped.evaluate("run", 5), "evaluate: arch must be str | None"),
    (lambda: untyped.export("run", None), "export: arch must be Arch | str"),
    (lambda: untyped.export("run", seed="0"), "seed must be"),
    (lambda: untyped.check("digits", overrides=3), "check: overrides must be"),
    (lambda: untyped.Resources(workers=[1]), r"workers must be at least 0, not \[1\]"),
    (lambda: untyped.Resources(cpus=True), "cpus must be"),
    (lambda: untyped.Resources(replicas=1.5), "replicas must be"),
    (lambda: untyped.Resources(gpus="1"), "gpus must be between 0 and 1, not '1'"),
    (lambda: untyped.Space.from_dict([1]), "definition must be"),
    (lambda: untyped.Space.from_dict({1: 2}), "definition must be"),
    (lambda: untyped.Evolution(SPACE, objectives=["accuracy"]), "a search needs an objective"),
    (lambda: untyped.Evolution(SPACE, objectives="accuracy"), "a search needs an objective"),
    (lambda: untyped.Evolution(SPACE, objectives={1: "max"}), "an objective has a name, such as accuracy, not 1"),
    (lambda: tell("0.5"), "the score of objective 'accuracy' must be a number or None, not '0.5'"),
    (lambda: untyped.LocalScorer("run", images="5"), "LocalScorer: images must be int | None, not '5'"),
    (lambda: untyped.LocalScorer("run", images=True), "LocalScorer: images must be"),
    (lambda: untyped.LocalScorer("run", scored=5), "LocalScorer: scored must be ScoredSupernet | None, not 5"),
    (lambda: untyped.ScorePool("run", replicas=None), "ScorePool: replicas must be int, not None"),
    (lambda: untyped.Evolution(SPACE, constraints=5), "constraints: give a mapping"),
    (lambda: untyped.Evolution(SPACE, seed={}), "seed must be a whole number"),
    (lambda: untyped.Evolution(SPACE, seed=-1), "seed must be a whole number"),
    (lambda: untyped.Evolution(SPACE, constraints=np.array([1, 2])), "constraints: give a mapping"),
    (lambda: untyped.Evolution(SPACE).tell(5, [0.1]), "tell a list of archs"),
    (lambda: untyped.Evolution(SPACE).tell([], iter([0.1])), "tell a list of archs"),
    (lambda: untyped.Evolution("digits/vit"), r"give a space, such as raynas.load_space\('digits/vit'\), not"),
    (lambda: untyped.build_supernet("digits/vit"), r"give a space, such as raynas.load_space\('digits/vit'\), not"),
    (lambda: untyped.NSGA2(3), "give a space"),
    (lambda: untyped.ParetoEvolution(space=None), "give a space"),
    (lambda: untyped.RandomSearch([]), "give a space"),
    (lambda: untyped.Evolution(SPACE, costs=[1]), "costs: give functions of codes by name"),
    (lambda: untyped.Evolution(SPACE, costs={"latency": 5}), "costs: give functions of codes by name"),
    (lambda: untyped.Evolution(SPACE).ranking(1.5), "ranking: n must be int, not 1.5"),
    (lambda: run_search(raynas.Evolution(SPACE), OF_ONE, batch="5"), "batch must be a whole number from 1, not '5'"),
    (lambda: run_search(raynas.Evolution(SPACE), OF_ONE, progress=True), "run_search: progress must be"),
    (lambda: run_search(raynas.Evolution(SPACE), OF_ONE, begin=5), "run_search: begin must be"),
    (lambda: run_search(raynas.Evolution(SPACE), OF_ONE, rungs=3), "rungs must be Sequence"),
    (lambda: run_search(raynas.Evolution(SPACE), OF_ONE, racing="on"), "racing must be 'off' or 'conservative' or"),
    (lambda: run_search(raynas.Evolution(SPACE), Scores(5)), "must return a list of scores; it returned the number 5"),
    (lambda: run_search(raynas.Evolution(SPACE), Scores(None)), "must return a list of scores"),
    (lambda: Rung(images=3, keep=2), "^Rung: keep: Input should be less than 1, found 2$"),
    (lambda: untyped.ProxyScorer(SPACE, "dss", seed=-1), "seed must be"),
    (lambda: untyped.ProxyScorer(SPACE, "dss", reference=0), "reference must be a whole number from 1, not 0"),
    (lambda: untyped.ablate("digits/ablation_vitas_v2_recipe", "a\0b"), "NUL"),
    (lambda: load_truth("vit").scorer(10**30), "scorer: seed must be a whole number from 0"),
    (lambda: device_there("/dev/null"), "device '/dev/null': "),
    (lambda: device_there("cuda:99"), "device 'cuda:99': "),
    (lambda: SPACE.encode(None), "expected archs"),
    (lambda: SPACE.encode(SPACE.smallest()), "expected archs in a list"),
    (lambda: untyped.cost(SPACE, 0.5), "expected archs"),
    (lambda: SUPERNET(torch.zeros(2, 1, 8, 8), 7), "expected an arch, or"),
    (lambda: SUPERNET("images", SPACE.smallest()), "expected images as a tensor"),
    (lambda: SUPERNET(np.zeros((2, 1, 8, 8)), SPACE.smallest()), "expected images as a tensor"),
    (lambda: SUPERNET(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), SPACE.smallest()), "expected images as a tensor"),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_a_wrong_type_is_one_line(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace(" | ", " or ")) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda location: raynas.load_space(location),
        lambda location: raynas.adapt("test_vit", data="digits", run_dir="unused", weights=Path(location)),
        lambda location: validate(TeacherConfig, parse_yaml(f"{{timm: test_vit, weights: '{location}'}}", "p.yaml")),
    ],
)
def test_a_location_with_credentials_is_refused_and_not_repeated(call: Callable[[str], Any]) -> None:
    with pytest.raises(UserError, match="must hold no credentials") as caught:
        call("s3://key:s3cr3t@bucket/x")
    assert "s3cr3t" not in str(caught.value)

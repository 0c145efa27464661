"""Optuna's samplers as searches; what every search promises is in test_contract.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search import OptunaSearch, RandomSearch, SearchConfig, build_search
from raynas.space import Space
from tests.search.search_parts import accuracy, drive


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "tep"}, "unknown sampler 'tep' .did you mean 'tpe'"),
        ({"sampler": {"name": "tpe", "n_startup": 1}}, "unknown key 'n_startup' .did you mean 'n_startup_trials'"),
        ({"sampler": {"n_startup_trials": 1}}, "sampler is a name, or a mapping of name and options"),
        ({"sampler": "grid"}, "use the search random"),
        ({"side_by_side": 0}, "side_by_side must be an integer of at least 1"),
        ({"sampler": "cmaes", "objectives": {"accuracy": "max", "macs": "min"}}, "cmaes has one objective, not 2"),
    ],
)
def test_mistakes_are_told_when_the_search_is_made(medium: Space, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        OptunaSearch(medium, **options)


@pytest.mark.parametrize(
    "sampler", ["nsgaiii", "qmc", "random", {"name": "cmaes", "with_margin": True}, "optuna.samplers:TPESampler"]
)
def test_any_sampler_searches_and_repeats_itself(medium: Space, sampler: Any) -> None:
    config = SearchConfig(name="optuna", evaluations=26, options={"sampler": sampler})
    asked, again = (drive(build_search(config, medium), piece=piece) for piece in (100, 3))
    assert asked == again and len(set(asked)) == 26


def test_proposals_outside_a_narrow_window_are_replaced_and_counted(medium: Space) -> None:
    low, high = np.quantile(cost(medium, medium.encode(medium.enumerate()))["macs"], (0.5, 0.52))
    search = OptunaSearch(medium, constraints={"macs": (float(low), float(high))}, evaluations=40)
    asked = drive(search)
    macs = cost(medium, asked)["macs"]
    assert len(set(asked)) == 40 and macs.min() >= low and macs.max() <= high
    counts = search.tally
    assert counts["taken"] + counts["mutant"] + counts["random"] == 40 == counts["proposed"]
    assert counts["infeasible"] > 20 and counts["mutant"] > 0 and counts["random"] > 0
    assert search.ask(1) == []
    (note,) = search.notes
    assert note.startswith(f"tpe proposed 40 archs: {counts['infeasible']} broke a bound and ")


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_it_learns(medium: Space, sampler: str) -> None:
    gains = []
    for seed in range(2):
        ours = drive(OptunaSearch(medium, sampler=sampler, evaluations=80, seed=seed))
        random = drive(RandomSearch(medium, evaluations=80, seed=seed))
        gains.append(np.mean([accuracy(arch) for arch in ours[40:]]) - np.mean([accuracy(arch) for arch in random]))
    assert min(gains) > 0.1  # of accuracies between 0.6 and 1.4


def test_the_study_knows_the_archs_that_were_scored_and_their_objectives(medium: Space) -> None:
    both: Any = {"accuracy": "max", "macs": "min"}
    search = OptunaSearch(medium, both, constraints={"macs": (None, 1e5)}, evaluations=60)
    drive(search, lambda arch: None if int(arch.id, 16) % 3 == 0 else accuracy(arch))
    search._tell_study()
    study, distributions = search._study
    known = {}
    for trial in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        code = medium.canonical(np.array([[trial.params[name] for name in distributions]], dtype=np.int16))
        known[medium.decode(code)[0]] = trial.values
    scored = {row.arch: row.objectives for row in search.scored()}
    assert known == {arch: [-values["accuracy"], values["macs"]] for arch, values in scored.items() if values}
    assert 20 < len(known) < 60 and search.tally["mutant"] > 0

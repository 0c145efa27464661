"""Space evolution by real supernets, as trials of Ray Tune: side by side, and called again.

A trial that trains supernets itself is in test_jobs.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.outer.evolution.progress import whereabouts
from raynas.outer.evolution.trials import Trial, run_trials
from raynas.outer.report_data import searched_spaces, trial_findings
from raynas.phases.report_data import traces
from raynas.presets.preset import Preset, override
from raynas.reports.collect import Tried, collect
from raynas.reports.evolution import budgets_differ
from raynas.reports.page import write_report
from raynas.runs.run import Run
from raynas.space import load_space
from tests.small_run import PRESET
from tests.training_of_small_run import trained_run

LIMIT = 900_000
SCORED_HERE = Resources(replicas=0)


def preset(**settings: Any) -> Preset:
    evolution = {"iterations": 1, "archs": 12, "fewest": 2, "most_steps": 1, **settings}
    return override(PRESET, {"plan.sampler": {"name": "sandwich"}, "space_evolution": evolution})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the training of the first iteration leaves, made without Ray Train."""
    return Path(trained_run(tmp_path_factory.mktemp("trained") / "run").uri)


@pytest.mark.slow
def test_settings_are_tried_side_by_side_and_never_twice(ray_session: None, trained: Path, tmp_path: Path) -> None:
    values = {"space_evolution.tau": [0.2, 50.0]}
    for tau in values["space_evolution.tau"]:
        shutil.copytree(trained, tmp_path / f"run/trials/tau={tau}/iterations/0")
    weights_file = tmp_path / "run/trials/tau=50.0/iterations/0/supernet.safetensors"
    weights_file.write_bytes(b"damaged")
    lines: list[str] = []
    interrupt = signal.getsignal(signal.SIGINT)
    ended, failed = run_trials(preset(), tmp_path / "run", SCORED_HERE, values, at_a_time=2, progress=lines.append)
    assert signal.getsignal(signal.SIGINT) == interrupt
    assert (ended.values, ended.error) == ({"space_evolution.tau": 0.2}, None)
    assert failed.values == {"space_evolution.tau": 50.0} and failed.error is not None
    assert f"tau=50.0 failed: {failed.error}" in lines and "supernet.safetensors" in failed.error
    assert whereabouts(ended.run, 0) == "iteration 0: 12 of 12 subnets scored"
    assert whereabouts(ended.run, 1) is None
    weights_file.write_bytes((trained / weights_file.name).read_bytes())
    found = run_trials(preset(), tmp_path / "run", SCORED_HERE, values, at_a_time=2, search=True, progress=lines.append)
    assert "going on with the experiment in " + Run(tmp_path / "run").name in lines
    assert sorted(trial.values["space_evolution.tau"] for trial in found) == [0.2, 50.0]
    for trial in found:
        (iteration,) = trial.iterations
        assert trial.run.path == tmp_path / f"run/trials/tau={trial.values['space_evolution.tau']}"
        assert load_space(trial.run.path / "spaces/best.yaml") == iteration.space
        rows = trial.run.store.read("space_scores").to_pylist()
        scored = Run(trial.run.path / "iterations/0").store.read("scores").to_pylist()
        assert {row["arch"]: row["accuracy"] for row in rows}.items() <= {
            row["arch"]: row["accuracy"] for row in scored
        }.items()
        assert len({row["arch"] for row in scored}) == len(scored)
        assert len(rows) == 12 and max(row["macs"] for row in rows) <= LIMIT
        weights = Run(trial.run.path / "iterations/0").read_json("supernet.json")["fingerprint"]
        phases = Run(trial.run.path / "iterations/0").store.read("phases").to_pylist()
        took = sum(row["seconds"] for row in phases if row["name"] == "space evolution")
        assert iteration.seconds == pytest.approx(took)
        for table in ("spaces", "space_moves", "space_scores"):
            assert set(trial.run.store.read(table)["supernet"].to_pylist()) == {weights}
    assert len({trial.best.quality.error for trial in found}) == 1  # the same supernet and the same subnets
    assert len({path.parent for path in (tmp_path / "run/tune").rglob("events.out.tfevents.*")}) == 3  # by attempt
    log = (tmp_path / "run/trials/tau=50.0/space_evolution.txt").read_text().splitlines()
    told = [line for line in lines if line.startswith("tau=50.0: ") and not line.startswith("tau=50.0: iteration ")]
    assert told == [f"tau=50.0: {line}" for line in log[1:]]
    check_searches_and_report(Run(tmp_path / "run"), found)
    with pytest.raises(UserError, match="trials began with other settings"):
        run_trials(preset(archs=13), tmp_path / "run", SCORED_HERE, values)
    load_space("digits/vit").save(tmp_path / "space.yaml")
    definition = yaml.safe_load((tmp_path / "space.yaml").read_text())
    definition["dimensions"]["width"] = definition["dimensions"]["width"][1:]
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(definition))
    with pytest.raises(UserError, match="trials began with other settings: spaces"):
        run_trials(override(preset(), {"space": str(tmp_path / "space.yaml")}), tmp_path / "run", SCORED_HERE, values)


def check_searches_and_report(run: Run, trials: list[Trial]) -> None:
    """Every space was searched by the preset, and the experiment's page has each trial's numbers."""
    searched = {trial.values["space_evolution.tau"]: searched_spaces(trial.run) for trial in trials}
    for (row,) in searched.values():
        assert row["search"] == f"evolution within macs in [.., {LIMIT}], on 288 images" and row["evaluations"] == 14
        assert row["macs"] <= LIMIT and (row["iteration"], row["name"]) == (0, "digits/vit")
    scores = Run(trials[0].run.local_or_uri("iterations/0")).store.read("scores").to_pylist()
    assert min(1 - row["accuracy"] for row in scores) <= searched[0.2][0]["error"]
    trial = Run(trials[0].run.uri)
    write_report(trial, replace(collect(trial), traces=traces(trial), searched=searched_spaces(trial)))
    assert searched[0.2][0]["arch"] in trial.read_bytes("report.html").decode()
    other = Tried("tau=9.0", "trials/tau=9.0", [], [])
    found = replace(collect(run), traces=traces(run), searched=searched_spaces(run))
    write_report(run, replace(found, trials=[*trial_findings(run), other]))
    page, error = run.read_bytes("report.html").decode(), trials[0].best.quality.error
    for tau in (0.2, 50.0):
        assert f"<td>tau={tau}</td>" in page and f"trials/tau={tau}/spaces/0.yaml" in page
    assert page.count(f">{error:.2%}</td>") == 4  # the first and the lowest of both
    assert "The space evolved in 2 trial(s)" in page and "cannot be compared" not in page
    assert "Without a finished iteration: tau=9.0." in page
    longer = {**searched[0.2][0], "evaluations": 99}
    assert "cannot be compared" in budgets_differ([*searched[0.2], longer])


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"trials": 3}, "nothing to suggest values for"),
        ({}, {"values": {"space_evolution.tau": [0.2, 0.4]}, "trials": 3}, "only 2 combinations"),
        ({}, {"workers": 0}, "workers must be at least 1, not 0"),
        ({}, {"values": {"space_evolution.tau": [0.2, 0.2]}}, "have the name tau=0.2"),
        ({}, {"values": {"space_evolution.tua": [1]}}, "unknown key 'tua' .did you mean 'tau'"),
        ({}, {"values": {"space_evolution.steps": [{"heads": 1}, {"head": 1}]}}, "no dimension 'head' to move"),
        ({}, {"values": {"space": ["digits/vit", "digits/vti"]}}, "did you mean 'digits/vit'"),
        ({}, {"values": {"seed": [1]}, "trials": 2, "at_a_time": 2}, "give trials or at_a_time"),
        ({"space_evolution.warm_start": True, "space": "digits/twins", "reference": None}, {}, "only ordinal sharing"),
        ({"space_evolution.largest": 10}, {}, "itself holds"),
        ({}, {"values": {"space_evolution.top": [13]}}, "top: 13 of 12 archs"),
        ({"search.constraints.macs": [None, 10]}, {}, "no arch has macs"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_is_made(
    changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    counts = {name: options.pop(name) for name in {"workers"} & options.keys()}
    with pytest.raises(UserError, match=message):
        run_trials(override(preset(), changes), tmp_path / "run", Resources(**counts), **options)
    assert not (tmp_path / "run").exists()

"""Presets tuned: what is refused before anything is written, and trials that train, search and are run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.cluster.resources import Resources
from raynas.commands.main import main
from raynas.documents import write_yaml
from raynas.errors import UserError
from raynas.outer.tuning.preset import _applied
from raynas.presets.preset import override
from raynas.results.phases import read_phases
from raynas.runs.run import Run
from raynas.space.load import SPACES
from tests.small_run import PRESET

LR = {"recipe.lr": {"low": 1e-4, "high": 1e-2, "log": True}}


def test_wholes_are_applied_before_their_parts() -> None:
    values = {"plan.sampler.random": 3, "plan.sampler.name": "sandwich", "fix.blocks.0.heads": 2, "fix.depth": 3}
    preset = _applied(override(PRESET, {"fix": {"width": 32}}), values)
    assert preset.plan.sampler.name == "sandwich" and preset.plan.sampler.options["random"] == 3
    assert preset.fix == {"width": 32, "blocks.0.heads": 2, "depth": 3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"params": {"recipe.lrr": LR["recipe.lr"]}}, "tune.params: recipe.lrr: .*did you mean 'lr'"),
        ({"params": {**LR, "recipe.lrr": LR["recipe.lr"]}}, "^tune.params: recipe.lrr: .*did you mean 'lr'"),
        ({"params": {"recipe.lr": {"low": -1.0, "high": 1.0}}}, r"tune.params: recipe.lr: -1.0: .*recipe.lr"),
        ({"params": {"recipe.epochs": {"low": 0.5, "high": 1.5}}}, "tune.params: recipe.epochs: 0.5"),
        ({"params": {"fix.depth": {"choices": [3, 9]}}}, "fix.depth: 9: fix: depth of digits/vit is one of 3, 4, 5"),
        ({"params": {"fix.dept": {"choices": [3]}}}, "has no dimension 'dept' .did you mean 'depth'"),
        ({"params": {"space": {"choices": ["digits/vit", "digits/vti"]}}}, "did you mean 'digits/vit'"),
        (
            {"params": {**LR, "retrain.recipe.epochs": {"low": 1, "high": 2}}},
            "tune.params: retrain.recipe.epochs: searched does not depend on it",
        ),
        (
            {
                "params": {"search.evaluations": {"low": 9, "high": 20}},
                "objectives": {"probes": "max", "seconds": "min"},
            },
            "search.evaluations: probes, seconds do not depend on it",
        ),
        ({"params": {"space_evolution.tau": {"low": 0.1, "high": 0.2}}}, "searched does not depend on it"),
        ({"params": {"tune.trials": {"low": 1, "high": 3}}}, "a tuning does not tune itself"),
        ({"objectives": {"searhced": "max"}}, "no measure 'searhced' .did you mean 'searched'"),
        ({"objectives": {"accuracy": "max"}}, r"no measure 'accuracy' .known: probes, [^.]*retrained, tau, conflict"),
        ({"pruner": "asha"}, "pruner: the probes are scored every .* no trial would be ended early: set recipe.health"),
        (
            {
                "params": {"search.constraints": {"choices": [{"macs": [None, 8e5]}, {"macs": [None, 9e5]}]}},
                "objectives": {"hypervolume": "max"},
            },
            "hypervolume is compared up to one limit, not up to 800,000 macs and 900,000 macs",
        ),
        ({"objectives": {"searched": "min"}}, "searched is better the more it is: max"),
        ({"objectives": {"tested": "max"}}, "tested is no objective: the test split is for reporting"),
        ({"objectives": {"seconds": "min"}, "pruner": "asha"}, "accuracy of the probes, which says nothing of seconds"),
        ({"objectives": {"probes": "max", "seconds": "min"}, "pruner": "asha"}, "a study of 2 objectives has none"),
        ({"sampler": "cmaes", "params": {"fix.depth": {"choices": [3, 4]}}}, "cmaes learns ranges of .* take tpe"),
        ({"sampler": "cmaes", "objectives": {"probes": "max", "seconds": "min"}}, "cmaes has one objective, not 2"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_made(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"params": LR, **settings}
    with pytest.raises(UserError, match=message) as raised:
        raynas.tune(PRESET, tmp_path / "run", **given)
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("alone", [True, False], ids=["in a file of its own", "in a preset"])
def test_wrong_parameters_in_a_file_are_told_together_with_their_lines(
    alone: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = (
        "params:\n  recipe.lrr: {low: 1, high: 2}\n  recipe.lr: {low: 0.1, high: 0.2}\n  fix.depth: {choices: [3, 9]}\n"
    )
    file, at = tmp_path / "my.yaml", 2
    if alone:
        file.write_text(params)
        words = ["tune", "digits", "--tune", str(file)]
    else:
        shipped = (SPACES / "digits/preset.yaml").read_text()
        file.write_text(f"{shipped}tune:\n" + "".join(f"  {line}\n" for line in params.splitlines()))
        words, at = ["tune", str(file)], len(shipped.splitlines()) + 3
    assert main([*words, "--run", str(tmp_path / "run")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"raynas: {file}:{at}: params.recipe.lrr: 1: ") and "did you mean 'lr'" in first
    assert second.startswith(f"raynas: {file}:{at + 2}: params.fix.depth: 9: ")


def test_energy_is_not_measured_where_nothing_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raynas.energy.counters.POWERCAP", tmp_path / "none")
    monkeypatch.setattr("raynas.energy.counters.GPUS", tmp_path / "none")
    with pytest.raises(UserError, match=r"energy cannot be measured on this machine .*CPU: no counters in"):
        raynas.tune(PRESET, tmp_path / "run", LR, objectives={"energy": "min"})
    with pytest.raises(UserError, match="energy cannot be measured"):
        raynas.ablate({"preset": "digits", "rows": {"one": {}}, "measure": ["energy"]}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_preset_without_the_section_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="says nothing of tuning: give it a section tune, or a file"):
        raynas.tune(PRESET, tmp_path / "run")
    write_yaml(tmp_path / "mine.yaml", {"tune": {"params": {"recipe.lr": {"low": 2, "high": 1}}}})
    with pytest.raises(UserError, match=r"mine.yaml:\d+: params.recipe.lr: low 2 is above high 1"):
        raynas.tune(PRESET, tmp_path / "run", tune=tmp_path / "mine.yaml")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_presets_trials_are_run_directories(ray_session: None, tmp_path: Path) -> None:
    params = {**LR, "fix.depth": {"choices": [3, 4]}, "recipe.batch_size": {"choices": [128, 100_000]}}
    settings: dict[str, Any] = {
        "params": params,
        "objectives": {"searched": "max", "seconds": "min"},
        "sampler": "nsgaii",
        "trials": 3,
        "at_a_time": 2,
        "seed": 1,
    }
    lines: list[str] = []
    preset = override(PRESET, {"recipe.epochs": 2, "recipe.health.probe_every": 1})
    tuned = raynas.tune(preset, tmp_path / "run", **settings, progress=lines.append)
    states = {trial.state for trial in tuned.trials}
    assert states <= {"finished", "failed"} and "finished" in states
    for trial in tuned.trials:
        run = Run(tmp_path / "run" / trial.run)
        assert (trial.state == "failed") == (trial.values["recipe.batch_size"] == 100_000)
        if trial.state == "failed":
            continue
        assert run.space["depth"].choices == (trial.values["fix.depth"],)
        assert run.preset.recipe.lr == trial.values["recipe.lr"] and run.preset.tune is None
        scores = run.search().scores()
        assert trial.results["searched"] == scores[run.arch("best").id]["accuracy"]
        assert trial.results["seconds"] == pytest.approx(sum(row["seconds"] for row in read_phases(run)))
    steps = tuned.run.store.read("trial_steps").to_pylist()
    assert {row["step"] for row in steps} == {1, 2}
    best = tuned.best
    assert best is not None
    assert main(["evaluate", str(tmp_path / "run" / best.run)]) == 0
    page = Path(raynas.report(tmp_path / "run")).read_text()
    assert "The best by searched of 3 trials" in page and page.count("<svg") >= 4
    again = raynas.tune(preset, tmp_path / "run", **settings)
    assert again.trials == tuned.trials
    with pytest.raises(UserError, match=r"tune began with other settings: preset.recipe.epochs was 2, is 3"):
        raynas.tune(override(preset, {"recipe.epochs": 3}), tmp_path / "run", **settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_train_inside_trials_side_by_side_gives_the_same(ray_session: None, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"params": LR, "objectives": {"searched": "max"}, "sampler": "random", "trials": 2}
    here = raynas.tune(PRESET, tmp_path / "here", **settings, resources=Resources(0, 0), at_a_time=2)
    nested = raynas.tune(PRESET, tmp_path / "nested", **settings, resources=Resources(1, 1), at_a_time=2)
    assert [trial.values for trial in nested.trials] == [trial.values for trial in here.trials]
    assert [trial.results for trial in nested.trials] == [trial.results for trial in here.trials]
    assert {trial.state for trial in nested.trials} == {"finished"}

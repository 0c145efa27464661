"""The study of a tuning: the same trials however often its driver is killed, in a file that Optuna's own tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial

from raynas.errors import RunDirError, UserError
from raynas.outer.trials import Proposed, Trial, read_trials
from raynas.outer.tuning.study import Study
from raynas.outer.tuning.study_file import STUDY
from raynas.outer.tuning.warm_start import EARLIER, earlier_trials
from raynas.runs.run import Run
from tests.outer.tuning_parts import PARAMS, carry_on, config, table

ASHA = {"name": "asha", "min_resource": 1, "reduction_factor": 2}
KILLED = [("asked", 1), ("begun", 2), ("step", 3), ("pruning", 4), ("pruning", 5), ("ended", 6), ("asked", 7)]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("grid", "cmaes", "qmc")]


def study_of(run: Run) -> optuna.Study:
    """The study as Optuna's own tools see it."""
    return optuna.load_study(study_name="lr", storage=f"sqlite:///{run.path}/{STUDY}")


def settings_with(sampler: str) -> Any:
    params = {**PARAMS, "x": {"low": 0.0, "high": 1.0, "step": 1.0}} if sampler == "grid" else PARAMS
    return config(sampler=sampler, params=params, pruner=ASHA)


@pytest.mark.parametrize("sampler", ["tpe", *SLOW])
def test_a_killed_driver_or_a_lost_file_changes_no_trial(sampler: str, tmp_path: Path) -> None:
    settings = settings_with(sampler)
    undisturbed, killed, lost = (Run(tmp_path / name / "lr", create=True) for name in ("undisturbed", "killed", "lost"))
    carry_on(undisturbed, settings, 10)
    for moment in KILLED:
        carry_on(killed, settings, 10, moment)
    carry_on(killed, settings, 10)
    carry_on(lost, settings, 5)
    Path(f"{lost.path}/{STUDY}").unlink()
    carry_on(lost, settings, 10)
    assert len(table(undisturbed)) == 10 and {row[2] for row in table(undisturbed)} == {"finished", "pruned"}
    assert table(killed) == table(undisturbed) == table(lost)
    for run in (killed, lost):
        states = {"COMPLETE": "finished", "PRUNED": "pruned"}
        assert [states[trial.state.name] for trial in study_of(run).trials] == [row[2] for row in table(run)]
    assert study_of(killed).best_value == min(row[3]["loss"] for row in table(killed) if row[3])


def test_a_grid_ends_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path / "lr", create=True)
    carry_on(run, settings_with("grid"), 1000)
    assert len(table(run)) == len({str(row[1]) for row in table(run)}) == 2 * (1 + 4)


def test_the_same_seed_gives_the_same_trials_and_another_one_others(tmp_path: Path) -> None:
    tables = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = Run(tmp_path / name, create=True)
        carry_on(run, config(seed=seed), 3)
        tables.append([row[1] for row in table(run)])
    assert tables[0] == tables[1] != tables[2]


def test_a_study_of_other_trials_is_refused(tmp_path: Path) -> None:
    run, other = Run(tmp_path / "a/lr", create=True), Run(tmp_path / "b/lr", create=True)
    carry_on(run, config(), 2)
    carry_on(other, config(seed=1), 2)
    run.write_bytes(STUDY, other.read_bytes(STUDY))
    with pytest.raises(RunDirError, match="not the study of these trials: move it away"):
        carry_on(run, config(), 3)
    run.write_bytes(STUDY, b"nothing of the kind")
    with pytest.raises(RunDirError, match=r"study.db cannot be read .*: move it away"):
        carry_on(run, config(), 3)


def test_readers_see_a_study_whole_while_it_is_written(tmp_path: Path) -> None:
    run = Run(tmp_path / "lr", create=True)
    carry_on(run, config(), 1)
    reader = study_of(run)
    assert len(reader.trials) == 1
    carry_on(run, config(), 2)  # in place: a reader that has the file open sees it
    assert len(reader.trials) == 2


def test_earlier_trials_are_learnt_from(tmp_path: Path) -> None:
    first = Run(tmp_path / "first", create=True)
    carry_on(first, config(), 3)
    foreign = optuna.create_study(storage=f"sqlite:///{tmp_path}/other.db", study_name="mine", direction="minimize")
    of: Any = {"x": FloatDistribution(0, 5), "opt": CategoricalDistribution(["a"])}
    for x in (0.1, 0.7, 3.0):
        foreign.add_trial(create_trial(params={"x": x, "opt": "a"}, distributions=of, value=x))
    lines: list[str] = []
    sources = (str(first.path), f"sqlite:///{tmp_path}/other.db#mine")
    settings = config(warm_start=sources)
    earlier = earlier_trials(settings, progress=lines.append)
    assert len(earlier) == 3 + 2 and "beginning with 2 of the 3 finished trials" in lines[1]
    run = Run(tmp_path / "lr", create=True)
    run.write_json(EARLIER, earlier)
    study = Study(run, settings)
    proposed = study.ask()
    assert isinstance(proposed, Proposed) and proposed.number == len(earlier)
    study.tell(Trial(proposed.number, proposed.name, proposed.values, proposed.run, "failed", reason="it did"))
    assert [trial.state.name for trial in study_of(run).trials] == ["COMPLETE"] * len(earlier) + ["FAIL"]
    for wrong, message in (
        ({"params": {"z": {"low": 0, "high": 1}}}, "it tunes opt, which is no parameter here"),
        ({"objectives": {"error": "min"}}, "its trials have no error"),
        ({"params": {**PARAMS, "x": {"low": 2.0, "high": 3.0}}}, "none of its 3 finished trials has values"),
        ({"warm_start": ("nothing://a#b",)}, "it cannot be read"),
        ({"warm_start": (f"sqlite:///{tmp_path}/another.db#mine",)}, "there is no file .*another.db"),
        ({"warm_start": (f"sqlite:///{tmp_path}/other.db#mien",)}, "it has no study 'mien' .did you mean 'mine'"),
        ({"objectives": {"loss": "max"}, "warm_start": sources[1:]}, "its objectives are min, not max"),
    ):
        with pytest.raises(UserError, match=message):
            earlier_trials(config(**{"warm_start": sources[:1], **wrong}))
    assert read_trials(first) and not read_trials(run) and not (tmp_path / "another.db").exists()


def test_named_objectives_of_a_study_of_optuna_are_not_taken_for_others(tmp_path: Path) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/a.db", study_name="mine", directions=["minimize"] * 2)
    study.add_trial(create_trial(params={"x": 0.5}, distributions={"x": FloatDistribution(0, 1)}, values=[0.1, 9.0]))
    params, source = {"x": PARAMS["x"]}, (f"sqlite:///{tmp_path}/a.db#mine",)
    ours, swapped = ({name: "min" for name in names} for names in (("loss", "seconds"), ("seconds", "loss")))
    assert len(earlier_trials(config(params=params, objectives=swapped, warm_start=source))) == 1  # without names
    study.set_metric_names(["loss", "seconds"])
    assert len(earlier_trials(config(params=params, objectives=ours, warm_start=source))) == 1
    with pytest.raises(UserError, match="its objectives are loss, seconds, not seconds, loss"):
        earlier_trials(config(params=params, objectives=swapped, warm_start=source))


def test_a_lost_study_is_made_anew_with_what_it_began_with(tmp_path: Path) -> None:
    """Even if the studies that it began with are gone, or have gone on."""
    first = Run(tmp_path / "first", create=True)
    carry_on(first, config(), 3)
    undisturbed, lost = (Run(tmp_path / name / "lr", create=True) for name in ("undisturbed", "lost"))
    settings = config(warm_start=(str(first.path),), sampler="tpe")
    for run in (undisturbed, lost):
        run.write_json(EARLIER, earlier_trials(settings))
        carry_on(run, settings, 2)
    carry_on(first, config(), 5)
    Path(f"{lost.path}/{STUDY}").unlink()
    for run in (undisturbed, lost):
        carry_on(run, settings, 4)
    assert [row[0] for row in table(lost)] == [3, 4, 5, 6] and table(lost) == table(undisturbed)
    found, wanted = (study_of(run).trials for run in (lost, undisturbed))
    assert [(t.number, t.params, t.value) for t in found] == [(t.number, t.params, t.value) for t in wanted]


def test_earlier_values_between_steps_are_left_out(tmp_path: Path) -> None:
    foreign = optuna.create_study(storage=f"sqlite:///{tmp_path}/other.db", study_name="mine", direction="minimize")
    for x in (0.25, 0.3, 0.75):
        foreign.add_trial(create_trial(params={"x": x}, distributions={"x": FloatDistribution(0, 1)}, value=x))
    params = {"x": {"low": 0.0, "high": 1.0, "step": 0.25}}
    settings = config(params=params, warm_start=(f"sqlite:///{tmp_path}/other.db#mine",))
    run = Run(tmp_path / "lr", create=True)
    run.write_json(EARLIER, earlier_trials(settings))
    Study(run, settings)
    assert [trial.params["x"] for trial in study_of(run).trials] == [0.25, 0.75]


def test_trials_of_another_space_are_no_start(tmp_path: Path) -> None:
    first = Run(tmp_path / "first", create=True)
    carry_on(first, config(), 1)
    ours, other = ({"name": name, "dimensions": {"depth": [size]}} for name, size in (("ours", 3), ("other", 4)))
    first.write_yaml("tune.yaml", {"settings": {"spaces": [other]}})
    settings = config(warm_start=(str(first.path),))
    assert len(earlier_trials(settings, [ours, other])) == 1
    with pytest.raises(UserError, match=r"its trials are of another space .other, not ours."):
        earlier_trials(settings, [ours])


def test_earlier_trials_of_optuna_keep_the_conditions_on_lists(tmp_path: Path) -> None:
    first = Run(tmp_path / "lr", create=True)
    carry_on(first, config(sampler="random"), 6)
    assert any("y" in values for _, values, _, _ in table(first))
    settings = config(warm_start=(f"sqlite:///{first.path}/{STUDY}#lr",))
    assert len(earlier_trials(settings)) == 6

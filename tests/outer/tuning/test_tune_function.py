"""An own function tuned on a real Ray: every way in which a trial may end, and what is refused before any begins."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from ray import cloudpickle

import raynas
from raynas.cluster.losses import ENDED
from raynas.cluster.resources import Resources
from raynas.errors import RunDirError, UserError
from raynas.outer import course
from raynas.outer.tuning.function import code_of, numbers
from raynas.outer.tuning.tuned import read_tuned
from raynas.runs.run import Run
from tests.test_examples import ROOT, python_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers of Ray do not find modules of tests

LR: dict[str, Any] = {"lr": {"low": 1e-3, "high": 1.0, "log": True}}


def ends(config: Mapping[str, Any], trial: Any) -> Any:
    """End in the way that the configuration says, and leave a mark for each call."""
    with open(f"{trial.folder}/calls", "a") as calls:
        calls.write("x")
    for step in range(1, 4):
        trial.report(1.0 if config["way"] == "badly" else 0.1 * step)
    if config["way"] == "raises":
        raise KeyError("no such thing")
    if config["way"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if config["way"] == "exits":
        sys.exit(0)
    return {"well": 0.3, "badly": 1.0, "nan": float("nan"), "text": "much"}[config["way"]]


WAYS = {
    "well": ("finished", None),
    "raises": ("failed", "KeyError: 'no such thing' ("),
    "killed": ("failed", f"{ENDED}, again and again"),
    "exits": ("failed", "it ended the program (sys.exit(0))"),
    "nan": ("failed", "loss is not a finite number (nan)"),
    "text": ("failed", "loss must be a number, not text"),
    "badly": ("pruned", "pruned at 1, with 1"),
}


def test_a_trial_ends_in_any_way_and_ends_no_other(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "LOST", 1)  # each costs the start of a process
    lines: list[str] = []
    # The first one sets the standard; the others follow in the order of a grid.
    settings: dict[str, Any] = {
        "params": {"way": {"choices": list(WAYS)}},
        "objectives": {"loss": "min"},
        "sampler": "grid",
        "pruner": f"{__name__}:Above",
        "at_a_time": 4,
        "progress": lines.append,
    }
    tuned = raynas.tune(ends, tmp_path / "ways", **settings)
    assert len(tuned.trials) == len(WAYS)
    for trial in tuned.trials:
        state, why = WAYS[trial.values["way"]]
        assert trial.state == state, trial
        assert (trial.reason is None) if why is None else str(trial.reason).startswith(why)
        folder = tmp_path / "ways" / trial.run
        assert (folder / "calls").read_text() == ("xx" if trial.values["way"] == "killed" else "x")
        assert (folder / "error.txt").exists() == (state == "failed" and trial.values["way"] != "killed")
    assert "tests/outer/tuning/test_tune_function.py" in str(
        next(t.reason for t in tuned.trials if t.values["way"] == "raises")
    )
    assert tuned.best is not None and tuned.best.results == {"loss": 0.3}
    study = optuna.load_study(study_name="ways", storage=f"sqlite:///{tmp_path}/ways/study.db")
    assert sorted(trial.state.name for trial in study.trials) == ["COMPLETE", *["FAIL"] * 5, "PRUNED"]
    assert len([line for line in lines if " failed: " in line]) == 5
    assert len([line for line in lines if line.endswith(f"{ENDED}; it begins again")]) == 1
    began = time.monotonic()
    again = raynas.tune(ends, tmp_path / "ways", **settings)
    assert again.trials == tuned.trials and time.monotonic() - began < 20  # without a process
    assert tuned.study().best_value == 0.3
    with pytest.raises(RunDirError, match=r"tune began with other settings: tune.objectives"):
        raynas.tune(ends, tmp_path / "ways", **{**settings, "objectives": {"loss": "max"}})
    with pytest.raises(RunDirError, match=r"is a tuning, each of whose trials .* such as .*trials/0000: give"):
        raynas.search_run(tmp_path / "ways")
    page = Path(raynas.report(tmp_path / "ways")).read_text()
    assert "The best of 7 trials (1 finished, " in page and "its process has ended" in page and "<svg" in page


OUT_OF_MEMORY = """
import os, psutil, sys, time
import raynas

def fit(config, trial):
    with open(f"{trial.folder}/calls", "a") as calls:
        calls.write("x")
    if config["way"] == "hungry":
        time.sleep(4)
        held = [b"x" * 2**20 for _ in range(6000)]
        time.sleep(60)
    time.sleep(15)
    return {"loss": 1.0}

memory = psutil.virtual_memory()
os.environ["RAY_memory_usage_threshold"] = f"{(memory.total - memory.available + 6e9) / memory.total:.3f}"
os.environ["RAY_memory_monitor_refresh_ms"] = "50"
params = {"way": {"choices": ["waits", "hungry"]}}
raynas.tune(fit, sys.argv[1], params, objectives={"loss": "min"}, sampler="grid", at_a_time=2)
"""
"""Ray ends the newest process once the machine has 6 GB more in use than at the beginning."""


@pytest.mark.slow
def test_a_trial_that_ray_ends_for_want_of_memory_ends_no_other(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, tmp_path / "run"], check=True, timeout=300)
    tuning = read_tuned(Run(tmp_path / "run"))
    assert tuning is not None
    trials = {trial.values["way"]: trial for trial in tuning.trials}
    assert trials["hungry"].state == "failed" and str(trials["hungry"].reason).startswith("out of memory: its machine")
    assert trials["waits"].state == "finished"
    assert (tmp_path / "run" / trials["hungry"].run / "calls").read_text() == "x"  # it is not begun again


def another(config: Mapping[str, Any]) -> dict[str, float]:
    return {"loss": 0.5}


def test_if_all_trials_fail_a_warning_says_why(ray_session: None, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no trial has finished, and 1 failed, the first with: .*accuracy"):
        tuned = raynas.tune(another, tmp_path / "none", LR, objectives={"accuracy": "max"}, trials=1)
    assert tuned.best is None


class Above(optuna.pruners.BasePruner):
    """Prune what is above one half."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.intermediate_values[trial.last_step] > 0.5  # type: ignore[index]


def parabola(config: Mapping[str, Any]) -> dict[str, float]:
    return {"loss": (config["lr"] - 0.1) ** 2, "cost": config["lr"]}


GPU = Resources(workers=0, replicas=0, gpus=1)


def test_a_local_ray_without_a_gpu_is_told_at_once(ray_session: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^a trial needs 1 GPU \(this machine has 0\): use fewer, or a cluster"):
        raynas.tune(parabola, tmp_path / "gpu", LR, objectives={"loss": "min"}, trials=1, resources=GPU)


@pytest.mark.slow
def test_on_a_cluster_without_gpus_trials_are_not_waited_for_for_ever(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("raynas.cluster.growth", "raynas.outer.experiment"):  # as if this were a cluster
        monkeypatch.setattr(f"{place}.is_local", lambda: False)
    monkeypatch.setattr("raynas.outer.course.WAIT_S", 3.0)
    logger = logging.getLogger("ray.tune.tune")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    with pytest.raises(UserError, match=r"^a trial needs 1 CPU .*, 1 GPU \(0 of the cluster's 0 are free\).*; waited"):
        raynas.tune(parabola, tmp_path / "gpu", LR, objectives={"loss": "min"}, trials=1, resources=GPU)
    assert logger.level == logging.NOTSET  # on a cluster Tune tells what it always does
    assert [
        trial.state
        for trial in raynas.tune(parabola, tmp_path / "gpu", LR, objectives={"loss": "min"}, trials=1).trials
    ] == ["finished"]


@pytest.mark.slow
def test_stop_rules_and_several_objectives(ray_session: None, tmp_path: Path) -> None:
    lines: list[str] = []
    tuned = raynas.tune(
        parabola, tmp_path / "two", LR, objectives={"loss": "min", "cost": "min"}, sampler="random", trials=3,
        at_a_time=3, progress=lines.append,
    )  # fmt: skip
    assert len(tuned.trials) == 3 and len(tuned.study().best_trials) == len(tuned.best_first)
    more = raynas.tune(
        parabola, tmp_path / "two", LR, objectives={"loss": "min", "cost": "min"}, sampler="random", trials=4,
        at_a_time=3, progress=lines.append,
    )  # fmt: skip
    assert more.trials[:3] == tuned.trials and len(more.trials) == 4
    assert "no more trials begin: all 4 trials have begun" in lines
    target = raynas.tune(
        parabola, tmp_path / "target", LR, objectives={"loss": "min"}, target=1.0, at_a_time=1, progress=lines.append
    )
    assert len(target.trials) == 1
    assert any(line.startswith("no more trials begin: loss has reached its target: ") for line in lines)


def test_the_example_of_the_readme_runs(ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in python_of(ROOT / "README.md") if "raynas.tune(" in block]
    known: dict[str, Any] = {}
    exec(block.replace("trials=20", "trials=2"), known)
    tuned = known["tuned"]
    assert len(tuned.trials) == 2 and tuned.best.results["accuracy"] == max(t.results["accuracy"] for t in tuned.trials)


def test_results_are_finite_numbers() -> None:
    assert numbers({"loss": 1, "other": math.inf}, ["loss"]) == {"loss": 1.0, "other": math.inf}
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(UserError, match=f"loss is not a finite number .{wrong}"):
            numbers({"loss": wrong}, ["loss"])


def test_the_digest_of_a_function_is_the_same_in_all_processes() -> None:
    code = "from raynas.outer.tuning.function import code_of; print(code_of(lambda c: c in {'sgd', 'adam', 'lion'}))"
    found = set()
    for seed in ("1", "2", "3"):  # sets have another order with each
        command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONHASHSEED": seed}
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1 and found != {"None\n"}
    assert code_of(lambda c: c in {"a", "b"}) != code_of(lambda c: c in {"a", "c"})


def test_a_changed_function_is_told(ray_session: None, tmp_path: Path) -> None:
    def same(config: Mapping[str, Any]) -> float:  # another object of the same code
        return (config["lr"] - 0.1) ** 2

    def changed(config: Mapping[str, Any]) -> float:
        return 100 + (config["lr"] - 0.1) ** 2

    def before(config: Mapping[str, Any]) -> float:
        return (config["lr"] - 0.1) ** 2

    assert code_of(before) == code_of(same) != code_of(changed) and code_of(len) is None
    for function in (before, same, changed):
        function.__qualname__ = "fit"
    given: dict[str, Any] = {"objectives": {"loss": "min"}, "trials": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        raynas.tune(before, tmp_path / "run", LR, **given)
        raynas.tune(same, tmp_path / "run", LR, **given)
    with pytest.warns(UserWarning, match="the function has changed since"):
        raynas.tune(changed, tmp_path / "run", LR, **given)
    (work,) = raynas.status(tmp_path / "run")
    assert (work.what, work.state, work.progress) == ("trials", "finished", "1 finished")
    assert work.newest.startswith("0000: loss ")


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: 1, lambda config, trial, *, more: 1])
def test_a_function_that_cannot_be_called_is_refused(function: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"called as function\(config\) or function\(config, trial\)"):
        raynas.tune(function, tmp_path / "run", LR, objectives={"loss": "min"})
    assert not (tmp_path / "run").exists()


def test_a_function_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    held = (tmp_path / "open").open("w")
    with pytest.raises(UserError, match="cannot be sent to the trials' processes: "):
        raynas.tune(lambda config: held.fileno(), tmp_path / "run", LR, objectives={"loss": "min"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": None}, "say what the function returns"),
        ({"params": None}, "tune: params: is missing"),
        ({"params": {"lr": {"low": 2, "high": 1}}}, "tune: params.lr: low 2 is above high 1"),
        ({"sampler": "tep"}, "unknown sampler 'tep' .did you mean 'tpe'"),
        ({"sampler": {"name": "tpe", "n_startup": 3}}, "did you mean 'n_startup_trials'"),
        ({"sampler": "optuna.samplers:BaseSampler"}, "making it failed: TypeError"),
        ({"pruner": {"name": "hyperband", "max_resource": 0}}, "pruner hyperband: ValueError"),
        ({"pruner": {"name": "hyperband", "reduction_factor": 1}}, "pruner hyperband: ZeroDivisionError"),
        ({"sampler": "grid"}, "lr has no end of values for sampler grid"),
        ({"pruner": "asah"}, "unknown pruner 'asah' .did you mean 'asha'"),
        ({"pruner": {"name": "asha", "min_resorce": 3}}, "did you mean 'min_resource'"),
        ({"pruner": {"name": "asha", "reduction_factor": 1}}, "pruner asha: ValueError"),
        ({"trials": None}, "this tuning would never end"),
        ({"overrides": {"recipe.lr": 1}}, "data and overrides are for presets"),
        ({"warm_start": ["nowhere"]}, "nowhere"),
        ({"warm_start": ["nowhere"], "sampler": "cmaes"}, "cmaes learns nothing from trials .*: take tpe or gp"),
        ({"trails": 3}, "unknown key 'trails' .did you mean 'trials'"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_made(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"params": LR, "objectives": {"loss": "min"}, **changes}
    kept = {name: value for name, value in given.items() if value is not None or name == "trials"}
    with pytest.raises(UserError, match=message) as raised:
        raynas.tune(parabola, tmp_path / "run", **kept)
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()

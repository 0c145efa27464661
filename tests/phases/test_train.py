"""The Ray Train job: a killed worker, a finished run, settings that do not fit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load

from raynas import Resources, train
from raynas.errors import ConfigError, RunDirError, UserError
from raynas.phases.preflight import check_later
from raynas.phases.teachers import load_teachers
from raynas.presets.preset import Preset, load_preset, override
from raynas.progress.reporter import Reporter
from raynas.space import load_space
from raynas.training.loop import train_loop
from tests.package_counter import ten_watts
from tests.training.training_parts import SPACE, plan, recipe, teacher_file

EPOCHS = 15


def preset(folder: Path, **changes: Any) -> Preset:
    path = folder / "space.yaml"
    SPACE.save(path)
    settings = recipe(epochs=EPOCHS, batch_size=96, health={"probe_every": 5, "probe_images": 100}, **changes)
    return Preset(space=str(path), data="digits", plan=plan(), recipe=settings)  # type: ignore[arg-type]


def test_what_comes_before_the_first_step_is_named(tmp_path: Path) -> None:
    named: list[str] = []

    class Noting(Reporter):
        def doing(self, what: str, *more: Any, **options: Any) -> Any:
            named.append(what)
            return super().doing(what, *more, **options)

    brief = override(preset(tmp_path), {"recipe.epochs": 1, "recipe.warmup_epochs": 0})
    train(brief, tmp_path / "run", resources=Resources(workers=0), progress=Noting())
    assert named == ["loading PyTorch", "loading images", "training the supernet"]


class Killer(threading.Thread):
    """Kills one training worker as soon as so many checkpoints were committed."""

    def __init__(self, checkpoints: Path, after: int):
        super().__init__(daemon=True)
        self.checkpoints, self.after = checkpoints, after
        self.killed = False

    def run(self) -> None:
        seen: set[Path] = set()
        while len(seen) <= self.after:  # the newest may not be committed yet
            seen |= set(self.checkpoints.glob("*/checkpoint_*"))
            time.sleep(0.02)
        for process in psutil.Process().children(recursive=True):
            if "RayTrainWorker" in "".join(process.cmdline()):
                process.kill()
                self.killed = True
                return


@pytest.mark.slow
def test_a_killed_worker_costs_little_and_changes_nothing(ray_session: None, tmp_path: Path) -> None:
    lines: list[str] = []
    taught = {"teachers": {"models": [teacher_file(tmp_path / "teacher.safetensors")]}}
    killer = Killer(tmp_path / "run/checkpoints", after=6)
    killer.start()
    with ten_watts(tmp_path):
        run = train(
            preset(tmp_path, **taught), run_dir=tmp_path / "run", resources=Resources(workers=2), progress=lines.append
        )
    assert killer.killed
    resumed = [int(line.split()[4].rstrip(",")) for line in lines if "going on after epoch" in line]
    assert resumed and resumed[0] >= 3, lines  # of 6 written; Ray commits a checkpoint a moment after it is written

    training = run.store.read("training").to_pydict()
    assert training["epoch"] == list(range(1, EPOCHS + 1))  # none lost, none doubled
    assert set(training["workers"]) == {2}
    probes = run.store.read("probes").to_pydict()
    assert probes["epoch"] == [epoch for epoch in range(5, EPOCHS + 1, 5) for _ in range(5)]
    assert set(probes["images"]) == {100}
    about = run.read_json("supernet.json")
    assert (about["epochs"], about["rollbacks"], about["space"]) == (EPOCHS, 0, SPACE.fingerprint)
    assert len(run.list("checkpoints/supernet")) > 3  # several are kept

    learnt = load(run.read_bytes("supernet.safetensors"))
    from raynas.data.load import load_data

    data, taught_by = load_data("digits"), preset(tmp_path, **taught).recipe
    alone = train_loop(SPACE, data, plan(), taught_by, teachers=load_teachers(taught_by, data)).weights
    assert learnt.keys() == alone.keys()
    assert max((learnt[name] - alone[name]).abs().max().item() for name in alone) < 0.05  # two halves add up otherwise

    lines.clear()
    train(preset(tmp_path, **taught), run_dir=tmp_path / "run", resources=Resources(workers=2), progress=lines.append)
    assert lines == [f"the supernet in {run.name} is trained already"]
    (phase,) = run.store.read("phases").to_pylist()
    assert (phase["phase"], phase["status"]) == ("supernet", "finished")
    assert phase["joules"] == pytest.approx(10 * phase["seconds"], rel=0.2, abs=5)
    with pytest.raises(RunDirError, match=r"recipe\.lr was 0\.003, is 0\.001"):
        train(preset(tmp_path, **taught), run_dir=tmp_path / "run", overrides={"recipe.lr": 1e-3})
    teacher_file(tmp_path / "teacher.safetensors", seed=1)  # another one in the same place
    with pytest.raises(RunDirError, match=r"train began with other settings: teachers was"):
        train(preset(tmp_path, **taught), run_dir=tmp_path / "run")


@pytest.mark.slow
def test_a_mistake_found_by_a_worker_is_told_in_one_line(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here_alone.py").write_text("from raynas.training.objectives import labels\n")
    monkeypatch.syspath_prepend(tmp_path)  # of this process, and not of workers
    wrong = {"plan.objective": "here_alone:labels"}
    with pytest.raises(ConfigError, match="'here_alone:labels' cannot be imported") as caught:
        train(preset(tmp_path), run_dir=tmp_path / "run", overrides=wrong, resources=Resources(workers=1))
    assert "\n" not in str(caught.value)


def test_more_workers_than_the_cluster_has(ray_session: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"48 worker\(s\) need 48 CPU \(this machine has 4\)"):
        train(preset(tmp_path), run_dir=tmp_path / "run", resources=Resources(workers=48))


def test_settings_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be dealt to 500 worker.* use at least 500"):
        train(preset(tmp_path), run_dir=tmp_path / "run", resources=Resources(workers=(2, 500)))
    with pytest.raises(ConfigError, match="fp16 needs GPUs"):
        train(preset(tmp_path, amp="fp16"), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="names no dataset"):
        train("autoformer", run_dir=tmp_path / "run", overrides={"recipe.amp": "none"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"plan.sampler.align": {"macs": [1, 2]}}, "no probability of dropping blocks"),
        ({"plan.sampler.within": {"macs": [1, 2]}}, "this space spans"),
        ({"plan.sampler": {"name": "mixed", "archs": 97}}, "97 archs share a micro-batch of 96 images"),
        ({"plan.objective": "inplace_distillation"}, "first pass is the largest"),
        ({"plan.sampler": "sandwich", "plan.objective": {"name": "inplace_distillation", "temperature": "hot"}}, "hot"),
        ({"recipe.token_labels": {}}, "has no token head"),
        ({"recipe.opt": "adamm"}, "recipe.opt 'adamm'"),
        ({"plan.gradients": "project"}, "use a sampler that runs both, such as sandwich"),
        ({"recipe.teachers": {"models": [{"run": "/nowhere"}]}}, "/nowhere is not a run directory"),
        ({"retrain.recipe": {"teachers": {"models": [{"run": "/nowhere"}]}}}, "/nowhere is not a run directory"),
        ({"recipe.augment.auto_augment": "best"}, "auto_augment: 'best'"),
        ({"search.options": {"parents": 0}}, "search: parents must be an integer of at least 1, not 0"),
        ({"search.options": {"tries": 10**12}}, "search: tries must be an integer of at most 1,000,000"),
        ({"search.options": {"population": float("nan")}}, "search: population must be an integer"),
        ({"search.constraints": {"macs": [1, 2]}}, "search: no arch has macs in"),
        ({"search.objectives": {"latencyy": "min"}}, "no score or cost 'latencyy'"),
        ({"retrain.recipe": {"token_labels": {}}}, "has no token head"),
        ({"reference": "digits/dei"}, "did you mean 'digits/deit'"),
    ],
)
def test_what_is_refused_leaves_no_run_directory(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    """Else the corrected command would be refused, too: train began with other settings."""
    with pytest.raises(UserError) as caught:
        train(preset(tmp_path), run_dir=tmp_path / "run", overrides=wrong)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_search_of_the_users_own_that_cannot_be_made_here_is_noted() -> None:
    """It may be at home where it will run; and a limit on latency waits for the device."""
    notes: list[str] = []
    elsewhere = {"search": {"name": "not_installed_here:Search"}}
    check_later(override(load_preset("digits"), elsewhere), load_space("digits/vit"), notes.append)
    assert len(notes) == 1 and "not_installed_here" in notes[0]
    timed = {"search.latency": {"device": "cuda"}, "search.constraints.latency": [None, 1e-9]}
    check_later(override(load_preset("digits"), timed), load_space("digits/vit"), notes.append)
    assert len(notes) == 1

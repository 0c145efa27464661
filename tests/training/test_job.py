"""The Ray Train job: a killed worker, a finished run, settings that do not fit."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load
from training_parts import SPACE, plan, recipe

from raynas.errors import ConfigError, RunDirError, UserError
from raynas.preset import Preset
from raynas.training import train
from raynas.training.loop import train_loop

EPOCHS = 30


def preset(folder: Path, **changes: Any) -> Preset:
    path = folder / "space.yaml"
    SPACE.save(path)
    settings = recipe(epochs=EPOCHS, batch_size=96, health={"probe_every": 5, "probe_images": 100}, **changes)
    return Preset(space=str(path), data="digits", plan=plan(), recipe=settings)  # type: ignore[arg-type]


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


def test_a_killed_worker_costs_little_and_changes_nothing(ray_session: None, tmp_path: Path) -> None:
    lines: list[str] = []
    killer = Killer(tmp_path / "run/checkpoints", after=6)
    killer.start()
    run = train(preset(tmp_path), run_dir=tmp_path / "run", workers=2, progress=lines.append)
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
    from raynas.data import load_data

    alone = train_loop(SPACE, load_data("digits"), plan(), preset(tmp_path).recipe).weights
    assert learnt.keys() == alone.keys()
    assert max((learnt[name] - alone[name]).abs().max().item() for name in alone) < 0.05  # two halves add up otherwise

    lines.clear()
    train(preset(tmp_path), run_dir=tmp_path / "run", workers=2, progress=lines.append)
    assert lines == [f"the supernet in {run.name} is trained already"]
    with pytest.raises(RunDirError, match=r"recipe\.lr was 0\.003, is 0\.001"):
        train(preset(tmp_path), run_dir=tmp_path / "run", overrides={"recipe.lr": 1e-3})


def test_a_mistake_found_by_a_worker_is_told_in_one_line(ray_session: None, tmp_path: Path) -> None:
    wrong = {"plan.objective": "inplace_distillation"}
    with pytest.raises(ConfigError, match="needs a sampler whose first pass is the largest") as caught:
        train(preset(tmp_path), run_dir=tmp_path / "run", overrides=wrong, progress=lambda line: None)
    assert "\n" not in str(caught.value)


def test_more_workers_than_the_cluster_has(ray_session: None, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"48 worker\(s\) need 48 CPU \(the cluster has 4\)"):
        train(preset(tmp_path), run_dir=tmp_path / "run", workers=48, wait_s=0.0, progress=lambda line: None)


def test_settings_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use a multiple of 5"):
        train(preset(tmp_path), run_dir=tmp_path / "run", workers=5)
    with pytest.raises(ConfigError, match="fp16 needs GPUs"):
        train(preset(tmp_path, amp="fp16"), run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="names no dataset"):
        train("autoformer", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()

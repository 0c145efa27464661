"""Work in a Ray task instead of this process: evaluation, and the calibration for an export."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from raynas.cluster import task
from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.phases.evaluate import evaluate
from raynas.phases.export import export
from raynas.phases.pretrained import read_pretrained
from raynas.progress.reporter import Activity, Reporter
from raynas.runs.network_folder import load_network_folder
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.space import load_space
from tests.scoring.scoring_parts import make_run
from tests.small_run import SPACE, small_run

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks do not see this folder
ARCH = SPACE.smallest()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_task_elsewhere_measures_the_same(tmp_path: Path) -> None:
    """Its rows are written here, and what is measured already is not measured there."""
    here, there = (small_run(tmp_path / name) for name in ("here", "there"))
    away = Resources(workers=0, replicas=1)
    networks = [Network(arch, "inherited") for arch in (ARCH, SPACE.largest())]
    first = evaluate(here, networks, resources=Resources(workers=0, replicas=0))
    evaluate(there, networks[1:], resources=away)
    again = evaluate(there, networks, resources=away)
    columns = ("arch", "accuracy", "loss", "images", "weights", "data", "device")
    assert [[row[name] for name in columns] for row in again] == [[row[name] for name in columns] for row in first]
    assert [row["reading"] for row in again] == [2, 1]
    with pytest.raises(UserError, match=r"this needs 1 GPU \(this machine has 0\)"):
        evaluate(there, networks, again=True, resources=Resources(workers=0, replicas=1, gpus=1))
    with pytest.raises(UserError, match="not in space"):
        evaluate(there, [Network(SPACE.off_grid({**ARCH, "width": 33}), "inherited")], resources=away)


def _slow(seconds: float, folder: Path, device: str) -> Iterator[str]:
    (folder / "begun").touch()
    time.sleep(seconds)
    yield "done"


@pytest.mark.usefixtures("ray_session")
def test_only_what_has_not_begun_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may ask for nodes all the while."""
    monkeypatch.setattr(task, "LOOK_S", 0.1)
    monkeypatch.setattr(task, "describe_shortage", lambda needed: "1 CPU" if (tmp_path / "begun").exists() else None)
    monkeypatch.setattr(task, "WAIT_S", 0.5)
    with Reporter().doing("working") as activity:
        assert list(task.run_elsewhere(_slow, 2.0, tmp_path, resources=Resources(), activity=activity)) == ["done"]


def _killed_once(folder: Path, device: str) -> Iterator[str]:
    yield "first"
    if not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield "second"


class Holder:
    """It holds resources until it is killed."""


@pytest.mark.usefixtures("ray_session")
def test_a_lost_task_whose_place_is_taken_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task, "LOOK_S", 0.1)
    told, holders = list[str](), list[Any]()

    class Shown(Activity):
        def update(self, done: float | None = None, detail: str | None = None, total: float | None = None) -> None:
            told.append(detail or "")
            if holders and detail and detail.startswith("waits for 4 CPU (0 of"):
                ray.kill(holders.pop())

    found = task.run_elsewhere(_killed_once, tmp_path, resources=Resources(cpus=4), activity=Shown("", None, "", print))
    assert next(found) == "first"
    told.clear()
    holders.append(ray.remote(Holder).options(num_cpus=4).remote())  # waits for the task's place
    assert list(found) == ["second"]
    assert not holders and any(detail.endswith("; for 30 min at most") for detail in told), told
    assert "a task was lost (its process has ended" in caplog.text


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_batch_norms_are_calibrated_in_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, which has to draw no images for it, writes the files."""
    hybrid = load_space("digits/nasvit")
    run = make_run(tmp_path / "run", hybrid)
    about = {"images": 64, "batch_size": 32}
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}, "recipe": {"augment": {}}, "calibration": about})
    network = Network(hybrid.smallest(), "inherited")
    torch.set_num_threads(1)
    expected = run.model(network).state_dict()
    monkeypatch.setattr(Run, "calibration", None)  # here, not where the task runs
    export(run, network, tmp_path / "out", onnx=False, resources=Resources(workers=0, replicas=1))
    found = load_network_folder(tmp_path / "out").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    run.write_arch("best", hybrid.smallest())  # of a run that begins with this subnet
    monkeypatch.setattr("raynas.phases.export.default_resources", lambda: Resources(workers=0, replicas=1))
    begun = read_pretrained(run.uri).network.state_dict()
    assert all(torch.equal(begun[name], expected[name]) for name in expected)

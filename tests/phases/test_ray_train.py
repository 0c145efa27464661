"""What Ray's dashboard is told of trainings."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from ray.train.v2.api.exceptions import WorkerGroupError

from raynas.cluster.resources import Resources
from raynas.cluster.trainer import NamedRun
from raynas.errors import UserError
from raynas.phases.ray_train import _Training, shown_name
from raynas.phases.training_job import TrainingJob
from raynas.progress.reporter import silent
from raynas.runs.run import Run
from tests.small_run import PRESET, SPACE


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("first", "first-supernet"),
        ("tuned/trials/0007", "tuned-0007-supernet"),
        ("g/trials/tau=0.2/iterations/3", "g-tau=0.2-3-supernet"),
        ("g/iterations/3", "g-3-supernet"),
    ],
)
def test_a_training_bears_the_name_of_its_run(folder: str, name: str, tmp_path: Path) -> None:
    run = Run(tmp_path / folder, create=True)
    job = TrainingJob("supernet", SPACE, PRESET.data, PRESET.plan, PRESET.recipe)  # type: ignore[arg-type]
    assert shown_name(run, job) == name


def test_checkpoints_lie_where_a_run_of_any_name_finds_them(tmp_path: Path) -> None:
    settings = NamedRun("first-supernet", folder="supernet", storage_path=str(tmp_path))
    for each in (settings, pickle.loads(pickle.dumps(settings))):  # the controller gets a copy
        assert each.name == "first-supernet"
        assert each.storage_context.experiment_fs_path == str(tmp_path / "supernet")


def test_losses_are_counted_anew_after_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two losses in a row are survived, as often as there is progress in between; a resumed step is none."""
    begun: list[_Training] = []
    monkeypatch.setattr(_Training, "begin", lambda self: begun.append(self))
    job = TrainingJob("supernet", SPACE, PRESET.data, PRESET.plan, PRESET.recipe)  # type: ignore[arg-type]
    resources = Resources(workers=2, max_failures=2)
    run = Run(tmp_path / "run", create=True)
    training = _Training(run, job, resources, None, lambda training: None, silent)

    def lost(reached: int | None) -> object:
        if reached is not None:
            training.note({"kind": "history", "history": [], "step": reached})
        training._outcome = WorkerGroupError("lost", {0: RuntimeError("the node died")})
        return training.result()

    assert [lost(step) for step in (0, 17, 17, 34, 34, 51, 51)] == [None] * 7
    assert len(begun) == 7
    last = lost(51)
    assert isinstance(last, UserError) and "training failed for good (worker 0: its node was lost)" in str(last)
    assert len(begun) == 7

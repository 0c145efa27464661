"""What Ray's dashboard is told of trainings."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from raynas.cluster.trainer import NamedRun
from raynas.phases.ray_train import shown_name
from raynas.phases.training_job import TrainingJob
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

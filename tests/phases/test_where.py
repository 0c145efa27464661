"""Where phases run if nobody says, and what is refused before the first of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raynas.cluster.resources import Resources
from raynas.errors import ConfigError, UserError
from raynas.phases.evaluate import evaluate
from raynas.phases.preflight import preflight
from raynas.phases.retrain import retrain
from raynas.phases.search import make_scorer
from raynas.phases.where import default_resources, for_short_work, placed
from raynas.presets.preset import override
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.runs.searches import Scoring
from tests.small_run import PRESET, SPACE, small_run


def test_a_cluster_has_a_worker_and_a_replica_and_a_laptop_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("raynas.phases.where.on_cluster", lambda: False)
    threads = torch.get_num_threads()
    assert default_resources() == Resources(0, 0, cpus=threads, gpus=int(torch.cuda.is_available()))
    assert default_resources(here=False) == Resources(1, 1)
    monkeypatch.setattr("raynas.phases.where.on_cluster", lambda: True)
    assert default_resources() == Resources(1, 1)


def test_this_process_trains_if_nothing_is_said_but_on_a_cluster_and_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unsaid = Resources(replicas=3, cpus=2)
    monkeypatch.setattr("raynas.phases.where.on_cluster", lambda: False)
    assert placed(unsaid) == Resources(workers=0, replicas=3, cpus=2)
    assert placed(unsaid, several=True) == Resources(workers=1, replicas=3, cpus=2)
    assert placed(Resources(workers=(2, 4))).workers == (2, 4) and placed(Resources(workers=0), True).workers == 0
    assert for_short_work(unsaid) == Resources(replicas=0, cpus=2)
    assert for_short_work(Resources(workers=(2, 4))) == Resources(workers=1, replicas=0)
    assert for_short_work(Resources(workers=0)) == Resources(workers=0, replicas=0)
    monkeypatch.setattr("raynas.phases.where.on_cluster", lambda: True)
    assert placed(unsaid) == for_short_work(unsaid) == Resources(workers=1, replicas=3, cpus=2)
    assert for_short_work(Resources(workers=0, replicas=0)) == Resources(workers=0, replicas=0)


@pytest.mark.parametrize(
    ("change", "resources", "message"),
    [
        ({"retrain.recipe.amp": "fp16"}, Resources(), "retraining: recipe.amp fp16 needs a GPU"),
        ({"retrain.recipe.batch_size": 3}, Resources(workers=4), "batch_size 3 cannot be dealt to 4 worker"),
    ],
)
def test_a_pipeline_refuses_what_its_retraining_lacks(
    change: dict[str, Any], resources: Resources, message: str
) -> None:
    preset = override(PRESET, change)
    preflight(preset, resources, look=False)  # for training alone: it may be retrained with others
    with pytest.raises(ConfigError, match=message):
        preflight(preset, resources, look=False, retrained=True)


def test_this_process_must_have_the_gpu_that_it_is_to_use(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here, run = Resources(0, 0, gpus=1), small_run(tmp_path / "run")
    network = Network(SPACE.smallest(), "inherited")
    for work in (
        lambda: retrain(run, [network.arch], PRESET.recipe, resources=here),
        lambda: evaluate(run, [network], resources=here),
        lambda: make_scorer(run, Scoring(), here),
        lambda: preflight(PRESET, Resources(workers=1, replicas=0, gpus=1), look=False, retrained=True),
        lambda: preflight(PRESET, Resources(workers=1, replicas=1, gpus=1), look=False),  # a local Ray has no other
    ):
        with pytest.raises(UserError, match="torch finds no GPU here"):
            work()


def test_trainings_side_by_side_need_workers(tmp_path: Any) -> None:
    run: Run = small_run(tmp_path / "run")
    with pytest.raises(UserError, match="give --workers"):
        retrain(run, [SPACE.smallest()], PRESET.recipe, parallel=2, resources=Resources(workers=0))

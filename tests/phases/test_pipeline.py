"""The whole way after the supernet's training, with a real actor; stopped in the middle and called again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.cluster.resources import Resources
from raynas.costs import cost
from raynas.errors import UserError
from raynas.phases.phase import phase_line
from raynas.phases.pipeline import PipelineResult, make_reference, pipeline
from raynas.phases.report_data import traces
from raynas.presets.preset import override
from raynas.runs.network_folder import load_network_folder
from raynas.runs.run import Run
from tests.package_counter import ten_watts
from tests.small_run import PRESET, SPACE
from tests.training_of_small_run import trained_run

TABLES = ["scores", "correct", "networks", "evaluations"]
TUNED = override(PRESET, {"retrain.start": "inherited", "retrain.recipe": {"epochs": 2}})


class Stopped(Exception):
    """Somebody pulled the plug."""


@dataclass
class Story:
    """A pipeline with its interruptions: how it ended, all that it said, and how long it took."""

    outcome: PipelineResult
    lines: list[str]
    seconds: float


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, ray_session: None, without_exporters: None) -> Story:
    """Stopped at the start of two of its stages and in the middle of another, and called again each time."""
    folder = tmp_path_factory.mktemp("pipeline")
    lines: list[str] = []
    stops = iter(("[3/6]", "trained, ", "[5/6]", "never"))
    stop = next(stops)

    def say(line: str) -> None:
        nonlocal stop
        lines.append(line)
        if stop in line:
            stop = next(stops)
            raise Stopped

    trained_run(folder / "run")
    began = time.monotonic()
    with ten_watts(folder):
        for _ in range(3):
            with pytest.raises(Stopped):
                pipeline(TUNED, folder / "run", Resources(workers=0, replicas=1), progress=say)
        outcome = pipeline(TUNED, folder / "run", Resources(workers=0, replicas=1), progress=say)
    return Story(outcome, lines, time.monotonic() - began)


@pytest.fixture(scope="module")
def outcome(story: Story) -> PipelineResult:
    return story.outcome


def test_its_phases_add_up_to_its_time(story: Story) -> None:
    """Scoring in an actor, retraining in this process; what was stopped has a row, too."""
    rows = story.outcome.run.store.read("phases").to_pylist()
    assert [(row["phase"], row["name"], row["status"]) for row in rows] == [
        ("search", "search", "finished"),
        ("search", "random", "finished"),
        ("retraining", "finetuned", "stopped"),
        ("retraining", "scratch", "finished"),
    ]
    assert 0 < sum(row["seconds"] for row in rows) < story.seconds
    for row in rows:
        assert row["joules"] == pytest.approx(10 * row["seconds"], rel=0.2, abs=5)
    said = [line.strip() for line in story.lines if "(1 CPU package)" in line]
    assert said == [phase_line(row) for row in rows if row["status"] == "finished"]


def test_every_kind_of_network_is_evaluated(outcome: PipelineResult) -> None:
    reference = outcome.run.arch("reference")
    kinds = [(row["arch"], row["how"]) for row in outcome.evaluations]
    assert sorted(kinds) == sorted(
        [(outcome.winner.id, "inherited"), (outcome.winner.id, "finetuned"), (reference.id, "scratch")]
    )
    assert sorted(row["reading"] for row in outcome.evaluations) == [1, 2, 3]


def test_random_search_spends_what_the_search_spent(outcome: PipelineResult) -> None:
    main, random = traces(outcome.run)
    assert len(main.archs) == len(random.archs) == 14 and main.finished and random.finished
    scored = outcome.run.store.read("scores")
    assert set(scored["arch"].to_pylist()) == {*main.archs, *random.archs}
    assert max(scored["macs"].to_pylist()) <= 900_000


def test_reference_has_the_winners_macs_and_its_own_shape(outcome: PipelineResult) -> None:
    reference = outcome.run.arch("reference")
    macs = [int(cost(arch.space, [arch])["macs"][0]) for arch in (outcome.winner, reference)]
    assert abs(macs[1] / macs[0] - 1) < 0.05
    assert {reference[f"blocks.{i}.mlp_ratio"] for i in range(4)} == {4.0}


def test_export_and_report_are_there(outcome: PipelineResult) -> None:
    model = load_network_folder(outcome.exported)
    retrained = f"networks/{outcome.winner.id}-finetuned-0"
    again = load_network_folder(outcome.run.local_or_uri(retrained))
    for name, value in model.state_dict().items():
        assert np.array_equal(value, again.state_dict()[name])
    page = Path(outcome.report).read_text()
    for row in outcome.evaluations:
        assert f"{row['accuracy']:.2%}" in page and row["arch"] in page


def test_done_it_does_nothing_again(outcome: PipelineResult) -> None:
    before = {table: outcome.run.store.read(table).num_rows for table in TABLES}
    again = pipeline(TUNED, outcome.run.uri, Resources())
    assert again.winner == outcome.winner
    assert again.evaluations == outcome.evaluations
    assert {table: outcome.run.store.read(table).num_rows for table in TABLES} == before


def test_a_refused_budget_leaves_the_runs_preset_as_it_was(outcome: PipelineResult) -> None:
    before = outcome.run.read_bytes("preset.yaml")
    with pytest.raises(UserError, match=r"search began with other settings: search.constraints.macs"):
        pipeline(override(TUNED, {"search.constraints.macs": [None, 800_000]}), outcome.run.uri, Resources(0, 0))
    assert outcome.run.read_bytes("preset.yaml") == before


def test_a_reference_beside_a_fine_tuned_winner_gets_the_whole_recipe(outcome: PipelineResult) -> None:
    reference = outcome.run.arch("reference")
    rows = {row["arch"]: (row["how"], row["epochs"]) for row in outcome.run.store.read("networks").to_pylist()}
    assert rows == {outcome.winner.id: ("finetuned", 2), reference.id: ("scratch", 1)}


def test_a_preset_may_have_no_reference(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    assert make_reference(run, PRESET.model_copy(update={"reference": None}), SPACE.smallest(), SPACE) is None
    assert not run.exists("reference/arch.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "digits/dei"}, "digits/deit"),
        ({"search.constraints.macs": [1e12, None]}, "macs"),
        ({"search.options.tries": 0}, "tries"),
        ({"plan.objective": "inplace_distillation"}, "first pass is the largest"),
    ],
)
def test_what_is_wrong_with_a_later_stage_is_told_before_the_first(
    tmp_path: Path, ray_session: None, change: dict[str, Any], message: str
) -> None:
    said: list[str] = []
    with pytest.raises(UserError, match=message):
        pipeline(override(PRESET, change), tmp_path / "run", Resources(), progress=said.append)
    assert said == [] and not (tmp_path / "run").exists()


WITHOUT_RAY = """
import sys
from pathlib import Path
from tests.small_run import PRESET
from tests.training_of_small_run import trained_run
from raynas.cluster.resources import Resources
from raynas.phases.pipeline import pipeline
run = trained_run(Path(sys.argv[1]))
outcome = pipeline(PRESET, run.path, Resources(workers=0, replicas=0))
assert len(outcome.evaluations) == 3
assert "ray" not in sys.modules
"""


@pytest.mark.slow
def test_without_workers_and_replicas_ray_is_not_even_imported(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", WITHOUT_RAY, str(tmp_path / "run")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr

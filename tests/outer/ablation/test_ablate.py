"""Ablations carried out by the public function and the command: shared phases, failed trials, kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import raynas
from raynas.errors import RunDirError, UserError
from raynas.outer.ablation.loop import retrained_apart
from raynas.outer.trials import read_trials
from raynas.presets.ablation import load_ablation
from raynas.runs.run import Run
from tests.small_run import PRESET, SPACE

HERE = raynas.Resources(workers=0, replicas=0)
ROWS: dict[str, Any] = {
    "default": {},
    "more evaluations": {"search.evaluations": 20},
    "trained longer": {"recipe.epochs": 2},
    "retrained longer": {"retrain.recipe.epochs": 2},
}
MEASURES = ["probes", "searched", "retrained"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An ablation of four rows, of which three share a supernet and two a search."""
    preset = PRESET.model_dump(mode="json", exclude_unset=True)
    (tmp_path / "preset.yaml").write_text(yaml.safe_dump(preset))
    settings = {
        "preset": "preset.yaml",
        "rows": ROWS,
        "seeds": [0],
        "measure": MEASURES,
        "published": {"default": {"retrained": 90.0}},
    }
    path = tmp_path / "ablation.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


def write_truth(file: Path, accuracy: float) -> str:
    """Write the accuracy of one network trained on its own beside the ablation."""
    arch, path = SPACE.largest(), file.with_name("truth.parquet")
    row = {"network": arch.network_id, "values": json.dumps(arch.to_dict()), "accuracy": accuracy}
    pq.write_table(pa.Table.from_pylist([row]), path)
    return str(path)


def change(file: Path, **settings: Any) -> Path:
    """Write the ablation with other settings."""
    other = file.with_name(f"other_{file.name}")
    other.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "published": {}, **settings}, sort_keys=False))
    return other


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rows_share_supernets_and_failed_trials_are_tried_again(ray_session: None, file: Path, tmp_path: Path) -> None:
    run, lines = tmp_path / "run", list[str]()
    Run(run, create=True)  # another folder with files would be refused
    blocked = run / "trials" / "trained_longer-0"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")
    file = change(file, truth=write_truth(file, 0.5), published=yaml.safe_load(file.read_text())["published"])
    rows = raynas.ablate(file, run, resources=HERE, at_a_time=2, progress=lines.append)
    assert {row["row"]: row["failed"] for row in rows} == {name: int(name == "trained longer") for name in ROWS}
    text = (run / "ablation.md").read_text()
    assert (
        "| trained longer | recipe.epochs=2 | 0 of 1, 1 failed |" in text and "trained longer, seed 0, failed:" in text
    )
    assert [path.name for path in (run / "trials").iterdir() if path.is_dir()] == ["default-0"]
    finished = finished_at(run)
    blocked.unlink()
    rows = raynas.ablate(file, run, seeds=[0, 1], resources=HERE, at_a_time=2, progress=lines.append)
    assert len(finished) == 3 and finished.items() <= finished_at(run).items()
    assert not any(row["failed"] for row in rows) and {len(row["values"]) for row in rows} == {2}
    check_shared(Run(run / "trials/default-0"))
    check_numbers(run, rows)
    assert [row["published"] for row in rows if row["measure"] == "retrained"] == [0.9, None, None, None]
    with pytest.raises(RunDirError, match="is an ablation, each of whose trials"):
        raynas.search_run(run)
    refused(file, run)


def finished_at(run: Path) -> dict[str, Any]:
    """When each finished trial was."""
    return {trial.name: trial.time for trial in trial_rows(run) if trial.state == "finished"}


def trial_rows(run: Path) -> list[Any]:
    """The newest rows of an ablation's trials, with their times."""
    table = Run(run).store.read("trials").to_pandas()
    return list(table.groupby("number").tail(1).itertuples())


def check_shared(run: Run) -> None:
    """One supernet, two searches and a training of each winner for each recipe were made for three rows."""
    phases = run.store.read("phases").to_pandas()
    assert list(phases.phase).count("supernet") == 1
    assert run.searches() == ["search", "more_evaluations"]
    winners = {run.search(name).winner.id for name in run.searches()}
    assert sorted(run.store.read("networks")["epochs"].to_pylist()) == [1] * len(winners) + [2]


def check_numbers(run: Path, rows: list[dict[str, Any]]) -> None:
    """The table's numbers are those of the trials' tables."""
    found = {(row["row"], row["measure"]): row for row in rows}
    for seed in (0, 1):
        of = Run(run / f"trials/default-{seed}")
        scores = {row["arch"]: row["accuracy"] for row in of.store.read("scores").to_pylist()}
        assert found["default", "searched"]["values"][seed] == scores[of.search().winner.id]
        assert found["more evaluations", "searched"]["values"][seed] == scores[of.search("more_evaluations").winner.id]
        for name in ("more evaluations", "retrained longer"):
            assert found[name, "probes"]["values"] == found["default", "probes"]["values"]
        longest = max(of.network_rows(), key=lambda row: row["epochs"])
        assert found["retrained longer", "retrained"]["values"][seed] == longest["accuracy"]
    read = pa.ipc.open_file((run / "ablation.arrow").read_bytes()).read_all()
    assert read.select(["row", "measure", "mean"]).to_pylist() == [
        {name: row[name] for name in ("row", "measure", "mean")} for row in rows
    ]
    assert raynas.report(run) == f"{run}/ablation.html"
    with pytest.raises(UserError, match="is an ablation: give one of its trials"):
        raynas.report(run, tensorboard=run)
    assert (run / "ablation.png").stat().st_size > 1000 and "<svg" in (run / "ablation.html").read_text()


def refused(file: Path, run: Path) -> None:
    """What changes the numbers is refused, what changes the table alone is not."""
    other = {**ROWS, "trained longer": {"recipe.epochs": 3}}
    with pytest.raises(RunDirError, match=r"rows\.trained longer\.recipe\.epochs was 2, is 3"):
        raynas.ablate(change(file, rows=other), run, resources=HERE)
    with pytest.raises(RunDirError, match="measure was"):
        raynas.ablate(change(file, measure=[*MEASURES, "seconds"]), run, resources=HERE)
    with pytest.raises(RunDirError, match=r"names was \['default', .*is \['default'\]"):
        raynas.ablate(change(file, rows={"default": {}}), run, resources=HERE)
    with pytest.raises(RunDirError, match=r"holds other work .its ablation\.yaml"):
        raynas.train(PRESET, run, resources=HERE)
    write_truth(file, 0.6)
    with pytest.raises(RunDirError, match="truth_content was"):
        raynas.ablate(file, run, resources=HERE)
    write_truth(file, 0.5)
    before = len(trial_rows(run))
    named = change(file, baseline="trained longer", title="Another", seeds=[0, 1])
    rows = raynas.ablate(named, run, resources=HERE)
    assert len(trial_rows(run)) == before and "# Another" in (run / "ablation.md").read_text()
    assert [row["difference"] for row in rows if row["row"] == "trained longer"] == [None] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"measure": ["probs"]}, "measure.0: no measure 'probs' .did you mean 'probes'"),
        (
            {"published": {"default": {"serched": 3.0}}},
            "yaml:[0-9]+: published.default.serched: no measure 'serched' .did you mean 'searched'",
        ),
        ({"measure": ["tau"]}, "row 'default': tau needs a table"),
        (
            {"measure": ["hypervolume"], "rows": {"a": {}, "b": {"search.constraints.macs": [None, 8e5]}}},
            "hypervolume is compared up to one limit, not up to .* give all the same upper limit",
        ),
        ({"measure": ["conflict"]}, "set recipe.health.conflict"),
        ({"measure": ["probes"], "rows": {"a": {}, "b": {"search.evaluations": 3}}}, "'a' and 'b' are equal in all"),
        ({"rows": {"a": {}, "b": {"space": "digits/vti"}}}, "row 'b': no space .*did you mean 'digits/vit'"),
        ({"rows": {"a": {}, "b": {"search.constraints.macs": [None, 10]}}}, "row 'b': search: no arch has macs"),
        ({"rows": {"a": {}, "b": {"recipe.amp": "fp16"}}}, "row 'b': recipe.amp fp16 needs GPUs"),
        ({"rows": {"a": {}}, "truth": "nowhere.parquet"}, "there is no such file"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_anything_is_written(
    file: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        raynas.ablate(change(file, **settings), tmp_path / "run", resources=HERE)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("system", ["vitas", "digits"])
@pytest.mark.parametrize("table", ["v1_recipe", "v2_recipe", "v2_sharing"])
def test_tables_of_the_supernets_recipe_retrain_all_rows_by_one(system: str, table: str) -> None:
    ablation = load_ablation(f"{system}/ablation_{'vitas_' if system == 'digits' else ''}{table}")
    rows = ablation.rows()
    assert retrained_apart(rows) == []
    assert len({row.preset.recipe.model_dump_json() for row in rows}) > 1


def test_a_toggle_that_acts_in_retraining_too_is_found(file: Path) -> None:
    rows = {"a": {}, "b": {"recipe.drop_path": 0.1}, "c": {"recipe.cutmix": 1.0, "retrain.recipe.cutmix": 0.0}}
    ablation = load_ablation(change(file, rows=rows))
    assert retrained_apart(ablation.rows()) == ["drop_path"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_driver_that_is_killed_again_and_again_comes_to_the_same_table(file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raynas", "ablate", str(file), "--workers", "0", "--replicas", "0", "--run"]
    whole = subprocess.run([*command, str(tmp_path / "whole")], capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    tables, kills = tmp_path / "killed/tables/trials", 0
    for begun in (1, 3, 5):  # rows of trials that have begun or ended
        with subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(list(tables.glob("*.parquet"))) < begun:
                time.sleep(0.1)
            time.sleep(3.0)
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
    assert kills
    last = subprocess.run([*command, str(tmp_path / "killed")], capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    texts = [(tmp_path / name / "ablation.md").read_text() for name in ("whole", "killed")]
    assert texts[0] == texts[1]
    trials = Run(tmp_path / "killed").store.read("trials").to_pandas()
    assert trials[trials.state == "finished"].groupby("number").size().max() == 1  # none was repeated
    assert all(trial.state == "finished" for trial in read_trials(Run(tmp_path / "killed")))

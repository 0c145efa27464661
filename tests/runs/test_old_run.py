"""A run of the demo that an older version left, without checkpoints and with one of its networks deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import raynas
from raynas.data.images import decode
from raynas.data.load import load_test
from raynas.data.pixels import normalise
from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.phases.export import export
from raynas.phases.search import prepare, search
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer

DEMO = Path(__file__).parents[1] / "golden" / "runs" / "demo"
WINNER = "00b1409df6d6"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return raynas.open_run(shutil.copytree(DEMO, tmp_path / "demo"))


def test_its_values_are_read() -> None:
    run = raynas.open_run(DEMO)
    assert raynas.open_run(run) is run and repr(run) == f"Run({str(DEMO)!r})"
    assert run.space.name == "digits/vit" and run.is_trained
    assert run.preset.search.constraints == {"macs": (None, 2e6)} and run.preset.data == run.data_config
    assert run.data().fingerprint == run.about_supernet["data"]
    assert run.arch().id == run.search().winner.id == WINNER and run.arch(WINNER) == run.arch("best")
    assert run.searches() == ["search", "random"] and run.search().front == []
    scores = run.scores().to_pandas()
    assert len(scores) == scores["arch"].nunique() == 48 and WINNER in set(scores["arch"])
    (network,) = run.networks()  # the other was deleted
    assert network == Network(run.arch(), "scratch", 0, f"networks/{WINNER}-scratch-0-all")
    assert run.trained_network(run.arch(), 0, "train+search") == run.networks()[0]
    assert run.table("training", ["what"]).num_rows == 4


def test_its_searches_answer_from_their_rows(run: Run) -> None:
    for name in run.searches():
        made, ended = run.search(name).read_back()
        assert ended and made.evaluations == 24 and made.best() == run.search(name).winner
    before = run.table("scores").num_rows
    with LocalScorer(run) as scorer:
        again = search(prepare(run, run.search().settings), scorer)
    assert again.best().id == run.arch().id == WINNER and run.table("scores").num_rows == before


def test_its_networks_measure_what_they_measured(run: Run) -> None:
    known = {(row["how"], row["arch"]): row for row in run.table("evaluations").to_pylist()}
    rows = evaluate(run, networks_to_evaluate(run))
    assert rows == [known[row["how"], WINNER] for row in rows] and len(rows) == 2
    pixels, labels = decode(load_test(run.data_config).at((8, 8), 1))
    with torch.no_grad():
        logits = run.model(run.networks()[0])(normalise(pixels, run.data().normalisation))
    found = float((logits.argmax(1) == labels).double().mean())
    assert found == pytest.approx(known["scratch", WINNER]["accuracy"], abs=1e-9)


def test_it_is_exported_and_reported(run: Run, tmp_path: Path) -> None:
    export(run, run.networks()[0], tmp_path / "out", onnx=False)
    assert {"arch.yaml", "model.safetensors", "model.pt2"} <= {path.name for path in (tmp_path / "out").iterdir()}
    page = Path(raynas.report(run)).read_text()
    assert WINNER in page and "that network was deleted" in page

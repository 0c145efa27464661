"""What comes after the search, in a run directory on an object store."""

from __future__ import annotations

from collections.abc import Callable

from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.phases.export import choose_network, export_into_run
from raynas.phases.retrain import retrain
from raynas.reports.collect import collect
from raynas.reports.page import write_report
from tests.small_run import PRESET, SPACE, small_run

ARCH = SPACE.smallest()


def test_retrain_evaluate_export_report(s3_server: Callable[[str], str]) -> None:
    lines: list[str] = []
    run = small_run(s3_server("after/run"))
    run.write_arch("best", ARCH)
    (row,) = retrain(run, [ARCH], PRESET.recipe, parallel=1, progress=lines.append)
    rows = evaluate(run, networks_to_evaluate(run), progress=lines.append)
    assert [(found["how"], found["reading"]) for found in rows] == [("inherited", 1), ("scratch", 2)]
    exported = export_into_run(run, choose_network(run.networks(), ARCH), onnx=False, progress=lines.append)
    assert exported == "s3://raynas/after/run/export"
    assert run.list("export") == [
        "README.md",
        "arch.yaml",
        "config.json",
        "export.json",
        "model.pt2",
        "model.safetensors",
        "preprocessing.json",
    ]
    assert run.read_bytes("export/model.safetensors") == run.read_bytes(f"{row['path']}/model.safetensors")
    assert write_report(run, collect(run)) == "s3://raynas/after/run/report.html"
    page = run.read_bytes("report.html").decode()
    assert f"{rows[1]['accuracy']:.2%}" in page
    assert "secret" not in page + " ".join(lines)  # the run's URI carries credentials

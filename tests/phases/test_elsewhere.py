"""Work in a Ray task instead of this process: evaluation, and the calibration for an export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.phases.evaluate import evaluate
from raynas.phases.export import export
from raynas.runs.network_folder import load_network_folder
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.space import load_space
from tests.scoring.scoring_parts import make_run
from tests.small_run import SPACE, small_run

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

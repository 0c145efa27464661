"""Training on scenes: what is learnt, what a kill leaves, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from raynas.cluster.resources import Resources
from raynas.commands.bench.scenes import HEADS as OFFERED
from raynas.commands.main import main
from raynas.data.scenes import ScenesConfig
from raynas.downstream.on_scenes import HEADS, train_on_scenes
from raynas.downstream.train import DenseRecipe, train_dense
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Space

FEW = ScenesConfig(size=(32, 32), side=(12, 20), objects=(1, 2), pieces=3, train=16, test=8)
SHORT = DenseRecipe(epochs=2, batch_size=8)
JOBS = Path(__file__).parents[2] / "jobs"


def backbone(classes: int = 10) -> Supernet:
    block = {"window": [4], "heads": [1], "mlp_ratio": [2.0]}
    space = {
        "family": "s3",
        "input": {"size": 32, "channels": 1},
        "classes": classes,
        "constants": {"patch_size": 2, "head_dim": 8},
        "dimensions": {"stages": [{"width": [width], "depth": [1], "blocks": block} for width in (8, 16, 24)]},
    }
    torch.manual_seed(0)
    return build_supernet(Space.from_dict(space))


ALL = [(task, head) for task, heads in HEADS.items() for head in heads]


def test_the_command_offers_every_head_in_the_same_order() -> None:
    assert {task: tuple(heads) for task, heads in HEADS.items()} == OFFERED


@pytest.mark.parametrize(("task", "head"), ALL)
def test_every_head_is_trained_and_measured(task: Any, head: str) -> None:
    results = train_on_scenes(task, backbone(), head=head, width=32, scenes=FEW, recipe=SHORT)
    assert len(results["losses"]) == 2 and 0 < results["backbone_macs"] < results["macs"]
    measures = ["miou"] if task == "segment" else ["map", "map50", "map75"]
    measures += [f"mask_{name}" for name in measures] if head == "mask_rcnn" else []
    assert all(0 <= results[name] <= 1 for name in measures)


def test_a_training_that_is_stopped_ends_as_if_never_stopped(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, by the loss itself."""
    given = dict(head="semantic_fpn", width=16, scenes=FEW, recipe=SHORT)
    whole = train_on_scenes("segment", backbone(), tmp_path / "whole", **given)  # type: ignore[arg-type]
    model, calls = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)), []
    images = torch.randn(16, 4)

    def loss(indices: torch.Tensor, stop: int) -> torch.Tensor:
        calls.append(len(indices))
        if len(calls) == stop:
            raise KeyboardInterrupt
        return model(images[indices]).square().mean()

    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    straight = train_dense(model, lambda indices: loss(indices, 0), 16, DenseRecipe(epochs=4, batch_size=4))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(start)
    calls.clear()
    recipe, kept = DenseRecipe(epochs=4, batch_size=4), tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        train_dense(model, lambda indices: loss(indices, 10), 16, recipe, kept)
    model.load_state_dict(start)  # the process is another one
    assert train_dense(model, lambda indices: loss(indices, 0), 16, recipe, kept) == straight
    assert len(calls) == 10 + 8 and all(torch.equal(weights[name], each) for name, each in model.state_dict().items())
    again = train_on_scenes("segment", backbone(), tmp_path / "whole", **given)  # type: ignore[arg-type]
    assert again == whole and not (tmp_path / "whole/training.pt").exists()
    same = train_on_scenes("segment", backbone(), **given)  # type: ignore[arg-type]
    assert same == whole


def test_a_network_of_other_constants_is_another(tmp_path: Path) -> None:
    given = dict(width=8, scratch=True, scenes=FEW, recipe=SHORT)
    network = backbone()
    first = train_on_scenes("segment", network, tmp_path / "first", **given)  # type: ignore[arg-type]
    constants = network.space.constants.model_copy(update={"norm_eps": 0.1})
    other = build_supernet(network.space.replace(constants=constants))
    assert other.space.smallest().id == network.space.smallest().id
    with pytest.raises(UserError, match="other settings: space was"):
        train_on_scenes("segment", other, tmp_path / "first", **given)  # type: ignore[arg-type]
    settings = json.loads((tmp_path / "first/settings.json").read_text())
    del settings["space"]  # as older versions wrote it
    (tmp_path / "first/settings.json").write_text(json.dumps(settings))
    assert train_on_scenes("segment", backbone(), tmp_path / "first", **given) == first  # type: ignore[arg-type]


def test_commands_print_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = [f"--scenes={key}={value}" for key, value in json.loads(FEW.model_dump_json()).items()]
    arguments = ["digits/deit", "--scratch", "--width", "8", "--to", str(tmp_path / "a"), *scenes, "--set=epochs=1"]
    assert main(["bench", "segment", *arguments, "--set=batch_size=8"]) == 0
    assert "miou: 0." in capsys.readouterr().out
    assert main(["bench", "segment", *arguments, "--set=batch_size=4"]) == 2
    assert "other settings: recipe.batch_size was 8, is 4" in capsys.readouterr().err
    for wrong, told in {
        "--set=epoch=1": "epochs",
        "--scenes=noises=3": "noise",
        "--set=batch_size=17": "fewer than a batch of 17",
        "--head=upper": "no such choice: 'upper'",
    }.items():
        other = [each if each != str(tmp_path / "a") else str(tmp_path / "b") for each in arguments]
        assert main(["bench", "segment", *other[:-1], wrong]) == 2
        assert told in capsys.readouterr().err
    assert main(["bench", "detect", "no/such/network", "--to", str(tmp_path / "c"), "--scratch"]) == 2
    if not torch.cuda.is_available():
        assert main(["bench", "segment", *arguments, "--gpu", "--replicas", "0"]) == 2
        assert "torch finds no GPU" in capsys.readouterr().err


def test_what_cannot_be_trained_is_refused() -> None:
    for task, head in (("draw", None), ("segment", "retinanet"), ("detect", "semantic_fpn")):
        with pytest.raises(UserError, match=r"no (task|head)"):
            train_on_scenes(task, backbone(), head=head, scenes=FEW)  # type: ignore[arg-type]
    for what, scratch in ((backbone(), False), ("digits/deit", True)):
        with pytest.raises(UserError, match="file of weights is for a timm model's own weights: leave it out"):
            train_on_scenes("segment", what, scratch=scratch, weights="file", scenes=FEW)
    with pytest.raises(UserError, match="lower the learning rate"):
        train_on_scenes("segment", backbone(), scenes=FEW, recipe=DenseRecipe(epochs=3, batch_size=8, lr=1e30))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "network").mkdir()
    (tmp_path / "network" / "model.safetensors").write_bytes(b"weights of something else")
    (tmp_path / "file").write_text("text")
    for name, told in (("network", "holds other files"), ("file", "is a file")):
        with pytest.raises(UserError, match=told):
            train_on_scenes("segment", backbone(), tmp_path / name, width=8, scenes=FEW, recipe=SHORT)
    assert (tmp_path / "network" / "model.safetensors").read_bytes() == b"weights of something else"
    # What was refused before its first epoch binds nothing.
    with pytest.raises(UserError, match="multiple of 32"):
        train_on_scenes("detect", backbone(), tmp_path / "fcos", "fcos", width=16, scenes=FEW, recipe=SHORT)
    assert train_on_scenes("detect", backbone(), tmp_path / "fcos", "fcos", width=32, scenes=FEW, recipe=SHORT)


def test_an_arch_without_weights_is_not_a_trained_backbone() -> None:
    with pytest.raises(UserError, match=r"digits/deit is an arch without weights: .*--scratch"):
        train_on_scenes("segment", "digits/deit", scenes=FEW, recipe=SHORT)


@pytest.mark.slow
def test_a_head_learns_to_segment_and_to_detect() -> None:
    easy = ScenesConfig(size=(32, 32), side=(16, 24), objects=(1, 1), pieces=0, noise=10, train=600, test=100)
    recipe = DenseRecipe(epochs=15, lr=3e-3)
    segmented = train_on_scenes("segment", backbone(), width=32, scenes=easy, recipe=recipe)
    assert segmented["miou"] > 0.3 and segmented["losses"][-1] < segmented["losses"][0] / 2
    detected = train_on_scenes("detect", backbone(), head="fcos", width=32, scenes=easy, recipe=recipe)
    assert detected["map50"] > 0.2 and detected["losses"][-1] < 0.8 * detected["losses"][0]


@pytest.mark.slow
def test_a_ray_task_trains_as_this_process_does(tmp_path: Path) -> None:
    given: dict[str, Any] = dict(width=16, scenes=FEW, recipe=SHORT)
    here = train_on_scenes("segment", backbone(), resources=Resources(0, 0, cpus=1), **given)
    assert train_on_scenes("segment", backbone(), tmp_path, resources=Resources(0, 1, cpus=1), **given) == here
    assert json.loads((tmp_path / "results.json").read_text()) == here


@pytest.mark.slow
def test_a_killed_job_goes_on(tmp_path: Path) -> None:
    scenes = [f"--scenes={key}={value}" for key, value in json.loads(FEW.model_dump_json()).items()]
    command = [sys.executable, str(JOBS / "segment.py"), "digits/deit", "--scratch", *scenes, "--width", "8"]
    command += ["--set=epochs=12", "--set=batch_size=4", "--to"]
    env = {**os.environ, "PYTHONPATH": str(JOBS.parent), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([*command, str(tmp_path / "killed")], env=env, stdout=subprocess.DEVNULL)
    while not (tmp_path / "killed/training.pt").exists():
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert not (tmp_path / "killed/results.json").exists()
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name)], env=env, check=True, stdout=subprocess.DEVNULL)
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("killed", "whole")]
    assert results[0] == results[1] and len(results[0]["losses"]) == 12


def test_a_uri_is_refused_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="to: s3://bucket/detected is a URI: give a folder, on a cluster on a mount"):
        train_on_scenes("detect", "digits/deit", "s3://bucket/detected", scratch=True)
    assert not list(tmp_path.iterdir())

"""Retraining: one-point spaces through the training loop, several seeds, killed and resumed."""

from __future__ import annotations

import _thread
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load

from raynas.cluster.resources import Resources
from raynas.costs import cost
from raynas.errors import ConfigError, RunDirError, UserError
from raynas.nets.supernet import Supernet
from raynas.phases.pretrained import read_pretrained
from raynas.phases.recipes import recipe_of
from raynas.phases.retrain import finetune_resized, retrain
from raynas.presets.preset import override
from raynas.progress.reporter import Reporter
from raynas.reports.tensorboard import epochs_of
from raynas.runs.network_folder import load_network_folder
from raynas.runs.networks import Network
from raynas.runs.run import Run
from tests.small_run import PRESET, SPACE, small_run

ARCH = SPACE.smallest()
RECIPE = PRESET.recipe
LINES: list[str] = []
Row = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Row]:
    """A run in which the smallest arch was retrained with seed 0, and its row."""
    run = small_run(tmp_path_factory.mktemp("retrain") / "run")
    torch.set_num_threads(1)
    (row,) = retrain(run, [ARCH], RECIPE, parallel=1, progress=LINES.append)
    return run, row


def weights(run: Run, row: Row) -> dict[str, torch.Tensor]:
    return load(run.read_bytes(f"{row['path']}/model.safetensors"))


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_files_and_rows(trained: tuple[Run, Row]) -> None:
    run, row = trained
    assert row["path"] == f"networks/{ARCH.id}-scratch-0"
    assert run.list(row["path"]) == ["arch.yaml", "model.safetensors", "network.json", "training.yaml"]
    assert (row["how"], row["trained_on"], row["epochs"], row["seed"]) == ("scratch", "train", 1, 0)
    assert row["params"] == sum(tensor.numel() for tensor in weights(run, row).values())
    assert row["macs"] == int(cost(SPACE, [ARCH])["macs"][0])
    assert run.networks() == [Network(ARCH, "scratch", 0, row["path"])]
    assert equal(load_network_folder(run.local_or_uri(row["path"])).state_dict(), weights(run, row))
    (history,) = run.store.read("training").to_pylist()
    assert history["what"] == f"{ARCH.id}-scratch-0" and history["epoch"] == 1


def test_what_is_trained_is_not_trained_again(trained: tuple[Run, Row]) -> None:
    run, row = trained
    lines: list[str] = []
    (answered,) = retrain(run, [ARCH], RECIPE, parallel=1, progress=lines.append)
    assert answered == row and run.store.read("networks").num_rows == 1
    assert lines == [f"{ARCH.id}, seed 0: trained already, {run.local_or_uri(row['path'])}"]


def test_other_settings_are_refused(trained: tuple[Run, Row]) -> None:
    with pytest.raises(RunDirError, match=rf"lr was 0\.002, is 0\.5; .*delete .*{trained[1]['path']} to train it anew"):
        retrain(trained[0], [ARCH], RECIPE.model_copy(update={"lr": 0.5}), parallel=1, progress=LINES.append)


def test_a_network_whose_folder_was_deleted_is_trained_anew(run: Run) -> None:
    (first,) = retrain(run, [ARCH], RECIPE, parallel=1, progress=LINES.append)
    shutil.rmtree(run.local_or_uri(first["path"]))
    assert run.networks() == []
    other = RECIPE.model_copy(update={"lr": 0.01})
    (second,) = retrain(run, [ARCH], other, parallel=1, progress=LINES.append)
    assert second["path"] == first["path"] and second["weights"] != first["weights"]
    assert run.network_rows() == [second] and run.store.read("networks").num_rows == 2
    assert [row["loss"] for row in run.store.read("training").to_pylist()] == [first["loss"], second["loss"]]
    assert [row["loss"] for _, row in epochs_of(run)] == [second["loss"]]


@pytest.mark.parametrize(
    ("change", "words"), [({"opt_args": {"wings": 2}}, "recipe.opt"), ({"amp": "fp16"}, "fp16 needs a GPU")]
)
def test_what_cannot_be_trained_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, change: Row, words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=words):
        retrain(run, [ARCH], RECIPE.model_copy(update=change), parallel=1, progress=LINES.append)
    assert not run.list("networks")


def test_a_network_alone_is_its_largest_subnet(run: Run, trained: tuple[Run, Row]) -> None:
    kinds = {kind: RECIPE.model_copy(update={"dropout": 0.5, "drop_for": kind}) for kind in ("all", "largest")}
    rows = {kind: retrain(run, [ARCH], recipe, parallel=1, name=kind)[0] for kind, recipe in kinds.items()}
    assert rows["all"]["weights"] == rows["largest"]["weights"] != trained[1]["weights"]


def test_fine_tuning_starts_from_the_inherited_weights(run: Run) -> None:
    still = RECIPE.model_copy(
        update={"lr": 0.0, "min_lr": 0.0, "warmup_lr": 0.0}
    )  # a rate of 0 keeps what it began with
    (row,) = retrain(run, [ARCH], still, how="finetuned", parallel=1, progress=LINES.append)
    assert row["how"] == "finetuned" and row["path"].endswith("-finetuned-0")
    assert equal(weights(run, row), run.supernet().subnet(ARCH).state_dict())


def test_training_on_the_search_split_leaves_it_unmeasured(run: Run, trained: tuple[Run, Row]) -> None:
    (row,) = retrain(run, [ARCH], RECIPE, train_on="train+search", parallel=1, progress=LINES.append)
    assert row["accuracy"] is None and row["trained_on"] == "train+search"
    other, plain = trained
    assert plain["path"] != row["path"] and plain["accuracy"] is not None
    images = [found.store.read("training")["images"].to_pylist() for found in (run, other)]
    assert images[0] > images[1]
    # What is adapted has not seen the images that its subnets are scored on, if there is a choice.
    run.write_arch("best", ARCH)
    assert read_pretrained(run.uri).name == f"{run.name} ({ARCH.id}-scratch-0-all)"
    retrain(run, [ARCH], RECIPE, parallel=1)
    assert read_pretrained(run.uri).name == f"{run.name} ({ARCH.id}-scratch-0)"


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_two_workers_train_as_one_process_does(run: Run, trained: tuple[Run, Row]) -> None:
    alone, whole = trained
    (shared,) = retrain(run, [ARCH], RECIPE, resources=Resources(workers=2), progress=LINES.append)
    assert run.store.read("training")["workers"].to_pylist() == [2]
    ours, theirs = weights(run, shared), weights(alone, whole)
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 1e-3
    assert not run.list("checkpoints")


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_worker_goes_on_where_this_process_stopped(run: Run, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = RECIPE.model_copy(update={"epochs": 6})

    def stop(line: str) -> None:
        if "epoch 3/6" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrain(run, [ARCH], recipe, progress=Reporter(stop, every_s=0.0))
    lines: list[str] = []
    worker = Resources(workers=1)
    (row,) = retrain(run, [ARCH], recipe, resources=worker, progress=Reporter(lines.append, every_s=0.0))
    assert not any("epoch 1/6" in line for line in lines)
    alone = small_run(tmp_path / "alone")
    (whole,) = retrain(alone, [ARCH], recipe, progress=LINES.append)
    assert equal(weights(run, row), weights(alone, whole))


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_one_that_fails_does_not_end_the_others(run: Run) -> None:
    """Two networks are fine-tuned, and the weights of the first are damaged."""
    first, second = retrain(run, [ARCH], RECIPE, seeds=[0, 1], parallel=1, progress=LINES.append)
    networks = [run.trained_network(ARCH, seed, "train") for seed in (0, 1)]
    (Path(run.uri) / first["path"] / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match=f"{first['path']}/model.safetensors is damaged"):
        finetune_resized(run, networks, RECIPE, 12, progress=LINES.append)
    assert [row["path"] for row in run.network_rows()[2:]] == [f"{second['path']}-resized-12"]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_interrupted_on_an_object_store_it_goes_on_where_it_was(s3_server: Callable[[str], str], run: Run) -> None:
    there, recipe = small_run(s3_server("retrain/run")), RECIPE.model_copy(update={"epochs": 30})
    lines: list[str] = []
    stops: list[str] = []

    def stop(line: str) -> None:
        if not stops and any(f"epoch {epoch}/30" in line for epoch in range(6, 10)):
            stops.append(line)  # a second one would interrupt what ends the trainings
            _thread.interrupt_main()  # a line may come from the reporter's own thread

    how: Row = {"recipe": recipe, "seeds": [0, 1], "resources": Resources(workers=1)}
    with pytest.raises(KeyboardInterrupt):
        retrain(there, [ARCH], **how, progress=Reporter(stop, every_s=0.1))
    time.sleep(2)
    commands = ["".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert not [command for command in commands if "TrainController" in command or "TrainWorker" in command]
    rows = retrain(there, [ARCH], **how, progress=Reporter(lines.append, every_s=0.1))
    assert any("epoch 20/30" in line for line in lines) and not any("epoch 1/30" in line for line in lines)
    assert not there.list(f"checkpoints/{ARCH.id}-scratch-0")
    torch.set_num_threads(1)
    whole = retrain(run, [ARCH], recipe, seeds=[0, 1], parallel=1, progress=LINES.append)
    for row, other in zip(rows, whole, strict=True):
        assert equal(weights(there, row), weights(run, other))
    told = [(row["what"], row["epoch"]) for row in there.store.read("training").to_pylist()]
    assert sorted(told) == [(f"{ARCH.id}-scratch-{seed}", epoch) for seed in (0, 1) for epoch in range(1, 31)]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_seeds_side_by_side_are_those_one_after_the_other(run: Run, trained: tuple[Run, Row]) -> None:
    alone, _ = trained
    one = retrain(alone, [ARCH], RECIPE, seeds=[0, 1], parallel=1, progress=LINES.append)
    two = retrain(run, [ARCH], RECIPE, seeds=[0, 1], progress=LINES.append)
    assert [row["seed"] for row in two] == [0, 1]
    assert not equal(weights(run, two[0]), weights(run, two[1]))
    for first, second in zip(one, two, strict=True):
        assert equal(weights(alone, first), weights(run, second))
        assert first["accuracy"] == second["accuracy"]


@pytest.mark.slow
def test_killed_in_the_middle_it_ends_the_same(run: Run, tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"epochs": 12})
    code = f"""
import torch
torch.set_num_threads(1)
from raynas.runs.run import Run
from raynas.progress.reporter import Reporter
from raynas.phases.pretrained import read_pretrained
from raynas.phases.recipes import recipe_of
from raynas.phases.retrain import finetune_resized, retrain
from raynas.presets.preset import override
from raynas.space import load_space
from raynas.training.recipe import Recipe
recipe = Recipe.model_validate_json({recipe.model_dump_json()!r})
retrain(Run({run.uri!r}), [load_space("digits/vit").smallest()], recipe, parallel=1)
"""
    root = str(Path(__file__).parents[2])
    checkpoints = Path(run.uri) / "checkpoints"
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and len(list(checkpoints.rglob("*.pt"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it had ended before it was killed"
    assert run.store.read("networks").num_rows == 0
    torch.set_num_threads(1)
    alone = small_run(tmp_path / "alone")
    (whole,) = retrain(alone, [ARCH], recipe, parallel=1, progress=LINES.append)
    (resumed,) = retrain(run, [ARCH], recipe, parallel=1, progress=LINES.append)
    assert equal(weights(alone, whole), weights(run, resumed))
    assert not list(checkpoints.rglob("*.pt"))
    epochs = [row["epoch"] for row in run.store.read("training").to_pylist()]
    assert epochs == list(range(1, 13))
    attempts = [(row["phase"], row["name"], row["status"]) for row in run.store.read("phases").to_pylist()]
    assert attempts == [("retraining", "scratch", "killed"), ("retraining", "scratch", "finished")]


def test_a_rollback_is_told_and_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The health check goes back once, and training goes on: here after a loss that was NaN in the second epoch."""
    steps = 0

    def break_once(self: Any, images: Any, arch: Any = None, **options: Any) -> Any:
        nonlocal steps
        steps += self.training
        logits = whole(self, images, arch, **options)
        return logits * float("nan") if self.training and steps == 15 else logits

    whole = Supernet.forward
    monkeypatch.setattr(Supernet, "forward", break_once)
    lines: list[str] = []
    retrain(run, [ARCH], RECIPE.model_copy(update={"epochs": 3}), parallel=1, progress=Reporter(lines.append, 0.0))
    assert any("epoch 1/3, rollback" in line for line in lines)
    rows = run.store.read("training").to_pylist()
    assert [row["epoch"] for row in rows if row["loss"] is not None] == [1, 2, 3]
    assert ["the loss is nan" in (row["event"] or "") for row in rows].count(True) == 1


def test_a_small_network_has_its_own_recipe_and_says_so(run: Run) -> None:
    big, macs = SPACE.largest(), [int(each) for each in cost(SPACE, [ARCH, SPACE.largest()])["macs"]]
    assert macs[0] < macs[1]
    rules = [{"macs": macs[1], "recipe": {"cutmix": 0.5}}]
    preset = override(PRESET, {"retrain.recipe.epochs": 1, "retrain.below": rules})
    lines: list[str] = []
    retrain(run, [ARCH, big], recipe_of(preset, SPACE.input_size, lines.append), parallel=1, progress=lines.append)
    recorded = [
        run.read_yaml(f"networks/{arch.id}-scratch-0/training.yaml", "settings")["settings"] for arch in (ARCH, big)
    ]
    assert [settings["recipe"]["cutmix"] for settings in recorded] == [0.5, 0.0]
    assert lines[0] == f"{ARCH.id} has {macs[0]:,} MACs, fewer than {macs[1]:,}: its recipe has {{'cutmix': 0.5}}"
    assert not any(big.id in line and "MACs" in line for line in lines)

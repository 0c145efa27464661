"""Training a supernet in this process: the weights of one Ray Train worker, from wherever a training was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from raynas import Resources, train
from raynas.data.load import load_data
from raynas.documents import write_yaml
from raynas.errors import UserError
from raynas.presets.preset import Preset
from raynas.runs.run import Run
from raynas.training.loop import train_loop
from tests.training.training_parts import SPACE, plan, recipe, same

EPOCHS = 12

SCRIPT = """
import sys
import raynas
raynas.train(sys.argv[1], run_dir=sys.argv[2])
assert "ray" not in sys.modules
"""


def preset(folder: Path) -> Preset:
    """Augmented and mixed, so that a wrong random stream would show."""
    SPACE.save(folder / "space.yaml")
    settings = recipe(epochs=EPOCHS, batch_size=96, mixup=0.2, augment={"shift": 1}, health={"probe_images": 100})
    found = Preset(space=str(folder / "space.yaml"), data="digits", plan=plan(), recipe=settings)  # type: ignore[arg-type]
    write_yaml(folder / "preset.yaml", found.model_dump(mode="json", exclude_unset=True))
    return found


def begin_and_kill(folder: Path, run: Path, after: int) -> None:
    """Train in a process of its own, and kill it once so many epochs were kept."""
    command = [sys.executable, "-c", SCRIPT, str(folder / "preset.yaml"), str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ) as process:
        seen: set[Path] = set()
        while len(seen) < after and process.poll() is None:
            seen |= set(run.glob("checkpoints/local/*.pt"))
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def learnt(run: Run) -> dict[str, torch.Tensor]:
    return load(run.read_bytes("supernet.safetensors"))


@pytest.mark.slow
def test_one_ray_train_worker_and_a_killed_process_without_ray_learn_the_same(
    ray_session: None, tmp_path: Path
) -> None:
    wanted, lines = preset(tmp_path), list[str]()
    alone = train_loop(SPACE, load_data("digits"), wanted.plan, wanted.recipe).weights
    begin_and_kill(tmp_path, tmp_path / "here", after=4)
    shutil.copytree(tmp_path / "here", tmp_path / "both")
    here = train(wanted, run_dir=tmp_path / "here", resources=Resources(workers=0), progress=lines.append)
    assert [line for line in lines if "going on after epoch" in line]
    assert same(learnt(here), alone)
    assert here.store.read("training").to_pydict()["epoch"] == list(range(1, EPOCHS + 1))
    assert len(here.list("checkpoints/local")) == wanted.recipe.checkpoints.keep

    lines.clear()
    both = train(
        wanted, run_dir=tmp_path / "both", resources=Resources(workers=1), progress=lines.append
    )  # from where no Ray had been
    assert [line for line in lines if "going on after epoch" in line]
    assert same(learnt(both), alone)

    both.filesystem.delete_file(both.at("supernet.json"))  # as if killed just before the end
    lines.clear()
    train(wanted, run_dir=both, resources=Resources(workers=0), progress=lines.append)  # from where Ray Train had been
    assert [line for line in lines if f"going on after epoch {EPOCHS}" in line]
    assert same(learnt(both), alone)
    assert both.store.read("training").to_pydict()["epoch"] == list(range(1, EPOCHS + 1))


def test_a_run_on_an_object_store_keeps_its_checkpoints_there(s3_server: Callable[[str], str], tmp_path: Path) -> None:
    run = train(preset(tmp_path), run_dir=s3_server("without_ray"))  # this process trains, since it is on no cluster
    assert len(run.list("checkpoints/local")) == 3
    run.filesystem.delete_file(run.at("supernet.json"))
    lines: list[str] = []
    train(preset(tmp_path), run_dir=run, resources=Resources(workers=0), progress=lines.append)
    assert [line for line in lines if f"going on after epoch {EPOCHS}" in line]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_no_cpu_in_silence(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(UserError, match="finds no GPU here"):
        train(preset(tmp_path / "made"), run_dir=tmp_path / "run", resources=Resources(workers=0, gpus=1))
    assert not (tmp_path / "run").exists()

"""Two processes, or three, do what one does with all of the batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.phases.teachers import load_teachers
from raynas.space import Space, load_space
from raynas.training.context import Context, DistributedContext, Interrupted, State
from raynas.training.loop import Trainer, train_loop
from raynas.training.recipe import Recipe
from raynas.training.samplers import Losses, Pass
from raynas.training.state import TrainingState
from raynas.training.streams import derive
from tests.training.training_parts import SPACE, Keeping, few, plan, recipe, same, teacher_file

SETTINGS = {"opt": "momentum", "lr": 0.1, "weight_decay": 0.05}
BATCH_NORM = "digits/vit_resnas"
STILL = recipe(epochs=1, lr=1e-12, warmup_epochs=0, ema=0.5)
PER_RANK = {"name": "single_path", "per_rank": True}
IDEAS = plan(
    "sandwich", objective="alpha_divergence", gradients={"name": "project", "clip_subnets": 1.0, "unit": "layer"}
)
WATCHED = {"health": {"conflict": {"steps": 2, "layers": True}}}
UNEVEN = recipe(**SETTINGS, batch_size=64, accumulate=2)  # for three: 22, 21 and 21 images, and halves of them
MANY = recipe(**SETTINGS, batch_size=16, epochs=2)  # twelve steps an epoch
ATTENTIVE = plan({"name": "sandwich", "attentive": {"candidates": 4, "choose": "worst"}})
SYNCED = recipe(**SETTINGS, epochs=1, warmup_epochs=0, sync_batchnorm=True, **WATCHED)


def unlike(space: Space) -> torch.nn.Module:
    """A network that starts differently on every rank."""
    model = build_supernet(space)
    with torch.no_grad():
        model.get_parameter("head.weight").add_(dist.get_rank())
    return model


def started(rank: int) -> dict[str, Any]:
    """Weights to start from, with statistics of batch norms that only rank 0 has calibrated."""
    torch.manual_seed(0)
    state = build_supernet(load_space(BATCH_NORM)).state_dict()
    return {name: torch.full_like(t, 3.0) if "running" in name and rank == 0 else t for name, t in state.items()}


def ideas(folder: str) -> Recipe:
    """A recipe with a teacher, whose answers are kept, and with every gradient watched."""
    teacher = {"timm": "test_resnet", "weights": f"{folder}/teacher.safetensors", "size": 16}
    return recipe(**SETTINGS, teachers={"models": [teacher], "sharpen": 2.0}, **WATCHED)


def train_ideas(folder: str, context: Context | None = None) -> TrainingState:
    settings = ideas(folder)
    return train_loop(SPACE, few(), IDEAS, settings, context, teachers=load_teachers(settings, few()))


def states_of(state: TrainingState) -> dict[str, Any]:
    return {
        "weights": state.model.state_dict(),
        "conflicts": [entry.get("conflict_layers") for entry in state.history],
        "images": [entry["images"] for entry in state.history],
        "losses": [entry["loss"] for entry in state.history],
    }


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, sampler in (("same", "sandwich"), ("per_rank", PER_RANK)):
        context = Saving(Path(folder) / name)
        found[name] = train_loop(SPACE, few(), plan(sampler), recipe(**SETTINGS), context).model.state_dict()
    found["ideas"] = states_of(train_ideas(folder, DistributedContext()))
    parts = few(), plan(), STILL, DistributedContext(), started(rank), "train", None, build_supernet
    found["started"] = Trainer(load_space(BATCH_NORM), *parts).model.state_dict()
    try:
        train_loop(SPACE, few(), plan(), recipe(), DistributedContext(), build=unlike)
    except UserError as error:
        found["drift"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


class Saving(DistributedContext):
    """Ranks of which the first one keeps checkpoints."""

    def __init__(self, folder: Path):
        super().__init__()
        self.kept = Keeping(folder)

    def save(self, state: State, score: float) -> None:
        if self.rank == 0:
            self.kept.save(state, score)
        dist.barrier()

    def load(self) -> State | None:
        return self.kept.load()


class Told(Saving):
    """Ranks that are told to end."""

    def must_end(self) -> bool:
        return True


def third(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    found: dict[str, Any] = {}
    found["uneven"] = states_of(train_loop(SPACE, few(192), ATTENTIVE, UNEVEN, Saving(Path(folder) / "uneven")))
    found["batch_norm"] = train_loop(load_space(BATCH_NORM), few(), plan(), STILL, DistributedContext()).weights
    found["synced"] = states_of(train_loop(load_space(BATCH_NORM), few(), plan(), SYNCED, DistributedContext()))
    with pytest.raises(Interrupted):
        train_loop(SPACE, few(192), plan("sandwich"), MANY, Told(Path(folder) / "told"))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def spawn(work: Callable[[int, str], None], processes: int, folder: Path) -> Path:
    """Run a function in processes that share the imports of one."""
    multiprocessing.set_forkserver_preload([__name__, "timm"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.start_processes(work, args=(str(folder),), nprocs=processes, start_method="forkserver")
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spawn(third, 3, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    teacher_file(folder / "teacher.safetensors")
    return spawn(process, 2, folder)


def load(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(file, weights_only=True) for file in sorted(folder.glob("[0-9].pt"))]


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=2e-5, rtol=1e-4)


def test_two_processes_equal_one_on_the_joined_batch(two: Path) -> None:
    first, second = (found["same"] for found in load(two))
    assert same(first, second)
    one = train_loop(SPACE, few(), plan("sandwich"), recipe(**SETTINGS)).model.state_dict()
    assert_close(first, one)


def test_statistics_that_the_first_process_calibrated_are_those_of_both(two: Path) -> None:
    first, second = (found["started"] for found in load(two))
    expected = started(0)
    assert any("running" in name for name in expected) and not same(expected, started(1))
    assert same(first, expected) and same(second, expected)


def test_three_processes_equal_one_on_a_batch_that_they_cannot_share_evenly(three: Path) -> None:
    first, second, last = (found["uneven"] for found in load(three))
    assert same(first["weights"], second["weights"]) and same(first["weights"], last["weights"])
    state = train_loop(SPACE, few(192), ATTENTIVE, UNEVEN)
    assert_close(first["weights"], state.model.state_dict())
    assert first["images"] == [entry["images"] for entry in state.history] == [192] * 3
    torch.testing.assert_close(first["losses"], [entry["loss"] for entry in state.history], atol=1e-5, rtol=1e-4)


def test_running_statistics_are_averaged_over_processes(three: Path) -> None:
    """Of the first BatchNorm, whose inputs no weight changes: the mean over all parts of a batch is the batch's."""
    first, second, *_ = (found["batch_norm"] for found in load(three))
    assert same(first, second)
    one = train_loop(load_space(BATCH_NORM), few(), plan(), STILL).weights
    name = "stem.first.norm.running_mean"
    assert one[name].abs().min() > 1e-4
    torch.testing.assert_close(first[name], one[name], rtol=1e-4, atol=1e-7)


def test_projected_gradients_and_teachers_of_two_processes_are_those_of_one(two: Path) -> None:
    """Gradients are averaged before they are compared, clipped and projected, and answers are shared."""
    first, second = (found["ideas"] for found in load(two))
    assert same(first["weights"], second["weights"]) and first["conflicts"] == second["conflicts"]
    one = states_of(train_ideas(str(two)))
    assert_close(first["weights"], one["weights"])
    assert first["conflicts"] == one["conflicts"] and any(any(entry.values()) for entry in one["conflicts"])


def test_synchronised_batch_norm_of_processes_is_that_of_one(three: Path) -> None:
    """The running averages, too; and with the pass of the largest that is run for the conflict ratio alone."""
    first, second, *_ = (found["synced"] for found in load(three))
    assert same(first["weights"], second["weights"])
    one = states_of(train_loop(load_space(BATCH_NORM), few(), plan(), SYNCED))
    assert_close(first["weights"], one["weights"])
    assert first["conflicts"] == one["conflicts"]


def both_ranks(space: Space, rng: np.random.Generator, losses: Losses) -> list[Pass]:
    """What two ranks draw for themselves, as one batch of which rank r has the rows r, r + 2, ..."""
    return [Pass("mixed", "mixed", tuple(space.sample(generator) for generator in GENERATORS))]


GENERATORS = [np.random.default_rng(derive(0, "sampler", rank, 0)) for rank in range(2)]


def test_ranks_with_archs_of_their_own_equal_one_mixed_batch(two: Path) -> None:
    """A block that only one rank used gets half of that rank's mean gradient; one that none used does not move."""
    first, second = (found["per_rank"] for found in load(two))
    assert same(first, second)
    one = train_loop(SPACE, few(), plan(f"{__name__}:both_ranks"), recipe(**SETTINGS)).model.state_dict()
    assert_close(first, one)


def test_drifted_ranks_are_found(two: Path) -> None:
    for found in load(two):
        assert "drifted apart" in found["drift"] and "head.weight" in found["drift"]


def test_one_worker_goes_on_where_three_were_told_to_end(three: Path) -> None:
    """In the middle of the first epoch; what follows does not depend on their number."""
    saved = Keeping(three / "told")
    assert [(state["epoch"], state["step_in_epoch"]) for state in [saved.load()] if state] == [(0, 10)]
    resumed = train_loop(SPACE, few(192), plan("sandwich"), MANY, saved)
    whole = train_loop(SPACE, few(192), plan("sandwich"), MANY)
    assert_close(resumed.model.state_dict(), whole.model.state_dict())
    assert [entry["workers"] for entry in resumed.history] == [1, 1]
    losses = [[entry["loss"] for entry in state.history] for state in (resumed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_another_number_of_workers_takes_the_checkpoint(two: Path) -> None:
    resumed = train_loop(SPACE, few(), plan("sandwich"), recipe(**SETTINGS), Keeping(two / "same"))
    assert same(resumed.model.state_dict(), load(two)[0]["same"])

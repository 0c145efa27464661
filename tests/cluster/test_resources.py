"""Workers and replicas as one value."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from raynas.cluster.resources import Resources
from raynas.commands import evaluate, evolve_space, pipeline, rank, retrain, search, train
from raynas.commands.options import given
from raynas.errors import UserError


def test_what_workers_and_replicas_need_by_rays_names() -> None:
    wanted = Resources(workers=2, replicas=3, cpus=4, gpus=0.5)
    assert wanted.of(2) == {"CPU": 8, "GPU": 1}
    assert wanted.together == {"CPU": 12, "GPU": 1.5}  # they never run at the same time
    assert Resources(workers=0, replicas=0).together == Resources(replicas=0).together == {"CPU": 1}
    few = Resources(workers=(2, 8))
    assert (few.fewest_workers, few.most_workers, few.together) == (2, 8, {"CPU": 8})


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"workers": -1}, "workers must be at least 0, not -1"),
        ({"workers": (0, 2)}, r"workers must be a number, or an ascending pair from 1, not \(0, 2\)"),
        ({"workers": (3, 2)}, "ascending pair"),
        ({"workers": (1, 2, 3)}, "ascending pair"),
        ({"workers": (1, "2")}, "ascending pair"),
        ({"max_failures": -1}, "max_failures must be at least 0, not -1"),
        ({"replicas": -1}, "replicas must be at least 0, not -1"),
        ({"cpus": 0}, "cpus must be at least 1, not 0"),
        ({"gpus": 2}, "gpus must be between 0 and 1, not 2"),
        ({"gpus": 1, "per_gpu": 0}, "per_gpu must be a number from 1 to 32, or 'fit', not 0"),
        ({"gpus": 1, "per_gpu": "all"}, "or 'fit', not 'all'"),
        ({"per_gpu": "fit"}, "need gpus=1"),
        ({"gpus": float("nan")}, "gpus must be between 0 and 1, not nan"),
    ],
)
def test_impossible_numbers_are_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Resources(**numbers)


@pytest.mark.parametrize(
    ("command", "arguments", "wanted"),
    [
        (train, ["digits", "--run", "r", "--workers", "3", "--gpu"], Resources(workers=3, replicas=0, gpus=1)),
        (
            train,
            ["digits", "--run", "r", "--workers", "2..8", "--max-failures", "9"],
            Resources(workers=(2, 8), replicas=0, max_failures=9),
        ),
        (train, ["digits", "--run", "r"], None),
        (train, ["digits", "--run", "r", "--cpus", "2"], Resources(replicas=0, cpus=2)),
        (pipeline, ["digits", "--run", "r"], Resources()),
        (search, ["r"], Resources(workers=0, replicas=2)),
        (
            search,
            ["r", "--replicas", "8", "--gpu", "--per-gpu", "fit"],
            Resources(workers=0, replicas=8, gpus=1, per_gpu="fit"),
        ),
        (retrain, ["r", "--gpu"], Resources(replicas=0, gpus=1)),
        (retrain, ["r", "--workers", "0", "--cpus", "4"], Resources(workers=0, replicas=0, cpus=4)),
        (retrain, ["r"], None),
        (evaluate, ["r"], None),
        (evaluate, ["r", "--gpu"], Resources(workers=0, replicas=1, gpus=1)),
        (rank, ["r", "--replicas", "0"], Resources(workers=0, replicas=0)),
        (rank, ["r", "--gpu"], Resources(replicas=2, gpus=1)),
        (evolve_space, ["digits", "--run", "r", "--replicas", "0"], Resources(workers=1, replicas=0)),
    ],
)
def test_the_flags_of_a_command(command: Any, arguments: list[str], wanted: Resources) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert given(parser.parse_args(arguments)).get("resources") == wanted

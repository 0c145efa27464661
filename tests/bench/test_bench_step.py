"""The benchmarks of networks run what they say; what they measure is the machine's matter."""

from __future__ import annotations

import pytest
import torch

from raynas.bench.all import bench_all
from raynas.bench.formats import bench_channels_last, bench_precision
from raynas.bench.sandwich import bench_sandwich
from raynas.bench.step import bench_step
from raynas.commands.main import main
from raynas.errors import UserError


def test_forward_and_step_are_compared_with_timm_and_the_threads_are_put_back() -> None:
    threads = torch.get_num_threads()
    rows = bench_step(rounds=1, batch_size=1)
    names = [f"{what}, {name}" for what in ("forward", "training step") for name in ("extracted", "sliced")]
    assert [row.name for row in rows] == [f"{name} / timm's deit_tiny" for name in names]
    assert all(row.ratios == (row.ours[0] / row.reference[0],) and row.ratios[0] > 0 for row in rows)
    assert torch.get_num_threads() == threads


def test_sandwich_formats_and_precision_are_compared_in_turns() -> None:
    rows = [
        *bench_sandwich("digits/vit", rounds=2),
        *bench_channels_last("digits/nasvit", rounds=2),
        *bench_precision("digits/vit", rounds=2),
    ]
    assert [row.name for row in rows] == [
        "sandwich step of digits/vit / its 4 subnets' own steps",
        "forward of digits/nasvit, channels last / contiguous",
        "training step of digits/nasvit, channels last / contiguous",
        "score of digits/vit, bf16 / fp32",
    ]
    assert all(len(row.ours) == len(row.reference) == 2 and min(row.ours + row.reference) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_all_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "all", "--rounds", "1", "--replicas", "1"]) == 0
    printed = capsys.readouterr().out
    for name in ("training step, sliced", "sandwich", "channels last", "bf16", "1 replicas", "encoded archs costed"):
        assert name in printed


def test_all_refuses_what_it_does_not_measure() -> None:
    with pytest.raises(UserError, match="no part 'steps': step, sandwich"):
        bench_all(["steps"])
    with pytest.raises(UserError, match="device 'no-such'"):
        bench_all(["sandwich"], device="no-such")

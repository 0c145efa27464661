"""The step benchmark runs what it says; what it measures is the machine's matter."""

from __future__ import annotations

import torch

from raynas.bench.step import REFERENCE, bench_step


def test_the_reference_comes_first_and_the_threads_are_put_back() -> None:
    threads = torch.get_num_threads()
    lines: list[str] = []
    timings = bench_step(rounds=1, batch_size=1, progress=lines.append)
    assert [timing.name for timing in timings] == [REFERENCE, "extracted", "sliced"]
    assert timings[0].ratio == 1 and all(timing.seconds > 0 for timing in timings)
    assert len(lines) == 2 and torch.get_num_threads() == threads

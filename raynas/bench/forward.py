"""Timing of forward passes of extracted networks on this machine, in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from raynas.costs import cost
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.network_folder import load_network_folder
from raynas.runs.run import Run
from raynas.scoring.replica import device_name

WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """The forward passes of one network.

    Attributes:
        name: as given.
        arch: its arch's id.
        macs: multiply-accumulates of one image.
        batch_size: images of one pass.
        seconds: duration of each pass.
    """

    name: str
    arch: str
    macs: int
    batch_size: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.seconds, [0.25, 0.75])
        return float(low), float(high)


def bench_forward(
    names: Sequence[str],
    batch_size: int = 1,
    rounds: int = 30,
    threads: int | None = None,
    run: Run | None = None,
    progress: Progress = silent,
) -> list[Timing]:
    """Time the forward passes of networks with fresh weights, one pass of each in every round.

    They take turns so that other work on the machine affects all of them equally.

    Args:
        names: folders of `raynas export`, arch files, or shipped archs' names.
        batch_size: images of one pass.
        rounds: timed passes of each network.
        threads: threads of torch; None for torch's own choice.
        run: gets a row of table `timings` for each network.
        progress: called with lines of text.

    Raises:
        UserError: there is no such arch.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        models = [load_network_folder(name, weights=False).to(device) for name in names]
        inputs = [torch.randn(batch_size, m.space.channels, *m.space.input_size, device=device) for m in models]
        seconds: list[list[float]] = [[] for _ in models]
        with torch.inference_mode(), reporter(progress).doing("timing", rounds, "rounds") as activity:
            for done in range(-WARM_UP, rounds):
                for index, (model, x) in enumerate(zip(models, inputs, strict=True)):
                    began = time.perf_counter()
                    model(x)
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    if done >= 0:
                        seconds[index].append(time.perf_counter() - began)
                activity.update(max(done + 1, 0))
        used = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    found = []
    for name, model, times in zip(names, models, seconds, strict=True):
        arch = model.space.smallest()
        macs = int(cost(model.space, [arch])["macs"][0])
        found.append(Timing(name, arch.id, macs, batch_size, tuple(times)))
    if run is not None:
        with run.lock():
            run.store.append("timings", [_row(timing, device, used) for timing in found])
    return found


def _row(timing: Timing, device: torch.device, threads: int) -> dict[str, object]:
    low, high = timing.quartiles
    detail = {"arch": timing.arch, "batch_size": timing.batch_size, "threads": threads, "quartiles": [low, high]}
    return {
        "what": f"forward pass of {timing.name}",
        "seconds": timing.median,
        "count": timing.batch_size,
        "detail": json.dumps(detail),
        "device": device_name(device),
    }

"""Timing of forward passes of extracted networks on this machine, in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from raynas.bench.device import on_device
from raynas.bench.measured import Measured, in_turns
from raynas.costs import cost
from raynas.nets.supernet import Supernet
from raynas.progress.reporter import Progress, silent
from raynas.runs.network_folder import load_network_folder
from raynas.runs.run import Run
from raynas.scoring.replica import device_name


def bench_forward(
    names: Sequence[str],
    batch_size: int = 1,
    rounds: int = 30,
    threads: int | None = None,
    run: Run | str | None = None,
    progress: Progress = silent,
) -> list[Measured]:
    """Time the forward passes of networks with fresh weights: wall time, one pass of each in every round.

    Args:
        names: folders of `raynas export`, arch files, or shipped archs' names.
        threads: threads of torch; None for torch's own choice.
        run: gets a row of table `timings` for each network, with median and quartiles.

    Returns:
        For each network milliseconds of a pass, and images a second.

    Raises:
        UserError: there is no such arch.
    """
    opened = None if run is None else Run(run)
    threads = threads or torch.get_num_threads()
    with on_device("cuda" if torch.cuda.is_available() else "cpu", threads) as device, torch.inference_mode():
        models = {name: load_network_folder(name, weights=False).to(device) for name in names}
        found = in_turns({name: _pass(model, batch_size, device) for name, model in models.items()}, rounds, progress)
    rows, timings = [], []
    for name, seconds in found.items():
        arch = models[name].space.smallest()
        macs = int(cost(arch.space, [arch])["macs"][0])
        rows.append(Measured(f"{name} ({macs:,} MACs)", "ms", tuple(1000 * each for each in seconds)))
        rows.append(Measured(name, "images/s", tuple(batch_size / each for each in seconds)))
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
        detail = {"arch": arch.id, "batch_size": batch_size, "threads": threads, "quartiles": [low, high]}
        about = {"what": f"forward pass of {name}", "count": batch_size, "device": device_name(device)}
        timings.append({**about, "seconds": median, "detail": json.dumps(detail)})
    if opened is not None:
        with opened.lock():
            opened.store.append("timings", timings)
    return rows


def _pass(model: Supernet, batch_size: int, device: torch.device) -> Callable[[], float]:
    """Return the measurement of one pass over random images."""
    space = model.space
    images = torch.randn(batch_size, space.channels, *space.input_size, device=device)

    def measure() -> float:
        began = time.perf_counter()
        model(images)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return measure

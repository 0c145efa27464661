"""Latency of subnets, measured on the device at hand.

Weights do not matter, so a subnet is timed with fresh ones and no trained supernet is needed.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, field_validator

from raynas.config import Config
from raynas.errors import UserError
from raynas.space import Arch

if TYPE_CHECKING:
    import torch

WARM_UP_S = 0.05
"""Warm-up time of a network, with at least `WARM_UP_PASSES` passes, before its passes count."""
WARM_UP_PASSES = 3
LEAST_PASSES, MOST_PASSES = 5, 1000
STEADY, AGAIN = 0.1, 3
"""Timing continues while quartiles differ by more than `STEADY` of the median, up to `AGAIN` times as long."""

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Conditions(Config):
    """Conditions under which subnets are timed.

    Attributes:
        device: `cpu`, `cuda` or `cuda:1`, of the timing process.
        batch_size: images of one pass.
        dtype: data type of weights and images: `fp32`, `bf16` or `fp16`.
        threads: number of torch's CPU threads.
        seconds: duration of one subnet's timing, of at least 5 and at most 1,000 passes.
    """

    device: str = "cpu"
    batch_size: int = Field(1, ge=1, le=10**6)
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    threads: int = Field(1, ge=1, le=1024)
    seconds: float = Field(0.3, gt=0, le=3600)

    @field_validator("device")
    @classmethod
    def _timed_devices(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError("subnets are timed on cpu, cuda, or one of several GPUs such as cuda:1")
        return device


class TimedOn(Config):
    """The device and conditions that a timing is valid for.

    Attributes:
        device: the model of the GPU, or of the CPU with the number of CPUs that the process may use.
        batch_size, dtype, threads: as in `Conditions`.
        torch: version of torch.
    """

    device: str
    batch_size: int
    dtype: str
    threads: int
    torch: str

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.device}, batch {self.batch_size}, {self.dtype}, {threads}, torch {self.torch}"


@dataclass(frozen=True)
class Timing:
    """Measured forward passes of one subnet.

    Attributes:
        on: the device and conditions.
        ms: median milliseconds of a pass over the batch.
        quartiles: the lower and the upper quartile in milliseconds.
        passes: number of passes timed.
        ratio: median ratio to the pass of the space's smallest arch in the same turn. A busy or hot device slows both,
            so ratios from different hours are comparable and milliseconds are not.
    """

    on: TimedOn
    ms: float
    quartiles: tuple[float, float]
    passes: int
    ratio: float

    @property
    def images_per_s(self) -> float:
        """Throughput at the median."""
        return 1000 * self.on.batch_size / self.ms


def timed_on(conditions: Conditions) -> TimedOn:
    """Return the device and conditions that timings of this process are valid for.

    Raises:
        UserError: this process has no such device.
    """
    import torch

    device = _device(conditions)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    shared = conditions.model_dump(include={"batch_size", "dtype", "threads"})
    return TimedOn(device=name, torch=torch.__version__, **shared)


def time_arch(arch: Arch, conditions: Conditions | None = None) -> Timing:
    """Time the forward passes of one extracted subnet in this process, in turns with its space's smallest.

    Disturbances only make passes longer. If their times vary much, more passes are timed and the fastest window
    counts. On one CPU thread the clock is the thread's own CPU time, which excludes other programs.

    Args:
        conditions: by default one fp32 image at a time on one CPU thread.

    Raises:
        UserError: this process has no such device.
        RuntimeError: from torch, if it cannot run the subnet: out of memory, or an operation without that dtype.
    """
    import torch

    from raynas.nets import build_supernet
    from raynas.nets.device import threads

    conditions = conditions or Conditions()
    on, device = timed_on(conditions), _device(conditions)
    dtype = getattr(torch, _DTYPES[conditions.dtype])
    with threads(conditions.threads):
        with torch.random.fork_rng(devices=[]):  # leave the global random stream to training
            spaces = [arch.space.fix(one) for one in (arch, arch.space.smallest())]
            networks = [build_supernet(space).eval().to(device, dtype) for space in spaces]
            x = torch.randn(conditions.batch_size, arch.space.channels, *arch.space.input_size).to(device, dtype)

        def run(network: torch.nn.Module) -> float:
            start = clock()
            network(x)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return clock() - start

        def turn() -> tuple[float, float]:
            return run(networks[0]), run(networks[1])

        clock = time.thread_time if device.type == "cpu" and conditions.threads == 1 else time.perf_counter
        with torch.inference_mode():
            _turns(turn, WARM_UP_S, WARM_UP_PASSES)
            until = time.perf_counter() + AGAIN * conditions.seconds
            best = _window(on, turn, conditions.seconds)
            while best.quartiles[1] - best.quartiles[0] > STEADY * best.ms and time.perf_counter() < until:
                best = min(best, _window(on, turn, conditions.seconds), key=lambda timing: timing.ms)
    return best


def _window(on: TimedOn, turn: Callable[[], tuple[float, float]], seconds: float) -> Timing:
    """Time consecutive passes."""
    ms, reference = 1000 * np.array(_turns(turn, seconds, LEAST_PASSES)).T
    low, median, high = (float(value) for value in np.quantile(ms, [0.25, 0.5, 0.75]))
    return Timing(on, median, (low, high), len(ms), float(np.median(ms / reference)))


def _turns(turn: Callable[[], tuple[float, float]], seconds: float, least: int) -> list[tuple[float, float]]:
    """Repeat turns for `seconds`, at least `least` times, and return their times."""
    found: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(found) < least or (time.perf_counter() - began < seconds and len(found) < MOST_PASSES):
        found.append(turn())
    return found


def _device(conditions: Conditions) -> torch.device:
    import torch

    device = torch.device(conditions.device)
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= there:
        raise UserError(f"latency is to be measured on {conditions.device}, but {platform.node()} has {there} GPUs")
    return device


def _cpu_name() -> str:
    """Return the CPU's name: `Intel(R) Xeon(R) Processor @ 2.50GHz, 2 CPUs`."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {count} CPUs"

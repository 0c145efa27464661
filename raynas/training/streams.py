"""Random streams of training: their seeds, and saving and restoring them in checkpoints.

timm's Mixup draws from numpy's global stream, stochastic depth from torch's; see `raynas.data.streams`.
"""

from __future__ import annotations

import random
from typing import Any, Literal, get_args

import numpy as np
import torch

from raynas.data.streams import mix, seed_global_streams

Purpose = Literal["weights", "global", "sampler", "data", "probes"]


def derive(seed: int, purpose: Purpose, *rest: int) -> int:
    """Return an independent 63-bit seed for one purpose (and, for example, one rank and attempt)."""
    return mix(seed, get_args(Purpose).index(purpose), *rest)


def seed_streams(seed: int) -> None:
    """Seed the global streams of python, numpy and torch, on CPU and GPU."""
    seed_global_streams(seed)
    torch.manual_seed(seed)


def capture_global_streams(device: torch.device) -> dict[str, Any]:
    """Return the states of the global streams, as values for `torch.load(weights_only=True)`."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)  # type: ignore[assignment]
    inner = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {"key": inner["key"].tolist(), "pos": int(inner["pos"])}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_global_streams(states: dict[str, Any], device: torch.device) -> None:
    """Restore the global streams; the inverse of `capture_global_streams`."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    inner = states["numpy"]["state"]
    np.random.set_state({**states["numpy"], "state": {"key": np.array(inner["key"], np.uint32), "pos": inner["pos"]}})
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)

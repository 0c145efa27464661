"""Random numbers that depend on named integers, also for libraries that draw from the global streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def mix(*parts: int) -> int:
    """One 63-bit seed from several non-negative integers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*parts: int) -> torch.Generator:
    """A torch generator seeded by several non-negative integers."""
    return torch.Generator().manual_seed(mix(*parts))


@contextmanager
def global_streams_kept() -> Iterator[None]:
    """Python's, numpy's and torch's global CPU streams are afterwards as they were before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_global_streams(*parts: int) -> None:
    """Seed all three, for the next draws of timm and torchvision; within `global_streams_kept` only."""
    seed = mix(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)

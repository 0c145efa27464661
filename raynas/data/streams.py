"""Random numbers from named integers, and the global streams of python, numpy and torch.

timm and torchvision draw from the global streams: mixing and stochastic depth do so in the training loop, which seeds
the streams and saves them in checkpoints (`raynas.training.streams`); the augmentation of an image does so within
`global_streams_kept`, which leaves them as they were. Everything else in raynas has its own generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def mix(*parts: int) -> int:
    """Return a 63-bit seed from several non-negative integers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(*parts: int) -> torch.Generator:
    """Return a torch generator seeded by several non-negative integers."""
    return torch.Generator().manual_seed(mix(*parts))


@contextmanager
def global_streams_kept() -> Iterator[None]:
    """Restore the global CPU streams of python, numpy and torch after the context."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_global_streams(seed: int) -> None:
    """Seed the global CPU streams of python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)

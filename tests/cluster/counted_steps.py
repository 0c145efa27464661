"""A sampler that counts the steps of each worker process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch.distributed as dist

from raynas.space import Space
from raynas.training.samplers import Losses, Pass, single_path


def counted(space: Space, rng: np.random.Generator, losses: Losses, *, folder: str, **options: Any) -> list[Pass]:
    """Draw as `single_path`, and add a line to a file of the process if it is the first worker."""
    if dist.is_initialized() and dist.get_rank() == 0:
        with open(f"{folder}/{os.getpid()}", "a") as steps:
            steps.write(f"{dist.get_world_size()}\n")
    return single_path(space, rng, losses, **options)

"""Resources of a command: how many processes train and score, and what each of them gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raynas.errors import UserError
from raynas.text import shown

MOST_PER_GPU = 32


@dataclass(frozen=True)
class Resources:
    """Workers that train and replicas that score, never both at once, and the CPUs and GPUs of each of them.

    Attributes:
        workers: Ray Train workers, which share every batch: the result does not depend on their number. A range such as
            `(2, 8)` begins with as many as there is room for, and restarts training from its newest checkpoint with
            more or fewer as nodes come and go. 0 trains in this process, without Ray, to the same weights as one. None
            is 1 on a cluster, and elsewhere 0, but 1 for each of several networks that are trained side by side.
        replicas: Ray actors that score subnets; 0 scores in this process, without Ray.
        cpus: CPUs, and threads of torch, of each worker and each replica; without Ray this process's threads.
        gpus: GPUs of each worker and each replica: 0, 1 or a fraction. Without Ray it is this process's.
        per_gpu: replicas that share a GPU: a number, or `fit` for as many as its memory holds, by what one needs for
            the largest subnet.
        max_failures: losses of workers that a training survives in a row, without progress between them. Announced
            ones do not count.

    Raises:
        UserError: a number is out of range.
    """

    workers: int | tuple[int, int] | None = None
    replicas: int = 2
    cpus: int = 1
    gpus: float = 0
    per_gpu: int | Literal["fit"] = 1
    max_failures: int = 3

    def __post_init__(self) -> None:
        if isinstance(self.workers, tuple) and not (
            [type(end) for end in self.workers] == [int, int] and 1 <= self.workers[0] <= self.workers[1]
        ):
            raise UserError(f"workers must be a number, or an ascending pair from 1, not {shown(self.workers)}")
        for name, least in (("workers", 0), ("replicas", 0), ("cpus", 1), ("max_failures", 0)):
            value = getattr(self, name)
            if name == "workers" and (value is None or isinstance(value, tuple)):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be at least {least}, not {shown(value)}")
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int | float) or not 0 <= self.gpus <= 1:
            raise UserError(f"gpus must be between 0 and 1, not {shown(self.gpus)}")

        if self.per_gpu != "fit" and (isinstance(self.per_gpu, bool) or self.per_gpu not in range(1, MOST_PER_GPU + 1)):
            raise UserError(f"per_gpu must be a number from 1 to {MOST_PER_GPU}, or 'fit', not {shown(self.per_gpu)}")
        if self.per_gpu != 1 and self.gpus != 1:
            raise UserError("replicas that share a GPU need gpus=1 (--gpu)")

    def of(self, count: int) -> dict[str, float]:
        """Return the resources of so many workers or replicas, by Ray's names."""
        return {"CPU": self.cpus * count, **({"GPU": self.gpus * count} if self.gpus else {})}

    @property
    def fewest_workers(self) -> int:
        """The number of workers that a training can begin with; 0 if it is not said."""
        return self.workers[0] if isinstance(self.workers, tuple) else self.workers or 0

    @property
    def most_workers(self) -> int:
        """The number of workers that a training grows to; 0 if it is not said."""
        return self.workers[1] if isinstance(self.workers, tuple) else self.workers or 0

    @property
    def shown_workers(self) -> str:
        """The number of workers in words: `2`, or `2 to 8`."""
        return " to ".join(map(str, self.workers)) if isinstance(self.workers, tuple) else str(self.workers)

    @property
    def together(self) -> dict[str, float]:
        """Resources of all workers, or of all replicas where these are more, by Ray's names."""
        return self.of(max(self.most_workers, self.replicas, 1))

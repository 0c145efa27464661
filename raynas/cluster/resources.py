"""Resources of a command: how many processes train and score, and what each of them gets."""

from __future__ import annotations

from dataclasses import dataclass

from raynas.errors import UserError
from raynas.text import shown


@dataclass(frozen=True)
class Resources:
    """Workers that train and replicas that score, never both at once, and the CPUs and GPUs of each of them.

    Attributes:
        workers: Ray Train workers; each takes an equal share of every batch. 0 trains in this process, without Ray, to
            the same weights as one worker.
        replicas: Ray actors that score subnets; 0 scores in this process, without Ray.
        cpus: CPUs, and threads of torch, of each worker and each replica.
        gpus: GPUs of each worker and each replica: 0, 1 or a fraction. Without Ray it is this process's.

    Raises:
        UserError: a number is out of range.
    """

    workers: int = 1
    replicas: int = 2
    cpus: int = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("replicas", 0), ("cpus", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be at least {least}, not {shown(value)}")
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int | float) or not 0 <= self.gpus <= 1:
            raise UserError(f"gpus must be between 0 and 1, not {shown(self.gpus)}")

    def of(self, count: int) -> dict[str, float]:
        """Return the resources of so many workers or replicas, by Ray's names."""
        return {"CPU": self.cpus * count, **({"GPU": self.gpus * count} if self.gpus else {})}

    @property
    def together(self) -> dict[str, float]:
        """Resources of all workers, or of all replicas where these are more, by Ray's names."""
        return self.of(max(self.workers, self.replicas, 1))

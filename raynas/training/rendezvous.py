"""Rendezvous of training workers on one machine through a file.

torch's TCP store would listen on every interface of the machine, whatever address it is given.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from ray.train.backend import Backend
from ray.train.torch import TorchConfig


@dataclass
class FileRendezvous(TorchConfig):
    """Ray Train's configuration of torch's process group, for workers of one machine.

    Attributes:
        folder: folder of the files, one for each start of the workers.
    """

    folder: str = ""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class _Backend(TorchConfig().backend_cls):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: FileRendezvous) -> None:
        """Set up the process group in every worker."""
        import ray

        backend = "nccl" if worker_group.get_resources_per_worker().get("GPU", 0) else "gloo"
        meeting = f"file://{backend_config.folder}/{uuid.uuid4().hex}"
        size = len(worker_group)
        joined = [
            worker_group.execute_single_async(
                rank, _join, backend, meeting, rank, size, timedelta(seconds=backend_config.timeout_s)
            )
            for rank in range(size)
        ]
        ray.get(joined)


def _join(backend: str, meeting: str, rank: int, size: int, timeout: timedelta) -> None:
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=timeout)

"""The environment of the training loop: rank, sums over ranks, checkpoints and progress.

`Context` is a single process, `DistributedContext` one rank of a torch.distributed group. A run directory and the Ray
Train job have their own checkpoints (`raynas.phases.run_context`, `raynas.phases.train_worker`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import IO, Any, Literal

import torch
import torch.distributed as dist

from raynas.errors import UserError, first_line

State = dict[str, Any]
Event = dict[str, Any]

CONNECTION_S = 60.0  # seconds that the first all-reduce may take


class Interrupted(Exception):
    """The end of a training that is saved and not finished, because its processes will be ended."""


class Context:
    """A single process that keeps no checkpoints.

    Args:
        on_event: called with progress events (see `raynas.training.progress`).
        device: a device, or its name for torch.
    """

    def __init__(self, on_event: Callable[[Event], None] = lambda event: None, device: str | torch.device = "cpu"):
        self.rank, self.world_size = 0, 1
        self.on_event = on_event
        self.device = torch.device(device)

    def all_reduce(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        """Reduce a tensor over ranks by sum or maximum, in place."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        return [value]

    def must_end(self) -> bool:
        """Return True if this process will soon be ended; every rank must ask, and gets the same answer."""
        return False

    def event(self, event: Event) -> None:
        """Report a progress event; called on rank 0 only."""
        self.on_event(event)

    def save(self, state: State, score: float) -> None:
        """Keep a checkpoint; every rank must call it. A higher `score` is better."""

    def load(self) -> State | None:
        """Return the newest checkpoint, on every rank; None if there is none."""
        return None


class DistributedContext(Context):
    """A rank of the initialised default torch.distributed group."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def all_reduce(self, tensor: torch.Tensor, op: Literal["sum", "max"] = "sum") -> None:
        dist.all_reduce(tensor, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def read_state(path: str | os.PathLike[str] | IO[bytes]) -> State:
    """Read a checkpoint; only tensors and plain values are unpickled.

    Raises:
        UserError: it is no file; a pipe would wait for ever.
    """
    if isinstance(path, str | os.PathLike) and not os.path.isfile(path):
        raise UserError(f"{os.fspath(path)} is not an ordinary file: move it away, and training goes on without it")
    return torch.load(path, map_location="cpu", weights_only=True)


def check_connection(context: Context) -> None:
    """Refuse workers that cannot reach each other, or whose all-reduce gives a wrong sum."""
    if context.world_size == 1:
        return
    where = f"rank {context.rank} of {context.world_size} on {socket.gethostname()} ({context.device})"
    began = time.monotonic()
    value = torch.tensor([float(context.rank + 1)], device=context.device)
    try:
        if isinstance(context, DistributedContext):
            dist.all_reduce(value, async_op=True).wait(timedelta(seconds=CONNECTION_S))
        total = value.item()
    except RuntimeError as error:
        raise UserError(
            f"the workers cannot reach each other: an all-reduce failed after "
            f"{time.monotonic() - began:.0f} s on {where}: {first_line(error)}. Check that the nodes "
            "reach one another on all ports (or name the interface in GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME)"
        ) from error
    expected = context.world_size * (context.world_size + 1) / 2
    if total != expected:
        raise UserError(
            f"an all-reduce on {where} gave {total:g} where {expected:g} is right: the network or the "
            "collective library does not add up; training on it would be wrong"
        )


def check_ranks_agree(context: Context, model: torch.nn.Module) -> None:
    """Refuse parameters whose sums differ over ranks; the message names the parameter."""
    if context.world_size == 1:
        return
    named = list(model.named_parameters())
    sums = torch.stack([parameter.detach().double().sum() for _, parameter in named])
    extremes = torch.cat([sums, -sums])
    context.all_reduce(extremes, "max")
    highest, lowest = extremes[: len(named)], -extremes[len(named) :]
    apart = (highest - lowest) / (highest.abs() + lowest.abs() + 1e-3)
    if not bool((apart < 1e-4).all()):
        worst = int(torch.nan_to_num(apart, nan=float("inf")).argmax())
        raise UserError(
            f"the workers' weights have drifted apart (most in {named[worst][0]}: sums from {lowest[worst]:g} to "
            f"{highest[worst]:g}): what was trained since the last checkpoint cannot be trusted. Run the same command "
            "again to go on from it; if this comes back, look for a worker with other software or faulty memory"
        )


@torch.no_grad()
def share_buffers(context: Context, model: torch.nn.Module) -> None:
    """Give every rank the floating-point buffers of rank 0: statistics of batch norms that it alone calibrated."""
    if context.world_size == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            context.all_reduce(buffer if context.rank == 0 else buffer.zero_())


@torch.no_grad()
def average_buffers(context: Context, model: torch.nn.Module, share: float) -> None:
    """Average floating-point buffers over ranks: the running statistics of BatchNorm, if a network has it.

    Between two calls every rank keeps its own; a checkpoint has rank 0's. Training passes do not use them.

    Args:
        share: this rank's weight; those of all ranks sum to 1.
    """
    if context.world_size == 1:
        return
    learnt = {name for name, _ in model.named_parameters()}
    for name, tensor in model.state_dict().items():
        if name not in learnt and tensor.is_floating_point():
            tensor *= share
            context.all_reduce(tensor)

"""BatchNorm over the images of all workers, for all families.

torch's SyncBatchNorm replaces whole modules and only works on GPUs. This replaces the function that all batch norms
call, including sliced ones, and works with any all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def over_workers(passes: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """Extend the context of training passes, such as autocast, by batch norms over all workers."""

    @contextmanager
    def around() -> Iterator[None]:
        with passes(), SyncBatchNorm():
            yield

    return around


class SyncBatchNorm(TorchFunctionMode):
    """A context in which training batch norms use all workers' mean and variance; workers must run the same passes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Replace `torch.nn.functional.batch_norm`, with mean and variance over all workers' images in training.

    Args:
        input: [batch, channels, ...].
        running_mean, running_var: [channels], updated in place by `momentum` in training.
    """
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    axes, shape = [0, *range(2, input.ndim)], (1, -1, *[1] * (input.ndim - 2))
    values = input.to(torch.promote_types(input.dtype, torch.float32))
    sums = _sum(torch.cat([values.sum(axes), values.new_full((1,), input.numel() / input.shape[1])]))
    count = sums[-1]
    centred = values - (mean := sums[:-1] / count).view(shape)
    variance = _sum(centred.square().sum(axes)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean), momentum)
            running_var.lerp_((variance * count / (count - 1)).to(running_var), momentum)
    out = centred * torch.rsqrt(variance + eps).view(shape)
    out = out if weight is None else out * weight.view(shape)
    return (out if bias is None else out + bias.view(shape)).to(input.dtype)


class _OverWorkers(torch.autograd.Function):
    """A sum over workers, whose gradient is also summed over workers."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return _OverWorkers.forward(ctx, gradient.contiguous())


def _sum(value: Tensor) -> Tensor:
    return _OverWorkers.apply(value)  # type: ignore[no-any-return, no-untyped-call]

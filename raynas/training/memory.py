"""Memory that a training needs, from shapes alone (no GPU is needed), and that it was seen to need."""

from __future__ import annotations

import resource
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raynas.nets import build_supernet
from raynas.space import Space
from raynas.training.recipe import Recipe, build_optimizer


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that one worker holds on its device at the peak of a step.

    Attributes:
        parameters: the network's parameters and buffers, and their moving average.
        gradients: one gradient of every parameter for each set of the gradient policy.
        optimizer: what the optimiser keeps.
        activations: what the backward pass of the largest subnet needs, for one micro-batch.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def training_memory(space: Space, recipe: Recipe, workers: int = 1, sets: int = 1) -> TrainingMemory:
    """Return the memory that each of some workers needs to train the supernet of a space.

    Working memory of single operations, of the loader and of torch itself is not in it.

    Args:
        space: space with the image size, channels and classes of the data.
        recipe: the recipe.
        workers: number of workers, at least 1.
        sets: gradients that the policy keeps apart.
    """
    with torch.device("meta"):
        model = build_supernet(space).train()
    held = _bytes(model)
    learnt = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return TrainingMemory(
        parameters=held * (1 if recipe.ema is None else 2),
        gradients=learnt * sets,
        optimizer=_optimizer_bytes(recipe) * learnt // 4,
        activations=_activation_bytes(model, space, recipe, recipe.micro_batch(workers)),
    )


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process has held so far: on a GPU in torch's tensors, else in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def weights_bytes(space: Space) -> int:
    """Return the size of the parameters and buffers of a space's supernet in bytes."""
    with torch.device("meta"):
        return _bytes(build_supernet(space))


def forward_bytes(space: Space, images: int) -> int:
    """Return the most bytes that the largest subnet's pass over some images holds, in float32 and without gradients.

    The images themselves are in it; the weights, and working memory of single operations, are not.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        model = build_supernet(space).eval()
    with torch.no_grad(), FakeTensorMode(), _Allocated() as allocated:
        held = _without_values(model)
        weights = allocated.held
        batch = torch.empty(images, space.channels, *space.input_size)
        torch.func.functional_call(model, held, (batch, space.largest()))
    return allocated.peak - weights


class _Allocated(TorchDispatchMode):
    """Counts the bytes of tensors without values.

    Attributes:
        held: bytes of those that live.
        peak: the most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known = WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known.add(storage)
                self._change(storage.nbytes())
                weakref.finalize(storage, self._change, -storage.nbytes())
        return found

    def _change(self, count: int) -> None:
        self.held += count
        self.peak = max(self.peak, self.held)


def _bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in chain(model.parameters(), model.buffers()))


def _optimizer_bytes(recipe: Recipe) -> int:
    """Return the bytes that the optimiser keeps for each parameter, from a step with a small network."""
    model = nn.Linear(64, 64)
    optimizer = build_optimizer(recipe, model)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return round(sum(t.numel() * t.element_size() for t in kept) / sum(p.numel() for p in model.parameters()))


def _without_values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return tensors like a model's parameters and buffers, which have no values in the mode of fake tensors."""
    named = chain(model.named_parameters(), model.named_buffers())
    return {name: torch.empty(t.shape, dtype=t.dtype, requires_grad=t.requires_grad) for name, t in named}


def _activation_bytes(model: nn.Module, space: Space, recipe: Recipe, images: int) -> int:
    """Return the size of all tensors that are saved for the backward pass, from a pass with tensors without values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # the only way to have autocast choose the types

    dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[recipe.amp]
    saved: dict[int, torch.UntypedStorage] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage  # kept, so that no other gets its address
        return tensor

    model.drop_path, model.dropout = recipe.drop_path, recipe.dropout  # type: ignore[assignment]
    with FakeTensorMode():
        held = _without_values(model)
        own = {t.untyped_storage()._cdata for t in held.values()}
        batch = torch.empty(images, space.channels, *space.input_size)
        autocast = nullcontext() if dtype is None else torch.autocast("cpu", dtype)
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast:
            torch.func.functional_call(model, held, (batch, space.largest()))
    return sum(storage.nbytes() for key, storage in saved.items() if key not in own)

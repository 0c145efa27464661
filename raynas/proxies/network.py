"""Parts of networks for training-free scores: fresh networks, their blocks, gradients and recorded outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Arch

_BLOCK = re.compile(r"(blocks\.\d+|stages\.\d+\.(?:blocks|layers)\.\d+)(?:\.(.+))?")


def fresh_network(arch: Arch, seed: int) -> Supernet:
    """Return the network of an arch with its family's random initialisation, in training mode.

    Nothing is dropped in it; batch norms use their batch. torch's random stream is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_supernet(arch.space.fix(arch)).train()


def blocks(network: Supernet) -> list[nn.Module]:
    """Return the blocks that a network runs, from the first to the last, in all families; without class attention's."""
    found = [(_BLOCK.fullmatch(name), module) for name, module in network.named_modules()]
    return [module for match, module in found if match and not match[2] and not isinstance(module, nn.Identity)]


def block_parameters(network: Supernet) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of all blocks, each with its name within its block, such as `qkv.weight`."""
    for name, parameter in network.named_parameters():
        if (match := _BLOCK.fullmatch(name)) and match[2]:
            yield match[2], parameter


class Calls(TorchFunctionMode):
    """Replaces calls of torch functions in a pass: `{F.batch_norm: lambda x, *_, **__: x}` leaves batch norms out."""

    def __init__(self, instead: Mapping[Any, Callable[..., Any]]):
        super().__init__()
        self.instead = instead

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.instead.get(func, func)(*args, **(kwargs or {}))


def flow(network: Supernet, left_out: Mapping[Any, Callable[..., Any]]) -> dict[nn.Parameter, Tensor]:
    """Return the gradient of the summed logits by parameter, for an image of ones and all parameters at |value|.

    The network computes in double precision, and keeps the absolute values (Tanaka et al., 2020, section 5).

    Args:
        left_out: functions in place of torch's, see `Calls`.
    """
    network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()
    ones = torch.ones(1, network.space.channels, *network.space.input_size, dtype=torch.float64)
    parameters = list(network.parameters())
    with Calls(left_out):
        total = network(ones).sum()
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return {each: slope for each, slope in zip(parameters, found, strict=True) if slope is not None}


def same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return the input: a norm that is left out."""
    return x


@contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the input and output of each module that runs."""
    found: list[tuple[Tensor, Tensor]] = []
    with ExitStack() as hooks:
        for module in modules:
            hook = module.register_forward_hook(lambda _, inputs, output: found.append((inputs[0], output)))
            hooks.enter_context(hook)
        yield found

"""Models of timm's beside networks of ours with their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import timm
import torch
from torch import Tensor, nn

from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Space
from tests.families.nets_spaces import make_images

Read = Callable[[nn.Module, str], tuple[Space, dict[str, Tensor]]]


def on_meta(name: str) -> nn.Module:
    """A model of timm's that has shapes and no values."""
    with torch.device("meta"):
        return timm.create_model(name).eval()


def randomised(model: nn.Module) -> nn.Module:
    """The model with every parameter (biases and norms too) far from its initial value, in eval mode."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def from_timm(model: nn.Module, read: Read) -> Supernet:
    """The one-point supernet with a timm model's weights."""
    return load_supernet(*read(model, "model")).eval()


def assert_same_logits(ours: Supernet, model: nn.Module) -> None:
    """On one image."""
    images = make_images(ours.space, 1)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)


def assert_same_gradients(ours: Supernet, model: nn.Module, parameters: Mapping[str, str]) -> None:
    """And logits; `parameters` are ours, and theirs of the same shape."""
    images = make_images(ours.space, 2)
    torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)
    for network in (ours, model):
        network(images).square().sum().backward()
    for name, theirs in parameters.items():
        pair = [network.get_parameter(key).grad for network, key in ((ours, name), (model, theirs))]
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)

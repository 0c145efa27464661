"""Ordering of a supernet's units and blocks by importance, so that narrow subnets keep the important ones.

Reordering is exact: the largest network computes the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm
from raynas.nets.device import evaluating
from raynas.nets.layers import ElasticNorm
from raynas.nets.supernet import Supernet
from raynas.nets.units import UnitAxis, UnitGroup
from raynas.space.elastic import running_blocks
from raynas.text import nearest

Importance = Literal["magnitude", "taylor", "activation", "random"]
IMPORTANCES: tuple[Importance, ...] = get_args(Importance)


def order_units(
    supernet: Supernet,
    how: Importance,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    rng: np.random.Generator | None = None,
    batch: int = 16,
) -> None:
    """Order residual channels, and each block's heads and hidden channels, by importance: the greatest first, in place.

    Args:
        supernet: a supernet whose narrow widths are the first channels. Its largest network is looked at, in
            evaluation mode, on the device on which it is.
        how: the importance of a unit. `magnitude`: the sum of its weights' absolute values. `taylor`: the squared sum
            of its weights times their gradients, added up over batches (Molchanov et al., 2019, Eq. 8): the change of
            the loss, to first order, if the unit is removed. `activation`: the mean absolute input of the layers that
            read it. `random`: none, a random order.
        images: normalised images [n, channels, height, width], a few hundred; for `taylor` and `activation`.
        labels: [n] int64, for `taylor`; the loss is then cross-entropy. Without labels it is a random direction of the
            logits, a new one for each image: the squares are then, on average, those of the change of the logits
            themselves. (A distance of the network's output to itself would have no gradient.)
        rng: source of random orders and directions.
        batch: number of images of a pass, and of one square in `taylor`.

    Raises:
        UserError: there is no such importance, narrow widths are not the first channels, images are missing, or images
            and labels do not fit.
    """
    groups = supernet.exchangeable()
    found = importances(supernet, groups, how, images, labels, rng=rng, batch=batch)
    tensors = {**dict(supernet.named_parameters()), **dict(supernet.named_buffers())}
    with torch.no_grad():
        for group, importance in zip(groups, found, strict=True):
            group.reorder(tensors, torch.argsort(importance, descending=True, stable=True))


def importances(
    supernet: Supernet,
    groups: list[UnitGroup],
    how: Importance,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    *,
    rng: np.random.Generator | None = None,
    batch: int = 16,
) -> list[Tensor]:
    """Return the importance of every unit, [units] for each group; arguments and errors as for `order_units`."""
    rng = rng or np.random.default_rng(0)
    if how not in IMPORTANCES:
        raise UserError(f"no importance {how!r}{nearest(str(how), list(IMPORTANCES))}: {', '.join(IMPORTANCES)}")
    if supernet.space.constants.sharing != "ordinal":
        raise UserError(
            f"space {supernet.space.name}: narrow widths are the first channels with sharing: ordinal alone"
        )
    if how == "random":
        return [torch.from_numpy(rng.permutation(group.count)).float() for group in groups]
    if how == "magnitude":
        learnt = dict(supernet.named_parameters())
        return [magnitudes(group, learnt) for group in groups]
    if images is None:
        raise UserError(f"importance {how} needs images: a few hundred of the training images")
    with evaluating(supernet):
        batches = _batches(supernet, images, labels, batch)
        return _taylor(supernet, groups, batches, rng) if how == "taylor" else _activation(supernet, groups, batches)


def magnitudes(group: UnitGroup, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the absolute values of each unit's weights, [units]."""
    units = [group.of(parameters[axis.name], axis).flatten(1) for axis in group.axes if axis.name in parameters]
    return torch.cat(units, dim=1).detach().abs().sum(1)


def _taylor(
    supernet: Supernet,
    groups: list[UnitGroup],
    batches: Iterator[tuple[Tensor, Tensor | None]],
    rng: np.random.Generator,
) -> list[Tensor]:
    largest = supernet.space.largest()
    learnt = {name: value for name, value in supernet.named_parameters() if value.is_floating_point()}
    totals = [torch.zeros(group.count) for group in groups]
    for images, labels in batches:
        with torch.enable_grad():
            logits = supernet(images, largest)
            if labels is None:
                direction = torch.from_numpy(rng.standard_normal(tuple(logits.shape))).to(logits)
                loss = (logits * direction).sum()
            else:
                loss = F.cross_entropy(logits, labels, reduction="sum")
            gradients = torch.autograd.grad(loss, list(learnt.values()), allow_unused=True)
        products = {
            name: value.detach() * gradient
            for (name, value), gradient in zip(learnt.items(), gradients, strict=True)
            if gradient is not None
        }
        for group, total in zip(groups, totals, strict=True):
            change = sum(group.of(products[a.name], a).flatten(1).sum(1) for a in group.axes if a.name in products)
            total += torch.as_tensor(change).square().cpu()
    return totals


def _batches(
    supernet: Supernet, images: Tensor, labels: Tensor | None, batch: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield batches of images and labels on the supernet's device."""
    if labels is not None and len(labels) != len(images):
        raise UserError(f"{len(images)} images, but {len(labels)} labels")
    like = next(supernet.parameters())
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        yield images[part].to(like), None if labels is None else labels[part].to(like.device)


@torch.no_grad()
def _activation(
    supernet: Supernet, groups: list[UnitGroup], batches: Iterator[tuple[Tensor, Tensor | None]]
) -> list[Tensor]:
    largest, seen = supernet.space.largest(), [dict[str, Tensor]() for _ in groups]
    with ExitStack() as hooks:
        for group, found in zip(groups, seen, strict=True):
            for axis, module in _readers(supernet, group):
                hooks.enter_context(module.register_forward_pre_hook(_listener(group, axis, found)))
        for images, _ in batches:
            supernet(images, largest)
    # Every layer counts alike, whatever the size of its input; of nothing but zeros, no unit counts.
    return [
        sum((each / each.mean() for each in found.values() if each.any()), torch.zeros(group.count))
        for group, found in zip(groups, seen, strict=True)
    ]


def _readers(supernet: Supernet, group: UnitGroup) -> Iterator[tuple[UnitAxis, nn.Module]]:
    """Yield the layers that read a group's units, with the axis of their input [batch, ...] that holds these."""
    for axis in group.axes:
        path, _, leaf = axis.name.rpartition(".")
        module = supernet.get_submodule(path)
        if leaf != "weight":
            continue
        rank = module.get_parameter(leaf).ndim
        if isinstance(module, ElasticNorm | ElasticBatchNorm):
            yield axis._replace(dim=-1 if isinstance(module, ElasticNorm) else 1), module
        elif axis.dim == 1 and rank in (2, 4):  # linear layers and convolutions
            yield axis._replace(dim=-1 if rank == 2 else 1), module


def _listener(group: UnitGroup, axis: UnitAxis, found: dict[str, Tensor]) -> Callable[[nn.Module, Any], None]:
    """Return a hook that adds up the mean absolute values of a layer's input, [units], under the layer's name."""

    def listen(module: nn.Module, inputs: Any) -> None:
        x = inputs[0].abs()
        mean = group.of(x, axis._replace(dim=axis.dim % x.ndim)).flatten(1).double().mean(1).cpu()
        found[axis.name] = found.get(axis.name, 0) + mean * len(x)

    return listen


@torch.no_grad()
def block_importance(
    supernet: Supernet, images: Tensor, labels: Tensor | None = None, *, batch: int = 64
) -> dict[str, float]:
    """Return how much worse the largest network is without each of its blocks, by block: `blocks.3`.

    Sorted, the least important block first: so `raynas.space.elastic.elastic_space` takes them.

    Args:
        supernet: a supernet whose blocks run by `kept`, as in every elastic space.
        images: normalised images [n, channels, height, width].
        labels: [n] int64; the importance is then the rise of the mean cross-entropy. Without labels it is the mean
            divergence (KL) of the whole network's predictions from those without the block.
        batch: number of images of a pass.

    Raises:
        UserError: images and labels do not fit.
    """
    largest = supernet.space.largest()
    blocks = running_blocks(largest)
    losses = dict.fromkeys(blocks, 0.0)
    with evaluating(supernet):
        for part, targets in _batches(supernet, images, labels, batch):
            whole = supernet(part, largest).log_softmax(-1)
            for block in blocks:
                kept = {name: value for name, value in largest.items() if not name.startswith(f"{block}.")}
                without = supernet.space.off_grid({**kept, f"{block}.kept": False})
                logits = supernet(part, without).log_softmax(-1)
                if targets is None:
                    rise = F.kl_div(logits, whole, log_target=True, reduction="sum")
                else:
                    rise = F.nll_loss(logits, targets, reduction="sum") - F.nll_loss(whole, targets, reduction="sum")
                losses[block] += float(rise) / len(images)
    return dict(sorted(losses.items(), key=lambda item: item[1]))

"""Units that can change places without changing the largest network: residual channels, heads, hidden channels.

Which entries of which tensors belong to a unit follows from the `select` methods: they are called once with channels
that take note of every axis that they select from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raynas.nets.channels import Channels
from raynas.nets.layers import Bank
from raynas.nets.sharing import Kind
from raynas.space import Arch


class UnitAxis(NamedTuple):
    """A tensor's axis along which units lie.

    Attributes:
        name: the parameter or saved buffer.
        entries: adjacent entries of each unit.
        copies: number of times that all units lie behind one another; each time all have their own entries.
        start: entries in front of the first unit, in each copy.
    """

    name: str
    dim: int
    entries: int = 1
    copies: int = 1
    start: int = 0


@dataclass(frozen=True)
class UnitGroup:
    """Units that can be permuted, if all of their tensors are permuted alike.

    Attributes:
        kind: the dimension that says how many of the units act.
        axes: the axes that hold them; a tensor may have two.
    """

    kind: Kind
    count: int
    axes: tuple[UnitAxis, ...]

    def of(self, tensor: Tensor, axis: UnitAxis) -> Tensor:
        """Return a view of the units in the tensor of an axis: [units, ...]."""
        tensor = tensor.unflatten(axis.dim, (axis.copies, -1))
        tensor = tensor.narrow(axis.dim + 1, axis.start, self.count * axis.entries)
        return tensor.unflatten(axis.dim + 1, (self.count, axis.entries)).movedim(axis.dim + 1, 0)

    @torch.no_grad()
    def reorder(self, tensors: Mapping[str, Tensor], order: Tensor) -> None:
        """Permute the units in place: the unit at place i is then the one that was at `order[i]`.

        Args:
            tensors: tensors by name, all or some of those of the axes.
            order: [units] int64.
        """
        for axis in self.axes:
            if axis.name in tensors:
                units = self.of(tensors[axis.name], axis)
                units.copy_(units[order.to(units.device)])


@dataclass(frozen=True, eq=False)
class NotingChannels(Channels):
    """Channels that note every axis which they are asked to select from, and return the tensor whole."""

    noted: list[tuple[Tensor, int, int, int]] = field(default_factory=list)
    copies: int = 1

    def select(self, tensor: Tensor, dim: int, unit: int = 1) -> Tensor:
        """Note the axis."""
        self.noted.append((tensor, dim, unit, self.copies))
        return tensor

    def tiled(self, copies: int, total: int) -> Channels:
        """Return the channels of several concatenated axes, which note in the same place."""
        return NotingChannels(((0, copies * self.count),), None, self.noted, copies)


def noted_units(
    supernet: nn.Module, archs: Iterable[Arch], tied: Iterable[tuple[UnitAxis, UnitAxis]] = ()
) -> list[UnitGroup]:
    """Return the groups of units of a supernet, as `select` cuts its tensors for some archs.

    Args:
        supernet: the supernet, whose widths are selected by its `pattern`.
        archs: archs that use all modules between them, except those private to a choice.
        tied: pairs of axes with the same units for another reason.
    """
    known: Any = supernet
    notes: list[tuple[Kind, int, NotingChannels]] = []

    def share(count: int, total: int, kind: Kind | None = None) -> Channels:
        channels = NotingChannels(((0, count),))
        if kind is not None:
            notes.append((kind, total, channels))
        return channels

    noting = copy.copy(known)  # the same modules and tensors
    noting.pattern = dict.fromkeys(known.pattern, share)
    for arch in archs:
        noting.select(arch)
    names = {id(tensor): name for name, tensor in (*known.named_parameters(), *known.named_buffers())}
    groups: list[UnitGroup] = []
    for kind, total, channels in notes:
        axes = [UnitAxis(names[id(tensor)], *axis) for tensor, *axis in channels.noted]
        groups = _merged(groups, UnitGroup(kind, total, tuple(_with_private(known, set(names.values()), axes))))
    for pair in tied:
        group = next(each for each in groups if any(axis in each.axes for axis in pair))
        groups = _merged(groups, replace(group, axes=pair))
    return groups


def _merged(groups: list[UnitGroup], group: UnitGroup) -> list[UnitGroup]:
    """Return groups with one more, which is joined with those that it has an axis in common with."""
    same = [each for each in groups if not set(each.axes).isdisjoint(group.axes)]
    if not same:
        return [*groups, group] if group.axes else groups
    axes = tuple(dict.fromkeys(axis for each in (*same, group) for axis in each.axes))
    joined = replace(same[0], axes=axes)
    return [joined if each is same[0] else each for each in groups if each not in same[1:]]


def _with_private(network: nn.Module, names: AbstractSet[str], axes: Iterable[UnitAxis]) -> list[UnitAxis]:
    """Return axes, and those of the same parameters that are private to other choices (see `Bank`)."""
    found = list(axes)
    for path, bank in network.named_modules():
        if isinstance(bank, Bank):
            within = [axis for axis in found if axis.name.startswith(f"{path}.")]
            for axis in within:
                _, _, rest = axis.name.removeprefix(f"{path}.").partition(".")
                others = (f"{path}.{key}.{rest}" for key in bank)
                found += [axis._replace(name=name) for name in others if name in names]
    return list(dict.fromkeys(found))

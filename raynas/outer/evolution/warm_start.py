"""Warm start of a supernet with the weights of another space's supernet."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch

from raynas.errors import ConfigError, UserError
from raynas.nets.sharing import NESTED
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Choice, Space


def check_inheritable(space: Space) -> None:
    """Refuse a space whose sharing of channels depends on the largest width: its weights cannot be inherited."""
    if space.constants.sharing not in NESTED:
        raise ConfigError(
            f"space_evolution.warm_start: with sharing {space.constants.sharing} other choices mean other channels: "
            "only ordinal sharing carries weights over"
        )


@torch.no_grad()
def inherit(new: Supernet, old: Supernet) -> float:
    """Copy weights into a supernet from another one, as far as both hold them; the rest is left unchanged.

    Weights are copied through archs that both supernets hold: the largest one and, for parameters private to a choice
    (such as a patch size or a head count), one for each common choice.

    Args:
        new: supernet of ordinal sharing; changed in place.
        old: supernet of the same family.

    Returns:
        The inherited share of the new supernet's parameters.

    Raises:
        ConfigError: the spaces have different constants.
    """
    if differences := new.space.differences(old.space):
        raise ConfigError(
            f"the weights are of a space with other constants than {new.space.name}: {'; '.join(differences.values())}"
        )
    marks = copy.deepcopy(new)
    for parameter in marks.parameters():
        parameter.zero_()
    for arch in _shared(old.space, new.space):
        given, marked = old.select(arch), marks.select(arch)
        for name, part in new.select(arch).items():
            part.copy_(given[name])
            marked[name].fill_(1)
    total = sum(parameter.numel() for parameter in marks.parameters())
    return sum(float(parameter.sum()) for parameter in marks.parameters()) / total


def _shared(old: Space, new: Space) -> Iterator[Arch]:
    """Yield the largest arch that both spaces' supernets hold, then the largest one with each common choice."""
    largest = {}
    for dimension in new.dimensions:
        if old.has(dimension.name):
            common = [choice for choice in dimension.choices if choice in old[dimension.name].choices]
            # Without a common choice both still hold the smaller value, except in parameters private to a choice.
            largest[dimension.name] = (
                common[-1] if common else min(dimension.choices[-1], old[dimension.name].choices[-1])
            )
    variants = [largest]
    for name in largest:
        variants += [{**largest, name: choice} for choice in new[name].choices if choice in old[name].choices]
    seen = set()
    for values in variants:
        try:
            arch = new.off_grid({name: value for name, value in values.items() if _acts(name, values)})
        except UserError:  # such as heads that do not divide the query width
            continue
        if arch not in seen:
            seen.add(arch)
            yield arch


def _acts(name: str, values: dict[str, Choice]) -> bool:
    """Return True if a dimension acts, given these values: its block is within the depth and not dropped."""
    before, block, after = name.partition("blocks.")
    if not block:
        return True
    index, _, leaf = after.partition(".")
    depth = values.get(f"{before}depth")
    if depth is not None and int(index) >= depth:
        return False
    return leaf == "kept" or bool(values.get(f"{before}blocks.{index}.kept", True))

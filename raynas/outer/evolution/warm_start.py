"""Warm start: what of one supernet's weights the supernet of another space can begin with."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch

from raynas.errors import ConfigError, UserError
from raynas.nets.sharing import NESTED
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Choice, Space


def check_inheritable(space: Space) -> None:
    """Raises: ConfigError: widths share channels in a way that another largest width changes."""
    if space.constants.sharing not in NESTED:
        raise ConfigError(
            f"space_evolution.warm_start: with sharing {space.constants.sharing} other choices mean other channels: "
            "only ordinal sharing carries weights over"
        )


@torch.no_grad()
def inherit(new: Supernet, old: Supernet) -> float:
    """Give a supernet the weights of another one, as far as both hold them; the rest stays as it is.

    What an arch uses in one it uses in the other: weights go over by archs that both can run, the largest such and, for
    parameters that are private to a choice (a patch size, a head count), one for each choice that both have.

    Args:
        new: of ordinal sharing; changed in place.
        old: of the same family.

    Returns:
        The share of the new one's parameters that were inherited.

    Raises:
        ConfigError: the spaces have other constants: the same weights would compute something else.
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
    """The largest arch that both spaces' supernets hold, then for every choice of both the largest one with it."""
    largest = {}
    for dimension in new.dimensions:
        if old.has(dimension.name):
            common = [choice for choice in dimension.choices if choice in old[dimension.name].choices]
            # Not a choice of both, but held by both; of what is private to choices nothing is then held by both.
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
    """Whether a dimension acts beside these values: not in a block beyond the depth, nor in one that is dropped."""
    before, block, after = name.partition("blocks.")
    if not block:
        return True
    index, _, leaf = after.partition(".")
    depth = values.get(f"{before}depth")
    if depth is not None and int(index) >= depth:
        return False
    return leaf == "kept" or bool(values.get(f"{before}blocks.{index}.kept", True))

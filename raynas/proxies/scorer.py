"""Scoring by a training-free proxy, in place of images and trained weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raynas.arguments import checked
from raynas.config import Positive, Seed
from raynas.costs import cost
from raynas.data.images import ImageSet, choose_images, decode
from raynas.data.pixels import Normalisation, normalise
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.progress.reporter import Progress, reporter, silent
from raynas.proxies.az_nas import az_nas, combined
from raynas.proxies.dss import dss
from raynas.proxies.naswot import naswot
from raynas.proxies.network import fresh_network
from raynas.proxies.synflow import synflow
from raynas.space import Arch, Space
from raynas.text import nearest, shown

IMAGES = 64
REFERENCE = 100
"""Number of random archs among which `az_nas` ranks an arch's parts."""

Found = float | dict[str, float]
"""A proxy's value of an arch, or its parts, see `combined`."""

Proxy = Callable[[Supernet, Tensor, torch.Generator], Found]
"""A proxy of a fresh network, images and a generator."""


def _cost(name: str, network: Supernet, images: Tensor, generator: torch.Generator) -> float:
    return float(cost(network.space, [network.space.smallest()])[name][0])


PROXIES: dict[str, Proxy] = {
    "params": partial(_cost, "params"),
    "macs": partial(_cost, "macs"),
    "synflow": synflow,
    "naswot": naswot,
    "dss": dss,
    "az_nas": az_nas,
}
"""Training-free scores by name, each the larger the better. `params` and `macs` are what the others must beat."""

IN_PARTS = frozenset({"az_nas"})
"""Those that find parts."""


def check_proxy(name: str) -> None:
    """Refuse what is not one of `PROXIES`."""
    if name not in PROXIES:
        raise UserError(f"unknown proxy {shown(name)}{nearest(name, list(PROXIES))}")


def find(proxy: str, arch: Arch, images: Tensor, seed: int) -> Found:
    """Compute a proxy of an arch with fresh weights.

    Args:
        images: normalised, [n, channels, height, width] of the arch's space.
        seed: seed of weights and noise.
    """
    return PROXIES[proxy](fresh_network(arch, seed), images, torch.Generator().manual_seed(seed))


def reference_archs(space: Space, seed: int, count: int = REFERENCE) -> list[Arch]:
    """Return random archs of a space, among which the parts of others are ranked."""
    return space.decode(space.sample_codes(np.random.default_rng(seed), count))


def proxy_images(space: Space, images: ImageSet, normalisation: Normalisation) -> Tensor:
    """Return 64 of a set of images, or all if it has fewer, normalised, in the size and channels of a space."""
    chosen = images.take(choose_images(len(images), min(IMAGES, len(images))))
    return normalise(decode(chosen.at(space.input_size, space.channels))[0], normalisation)


class ProxyScorer:
    """A scorer of archs by a training-free proxy, for any search: `run_search(search, ProxyScorer(space, "synflow"))`.

    The search's objective has the proxy's name: `{"synflow": "max"}`. An arch's value depends on the arguments alone,
    not on what else is scored.

    Args:
        space: the space of the archs; of AZ-NAS's reference, too.
        proxy: a name in `PROXIES`.
        images: normalised images [n, channels, height, width] for `naswot` and `az_nas`, 64 to 128 in the papers; None
            for 64 of standard normal noise, as in AZ-NAS's release.
        seed: seed of weights and noise.
        reference: number of random archs among which `az_nas` ranks an arch's parts. (The paper ranks archs among all
            that a search has visited.)

    Raises:
        UserError: there is no such proxy, or the images do not have the space's size.
    """

    @checked()
    def __init__(
        self, space: Space, proxy: str, images: Tensor | None = None, seed: Seed = 0, reference: Positive = REFERENCE
    ):
        check_proxy(proxy)
        size = space.channels, *space.input_size
        if images is None:
            images = torch.randn(IMAGES, *size, generator=torch.Generator().manual_seed(seed))
        if images.ndim != 4 or tuple(images.shape[1:]) != size:
            raise UserError(f"expected images [n, {', '.join(map(str, size))}], found {list(images.shape)}")
        self.space, self.proxy, self.images, self.seed, self.reference = space, proxy, images, seed, reference
        self.objectives = (proxy,)

    def __repr__(self) -> str:
        return f"ProxyScorer({self.space.name}, {self.proxy!r})"

    def score(
        self, archs: Iterable[Arch | Mapping[str, Any]], progress: Progress = silent, what: str = "scoring"
    ) -> list[float]:
        """Return the archs' values, in the given order."""
        asked = [
            arch if isinstance(arch, Arch) and arch.space is self.space else self.space.arch(arch) for arch in archs
        ]
        values: dict[Arch, float] = {}
        with reporter(progress).doing(what, len(set(asked)), "archs scored") as activity:
            for arch in dict.fromkeys(asked):
                found = find(self.proxy, arch, self.images, self.seed)
                values[arch] = combined(found, self._reference) if isinstance(found, dict) else found
                activity.update(len(values))
        return [values[arch] for arch in asked]

    @cached_property
    def _reference(self) -> list[dict[str, float]]:
        archs = reference_archs(self.space, self.seed, self.reference)
        found = [find(self.proxy, arch, self.images, self.seed) for arch in archs]
        return [each for each in found if isinstance(each, dict)]

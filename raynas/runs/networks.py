"""Finished networks: their names and identity, and the fit of archs to a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from raynas.errors import UserError
from raynas.progress.reporter import Progress
from raynas.space import Arch, Space
from raynas.space.space import RESIZED

IMAGES = ("size", "channels", "classes")
"""Names in `Space.differences` that depend on the data; a network trained on its own may differ in all others."""

WAYS = ("resized", "scratch", "finetuned")
"""Kinds of training, in the order of preference for the network that represents an arch at an image size."""

PRETRAINED, TRANSFERRED = "pretrained", "transferred"
"""The model that a run adapts, as it was given, and fine-tuned to the run's data."""


@dataclass(frozen=True)
class Network:
    """One network with weights.

    Attributes:
        arch: architecture, in a space for its images.
        how: `inherited`, `finetuned`, `scratch` or `resized`; of a model that is adapted `pretrained` or `transferred`.
        seed: seed of the training; None if unknown.
        path: folder in the run directory; None for weights that are extracted from the supernet when needed.
    """

    arch: Arch
    how: str
    seed: int | None = None
    path: str | None = None

    @property
    def name(self) -> str:
        """Name in messages and of folders."""
        return f"{self.arch.id}-{self.how}" if self.path is None else self.path.rpartition("/")[2]


def belongs(arch: Arch, space: Space) -> bool:
    """Return True if an arch is a subnet of a space: its values are choices, and its constants are equal."""
    return not space.differences(arch.space) and arch.space.constants == space.constants and arch in space


def fitted(arch: Arch, space: Space, name: str, progress: Progress) -> Arch:
    """Return an arch fitted to the images and classes of a run, and report if it was for others."""
    values = dict(arch)
    if differences := space.differences(arch.space).keys() & IMAGES:
        told = [space.differences(arch.space)[each] for each in IMAGES if each in differences]
        progress(f"note: {name} is an arch for {'; '.join(told)}: it is taken for the images and classes of the run")
    if arch.space.constants == space.constants and values in space:
        return space.arch(values)
    return arch.space.with_input(space.input_size, space.channels, space.classes).arch(values)


def check_images(archs: Sequence[Arch], space: Space) -> None:
    """Refuse archs that are not for the images and classes of a run's space; the message names the difference."""
    for arch in archs:
        differences = space.differences(arch.space)
        if told := [differences[name] for name in IMAGES if name in differences]:
            raise UserError(
                f"arch {arch.id} has other constants than space {space.name}: {'; '.join(told)}: give one for the "
                "images and classes of the run"
            )


def arch_text(arch: Arch, **found: Any) -> str:
    """Return the text of an arch file, with the whole space; `found` has measurements of the arch."""
    content: dict[str, Any] = {"space": arch.space.to_dict(), "arch": arch.to_dict()}
    if found:
        content["found"] = found
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def input_size(arch: Arch) -> dict[str, int]:
    """Return the columns of the image size in tables of finished networks."""
    height, width = arch.space.input_size
    return {"height": height, "width": width}


def of_size(networks: Sequence[Network], arch: Arch, size: tuple[int, int] | None = None) -> list[Network]:
    """Return the networks of an arch at an image size, by default the arch's own."""
    size = size or arch.space.input_size
    return [network for network in of_arch(networks, arch) if network.arch.space.input_size == size]


def of_arch(networks: Sequence[Network], arch: Arch) -> list[Network]:
    """Return the networks of an arch (equal values and constants) at any image size."""
    return [
        network
        for network in networks
        if network.arch == arch and network.arch.space.differences(arch.space).keys() <= set(RESIZED)
    ]

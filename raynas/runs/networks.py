"""Finished networks of a run: where they lie, how they are named, and how they are found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raynas.costs import cost
from raynas.errors import RunDirError, UserError
from raynas.results import RunDir
from raynas.results.networks import network_rows
from raynas.results.run_dir import json_text
from raynas.runs.network_folder import ARCH_FILE
from raynas.space import Arch, Space, load_arch
from raynas.space.load import find_shipped
from raynas.space.space import RESIZED

if TYPE_CHECKING:
    from torch import Tensor

_ID = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Network:
    """One network with weights.

    Attributes:
        arch: its architecture, in a space for its images.
        how: `inherited`, `finetuned`, `scratch` or `resized`.
        seed: of its training; None where that is not known.
        path: its folder in the run directory; None for weights that are cut out of the supernet when needed.
    """

    arch: Arch
    how: str
    seed: int | None = None
    path: str | None = None

    @property
    def name(self) -> str:
        """A word for messages and folders."""
        return f"{self.arch.id}-{self.how}" if self.path is None else self.path.rpartition("/")[2]


def find_arch(run: RunDir, name: str, note: Callable[[str], None] = print) -> Arch:
    """The arch that a user means.

    Args:
        run: the run directory.
        name: `best` (the search's winner), `reference`, a 12-digit id that was scored in this run, an arch file, or a
            shipped arch's name.
        note: called with a line where the file is of an arch for other images or classes than the run's.

    Raises:
        UserError: there is no such arch; the message says what to do.
    """
    if name in ("best", "reference"):
        path = f"{name}/{ARCH_FILE}"
        how = {
            "best": "finish the search first (raynas search)",
            "reference": "only raynas pipeline makes one, of a preset that names it; to train a network of your choice "
            "beside the winner, give its file: raynas retrain --arch FILE",
        }
        run.require(path, how[name])
        return read_arch(run, path)
    if _ID.fullmatch(name) and not Path(name).exists():
        import pyarrow.compute as pc

        found = run.store.read("scores", ["values"], pc.field("arch") == name).to_pylist()
        if not found:
            raise UserError(
                f"arch {name} was not scored in {run.name}: give one of its `scores` table, or an arch file"
            )
        space, values = read_space(run), json.loads(found[0]["values"])
        return space.arch(values) if values in space else space.off_grid(values)
    file = find_shipped(name, "arch", "give best, reference, the id of a scored subnet, or an arch file")
    return _fitted(load_arch(file), read_space(run), name, note)


def find_front(run: RunDir, name: str) -> list[Arch]:
    """The front that a search with several objectives left, in the order of its MACs.

    Args:
        run: the run directory.
        name: `front` for that of the main search, `NAME/front` for that of the search called NAME.

    Raises:
        RunDirError: there is none.
    """
    folder = "best/front" if name == "front" else f"searches/{name}"
    archs = [read_arch(run, f"{folder}/{file}") for file in run.list(folder)]
    if not archs:
        raise RunDirError(f"{run.name} has no {folder}: only a finished search with several objectives leaves a front")
    return sorted(archs, key=lambda arch: int(cost(arch.space, [arch])["macs"][0]))


def belongs(arch: Arch, space: Space) -> bool:
    """Whether an arch is a subnet of a space: its values are choices, and what is fixed is the same."""
    return not space.differences(arch.space) and arch.space.constants == space.constants and arch in space


IMAGES = ("size", "channels", "classes")
"""What of `Space.differences` is the data's; a network that is trained on its own may differ in all else."""


def _fitted(arch: Arch, space: Space, name: str, note: Callable[[str], None]) -> Arch:
    """An arch of a file for the images and classes of a run, with a line where it is for others."""
    values = dict(arch)
    if differences := space.differences(arch.space).keys() & IMAGES:
        told = [space.differences(arch.space)[each] for each in IMAGES if each in differences]
        note(f"note: {name} is an arch for {'; '.join(told)}: it is taken for the images and classes of the run")
    if arch.space.constants == space.constants and values in space:
        return space.arch(values)
    return arch.space.with_input(space.input_size, space.channels, space.classes).arch(values)


def check_images(archs: Sequence[Arch], space: Space) -> None:
    """Refuse archs that are for other images or classes than a run's space.

    Raises:
        UserError: names what differs.
    """
    for arch in archs:
        differences = space.differences(arch.space)
        if told := [differences[name] for name in IMAGES if name in differences]:
            raise UserError(
                f"arch {arch.id} has other constants than space {space.name}: {'; '.join(told)}: give one for the "
                "images and classes of the run"
            )


def read_space(run: RunDir) -> Space:
    """The search space of a run.

    Raises:
        RunDirError: the run has none yet.
    """
    run.require("space.yaml")
    return Space.from_document(run.read_document("space.yaml"), "space")


def read_arch(run: RunDir, path: str) -> Arch:
    """An arch file inside a run directory."""
    document = run.read_document(path, "space", "arch")
    return Space.from_document(document, "space", ("space",)).arch(document.data["arch"])


def arch_text(arch: Arch, **found: Any) -> str:
    """An arch with its whole space, as the text of an arch file; `found` is what was measured of it."""
    content: dict[str, Any] = {"space": arch.space.to_dict(), "arch": arch.to_dict()}
    if found:
        content["found"] = found
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def write_arch(run: RunDir, path: str, arch: Arch, **found: Any) -> None:
    """Write an arch file inside a run directory; `raynas.load_arch` reads it anywhere."""
    run.write_bytes(path, arch_text(arch, **found).encode())


def write_weights(run: RunDir, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a supernet's weights, and then `supernet.json`, whose presence says that they are finished."""
    from safetensors.torch import save

    content = save({name: tensor.contiguous() for name, tensor in weights.items()})
    files = {"supernet.safetensors": content, "supernet.json": json_text(about).encode()}
    run.write_together(files, last="supernet.json")


def input_size(arch: Arch) -> dict[str, int]:
    """The columns of the image size that tables of finished networks have."""
    height, width = arch.space.input_size
    return {"height": height, "width": width}


def trained_networks(run: RunDir) -> list[Network]:
    """The networks that were retrained in a run and are still there."""
    return [
        Network(read_arch(run, f"{row['path']}/{ARCH_FILE}"), row["how"], row["seed"], row["path"])
        for row in network_rows(run)
        if row["path"]
    ]


WAYS = ("resized", "scratch", "finetuned")
"""How networks are trained, the one that stands for an arch at an image size first."""


def find_trained(run: RunDir, arch: Arch, seed: int, train_on: str) -> Network:
    """The network of an arch that was retrained in a run: from scratch, or else fine-tuned from inherited weights.

    Args:
        run: the run directory.
        arch: with the image size of the network.
        seed: of its training.
        train_on: what it was trained on.

    Raises:
        UserError: there is none.
    """
    rows = network_rows(run)
    paths = {row["path"] for row in rows if row["seed"] == seed and row["trained_on"] == train_on}
    found = [network for network in of_size(trained_networks(run), arch) if network.path in paths]
    if not found:
        raise UserError(
            f"{run.name} has no network of arch {arch.id} trained with seed {seed} on {train_on}: "
            "train it first (raynas retrain), with the same --arch, --seeds and --on"
        )
    return min(found, key=lambda network: WAYS.index(network.how))


def of_size(networks: Sequence[Network], arch: Arch, size: tuple[int, int] | None = None) -> list[Network]:
    """Those networks that are of an arch, at an image size; at its own where that is left out."""
    size = size or arch.space.input_size
    return [network for network in of_arch(networks, arch) if network.arch.space.input_size == size]


def of_arch(networks: Sequence[Network], arch: Arch) -> list[Network]:
    """Those networks that are of an arch, at any image size: with its values and its constants."""
    return [
        network
        for network in networks
        if network.arch == arch and network.arch.space.differences(arch.space).keys() <= set(RESIZED)
    ]

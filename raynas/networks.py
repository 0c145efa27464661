"""Finished networks: where they lie, how they are named, and how they are loaded.

A network's folder holds `arch.yaml` (with its whole space) and `model.safetensors`, and needs nothing else of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raynas.data.preprocessing import PREPROCESSING_FILE, Preprocessing, parse_preprocessing
from raynas.errors import RunDirError, UserError
from raynas.results import RunDir
from raynas.results.networks import ABOUT_FILE, network_rows
from raynas.results.run_dir import json_text
from raynas.space import Arch, Space, load_arch
from raynas.space.load import find_shipped
from raynas.space.space import RESIZED
from raynas.timm_models import ARCH_FILE, WEIGHTS_FILE

if TYPE_CHECKING:
    from torch import Tensor

    from raynas.nets.supernet import Supernet
    from raynas.parent import Parent

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
    return sorted(archs, key=lambda arch: describe(arch)["macs"])


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
    return Space.from_dict(run.read_yaml("space.yaml"))


def read_arch(run: RunDir, path: str) -> Arch:
    """An arch file inside a run directory."""
    content = run.read_yaml(path, "space", "arch")
    return Space.from_dict(content["space"]).arch(content["arch"])


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


def describe(arch: Arch) -> dict[str, Any]:
    """The columns of an arch that every table of networks has."""
    from raynas.costs import cost

    costs = cost(arch.space, [arch])
    return {
        "arch": arch.id,
        "network": arch.network_id,
        "values": json.dumps(arch.to_dict()),
        "macs": int(costs["macs"][0]),
        "params": int(costs["params"][0]),
        "space": arch.space.fingerprint,
    }


def input_size(arch: Arch) -> dict[str, int]:
    """The columns of the image size that tables of finished networks have."""
    height, width = arch.space.input_size
    return {"height": height, "width": width}


def load_weights(run: RunDir, network: Network, parent: Parent | None = None) -> Supernet:
    """A network of a run, ready to be called.

    Args:
        parent: what it inherits its weights from where it has no own, if several networks do.

    Raises:
        UserError: its files are missing or do not fit each other, or its weights are not finite.
    """
    from raynas.nets.released import check_finite
    from raynas.parent import Parent

    if network.path is None:
        model = (parent or Parent(run)).subnet(network.arch)
    else:
        model = build(network.arch, run.read_bytes(f"{network.path}/{WEIGHTS_FILE}"), f"{run.name}/{network.path}")
    check_finite(model.state_dict(), f"{run.name}/{network.path or 'supernet.safetensors'}")
    return model


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


def load_network(
    arch: str | Path, weights: bool = True, classes: int | None = None, channels: int | None = None
) -> Supernet:
    """A network from a folder, an arch file or a shipped arch's name.

    How images become its input is its `pretrained_cfg`, which timm's tools read: what lies beside the arch file says
    so. A network of fresh weights that has nothing beside it may be trained on any: it gets its size and ImageNet's
    mean and deviation.

    Args:
        arch: a folder that `raynas export` or `raynas retrain` wrote, an arch file, or a shipped arch's name.
        weights: whether to load the `model.safetensors` beside the arch file; fresh weights otherwise.
        classes: another number of classes than the arch's: the head is then new, with a message.
        channels: another number of channels than the arch's: weights are summed or spread over them, with a message.

    Raises:
        UserError: there is no such arch, it has no weights beside it, or they do not fit.
    """
    path = Path(arch)
    file = path / ARCH_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise UserError(f"{path} has no {ARCH_FILE}: give the folder of raynas export or raynas retrain")
    found = load_arch(file)
    beside = file.parent / WEIGHTS_FILE
    if weights and not beside.is_file():
        raise UserError(f"{file} has no {WEIGHTS_FILE} beside it: load it without weights (pretrained=False)")
    name = str(beside if weights else file)
    model = build(found, beside.read_bytes() if weights else None, name, classes, channels)
    reading = _preprocessing(file.parent, found.space)
    if reading is None:
        if weights:
            print(
                f"{file.parent} does not say how images become the network's input (it has no {PREPROCESSING_FILE}): "
                "its pretrained_cfg has ImageNet's mean and deviation, which may not be those that it was trained with"
            )
        reading = _imagenet(found.space)
    reading = reading.for_network(model.space.channels, model.space.classes)
    model.pretrained_cfg = model.default_cfg = reading.timm_config(model.space.classes)
    return model


def _preprocessing(folder: Path, space: Space) -> Preprocessing | None:
    """How images become the input of the network in a folder, if the folder says so.

    Raises:
        UserError: what it says is damaged, or of other images.
    """
    for name, part in ((PREPROCESSING_FILE, None), (ABOUT_FILE, "preprocessing")):
        file = folder / name
        if not file.is_file():
            continue
        try:
            content = json.loads(file.read_bytes())
        except ValueError as error:
            raise UserError(f"{file} is damaged: it is not JSON: export the network again") from error
        if part is not None:
            content = content.get(part) if isinstance(content, dict) else None
        if content is None:
            continue
        found = parse_preprocessing(content, str(file))
        if (found.channels, found.size) != (space.channels, space.input_size):
            raise UserError(
                f"{file} is of images of {found.size[0]} x {found.size[1]} pixels and {found.channels} channel(s), the "
                f"network of {space.input_size[0]} x {space.input_size[1]} and {space.channels}: export it again"
            )
        return found
    return None


def _imagenet(space: Space) -> Preprocessing:
    """How images of ImageNet become the input of a space's networks."""
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    from raynas.data.config import DataConfig, crop_pct_for

    config = DataConfig(name="imagenet")
    colour = Preprocessing(
        mode="RGB",
        channels=3,
        size=space.input_size,
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        crop_pct=crop_pct_for(config, space.input_size),
        interpolation=config.interpolation,
    )
    return colour.for_network(space.channels, 0)


def build(
    arch: Arch, weights: bytes | None, name: str, classes: int | None = None, channels: int | None = None
) -> Supernet:
    """The network of an arch, with the weights of a safetensors file or fresh ones.

    Args:
        name: of the file, for messages.
        classes: another number of classes than the arch's: the head is then new, with a message.
        channels: another number of channels than the arch's; see `adapt_channels`.

    Raises:
        UserError: the weights do not fit the arch.
    """
    from raynas.nets import build_supernet
    from raynas.nets.weights import adapt_channels, load_supernet, parse_weights

    own = arch.space.fix(arch)
    space = own.with_input(channels=channels, classes=classes)
    if weights is None:
        return build_supernet(space).eval()
    try:
        state = parse_weights(weights, name)
        return load_supernet(space, adapt_channels(state, own, space.channels)).eval()
    except UserError as error:
        raise UserError(f"{name} does not fit arch {arch.id}: {error}") from error

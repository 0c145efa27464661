"""Folders that hold one network: `arch.yaml`, with its whole space, and `model.safetensors`.

`raynas retrain` and `raynas export` write them; they do not depend on other files of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.data.preprocessing import PREPROCESSING_FILE, Preprocessing, parse_preprocessing
from raynas.documents import Document
from raynas.errors import UserError
from raynas.space import Arch, Space, load_arch
from raynas.space.load import read_arch

if TYPE_CHECKING:
    from torch import Tensor

    from raynas.nets.supernet import Supernet

ARCH_FILE = "arch.yaml"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
"""File in an export from which timm builds the network, in Hugging Face's layout; see `hub_config`."""

TORCH_FILE = "pytorch_model.bin"
"""File with the weights in a folder that timm wrote (`timm.models.save_for_hf`) without safetensors."""

ABOUT_FILE = "network.json"
"""File with a retrained network's row and preprocessing."""


def load_network_folder(
    arch: str | Path, weights: bool = True, classes: int | None = None, channels: int | None = None
) -> Supernet:
    """Load a network from a folder, an arch file or a shipped arch's name.

    Its preprocessing is the attribute `pretrained_cfg`, which timm's tools read. It comes from a file beside the arch
    file; without one, a network with random weights gets its image size and ImageNet's mean and deviation.

    Args:
        arch: a folder that `raynas export` or `raynas retrain` wrote, an arch file, or a shipped arch's name.
        weights: True to load the `model.safetensors` beside the arch file; random weights otherwise.
        classes: another number of classes than the arch's; the head is then new, with a message. 0 for no head.
        channels: another number of channels than the arch's; weights are summed or spread over them, with a message.

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
        raise UserError(
            f"{file} has no {WEIGHTS_FILE} beside it: export the network again, or in timm give pretrained=False"
        )
    name = str(beside if weights else file)
    model = build_network(found, beside.read_bytes() if weights else None, name, classes, channels)
    reading = _preprocessing(file.parent, found.space)
    if reading is None:
        if weights:
            print(
                f"{file.parent} does not say how images become the network's input (it has no {PREPROCESSING_FILE}): "
                "its pretrained_cfg has ImageNet's mean and deviation, which may not be those that it was trained with"
            )
        reading = _imagenet(found.space)
    return _described(model, reading)


def load_network_of_config(
    arch: Mapping[str, Any],
    config: Mapping[str, Any],
    weights: bool = True,
    classes: int | None = None,
    channels: int | None = None,
    cache_dir: str | Path | None = None,
) -> Supernet:
    """Load a network from what timm read in a `config.json`, of a folder or a hub; see `hub_config`.

    Args:
        arch: the content of an arch file.
        config: timm's `pretrained_cfg`: preprocessing, and the place of the weights.
        weights, classes, channels: as in `load_network_folder`.

    Raises:
        UserError: the arch or the preprocessing cannot be read, or there are no weights, or they do not fit.
    """
    place = str(config.get("file") or config.get("hf_hub_id") or "config.json")
    found = read_arch(Document(dict(arch), f"{place}: model_args.arch"), "network")
    state: bytes | Mapping[str, Tensor] | None = None
    if weights and config.get("source") == "hf-hub":
        from timm.models import load_state_dict_from_hf

        state = load_state_dict_from_hf(place, weights_only=True, cache_dir=cache_dir)
    elif weights:
        files = [Path(place) / name for name in (WEIGHTS_FILE, TORCH_FILE)]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise UserError(f"{place} has no {WEIGHTS_FILE}: load it without weights (pretrained=False)")
        state = file.read_bytes() if file.name == WEIGHTS_FILE else _read_torch(file)
    model = build_network(found, state, place, classes, channels)
    size = config.get("input_size") or (found.space.channels, *found.space.input_size)
    content = {name: config[name] for name in ("mean", "std", "crop_pct", "interpolation") if name in config}
    content |= {"channels": size[0], "size": size[1:], "class_names": config.get("label_names") or ()}
    reading = parse_preprocessing(content, f"{place}: pretrained_cfg")
    _check_names(reading, found.space, f"{place}: label_names")
    return _described(model, reading)


def _read_torch(file: Path) -> Mapping[str, Tensor]:
    from raynas.nets.released import read_parameters

    return read_parameters(file, (), "a file of weights")


def _check_names(reading: Preprocessing, space: Space, where: str) -> None:
    """Refuse more or fewer class names than the network's classes."""
    if reading.class_names and len(reading.class_names) != space.classes:
        raise UserError(f"{where} names {len(reading.class_names)} classes, the network has {space.classes}")


def hub_config(model: Supernet, arch: Arch, reading: Preprocessing) -> dict[str, Any]:
    """Return the `config.json` of a folder in Hugging Face's layout, from which timm builds the network.

    Args:
        reading: preprocessing of the network's images.
    """
    described = {**model.pretrained_cfg, **reading.timm_config(model.num_classes)}
    names = described.pop("label_names", None)
    return {
        "architecture": described.pop("architecture"),
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": model.global_pool,
        "model_args": {"arch": {"space": arch.space.to_dict(), "arch": arch.to_dict()}},
        **({"label_names": names} if names else {}),
        "pretrained_cfg": described,
    }


def _described(model: Supernet, reading: Preprocessing) -> Supernet:
    """Return a network after adding the preprocessing of its images."""
    reading = reading.for_network(model.space.channels, model.num_classes)
    model.pretrained_cfg = {**model.pretrained_cfg, **reading.timm_config(model.num_classes)}
    return model


def _preprocessing(folder: Path, space: Space) -> Preprocessing | None:
    """Return the preprocessing of the network in a folder, or None if the folder has no description of it."""
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
        _check_names(found, space, str(file))
        return found
    return None


def _imagenet(space: Space) -> Preprocessing:
    """Return the preprocessing of ImageNet's images for a space's networks."""
    from raynas.data.config import DataConfig, crop_pct_for
    from raynas.data.pixels import IMAGENET

    config = DataConfig(name="imagenet")
    colour = Preprocessing(
        mode="RGB",
        channels=3,
        size=space.input_size,
        mean=IMAGENET.mean,
        std=IMAGENET.std,
        crop_pct=crop_pct_for(config, space.input_size),
        interpolation=config.interpolation,
    )
    return colour.for_network(space.channels, 0)


def build_network(
    arch: Arch,
    weights: bytes | Mapping[str, Tensor] | None,
    name: str,
    classes: int | None = None,
    channels: int | None = None,
) -> Supernet:
    """Build the network of an arch, with given weights or random ones.

    Args:
        weights: the content of a safetensors file, or a state dict.
        name: name of the file in messages.
        classes: another number of classes than the arch's; the head is then new, with a message. 0 for no head.
        channels: another number of channels than the arch's; see `adapt_channels`.

    Raises:
        UserError: the weights do not fit the arch.
    """
    from raynas.nets import build_supernet
    from raynas.nets.weights import adapt_channels, load_supernet, new_classifiers, parse_weights

    fixed = arch.space.fix(arch)
    space = fixed.with_input(channels=channels, classes=classes or None)
    if weights is None:
        model = build_supernet(space)
    else:
        state = parse_weights(weights, name) if isinstance(weights, bytes) else dict(weights)
        try:
            if classes is not None and "head.weight" not in state:  # a network that was saved without its classifier
                state |= new_classifiers(space)
            model = load_supernet(space, adapt_channels(state, fixed, space.channels))
        except UserError as error:
            raise UserError(f"{name} does not fit arch {arch.id}: {error}") from error
    if classes == 0:
        model.reset_classifier(0)
    return model.eval()

"""Import of released weights into run directories, to be searched, evaluated or fine-tuned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from raynas.data.config import DataConfig
from raynas.data.load import Data, load_data
from raynas.errors import RunDirError, UserError, reason
from raynas.nets.timm_weights import load_timm
from raynas.nets.weights import load_supernet, weights_fingerprint
from raynas.phases.images import check_images, describe_reading
from raynas.phases.inputs import are_files, named_data, resolve_data
from raynas.phases.pretrained import Pretrained, check_order, check_unfixed, read_pretrained, timm_family
from raynas.phases.where import default_resources
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.results.versions import versions
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun
from raynas.space import Space, load_arch, load_space
from raynas.space.families import family_module
from raynas.space.load import describes_arch

TRANSFER = "transfer"
"""Name of no system: trained networks of any kind, for data of any classes (see `transfer`)."""

SYSTEMS = {
    "autoformer": "autoformer/preset",
    "vit-resnas": "vit_resnas/preset",
    "nasvit": "nasvit/preset_released",
    "s3": "s3/preset",
    "timm": "timm/preset",
}
"""Systems whose checkpoints can be read, with the preset to search and retrain them."""

FAMILY_OF = {"autoformer": "vit", "vit-resnas": "vit_res", "nasvit": "hybrid", "s3": "s3"}
"""Family that reads each system's released checkpoints."""


def import_supernet(
    system: str,
    checkpoint: str | Path,
    run_dir: Run | str | os.PathLike[str],
    preset: Preset,
    space: str | None = None,
    weights_file: str | Path | None = None,
    size: int | None = None,
    progress: Progress = silent,
) -> Run:
    """Read a released checkpoint, or a model of timm, into a new run directory; see `raynas.import_model`."""
    preset_of(system)  # raises if checkpoints of this system cannot be read
    check_unfixed(preset)
    data = named_data(preset)
    if system == "timm":
        if space is not None:
            raise UserError("the space of a timm model follows from the model: leave the space out")
        family = timm_family(str(checkpoint))
        model = load_timm(str(checkpoint), weights_file, instead="--weights FILE")
        found, weights = family.read_timm(model, str(checkpoint))
        if data.crop_pct is None:
            data = data.model_copy(update={"crop_pct": model.pretrained_cfg.get("crop_pct")})
    else:
        if weights_file is not None:
            raise UserError(f"the weights of {system} are the checkpoint itself: leave the weights file out")
        of = None if space is None else _space_of(space)
        found, weights = _read(system, checkpoint, of)
    if size is not None:
        data = data.model_copy(update={"size": (size, size)})
    asked = preset.model_copy(update={"data": data})
    if not has_begun(run_dir, "import"):
        check_images(asked, default_resources(), progress)
    preset = asked.model_copy(update={"data": resolve_data(asked, found)})
    images = load_data(preset.data)  # type: ignore[arg-type]
    new_head = images.classes != found.classes
    if not new_head:
        check_order(images)
    reading = model.pretrained_cfg if system == "timm" else {}
    given = Pretrained(str(checkpoint), load_supernet(found, weights), reading)
    given.check_channels(images)
    if new_head or images.size != found.input_size:
        scaled = preset.retrain.windows == "scaled"
        network = given.fitted(images, new_head, preset.recipe.seed, progress, scaled).network
        found, weights = network.space, network.state_dict()
    for line in describe_reading(_of_model(asked), images):
        progress(line)
    given.compare_reading(images, progress)
    return write_imported(run_dir, system, str(checkpoint), found, weights, preset, images)


def transfer(
    source: str | os.PathLike[str],
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    size: int | None = None,
    weights_file: str | Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Write a run directory with a trained network, fitted to the preset's data; see `raynas.retrain`.

    The network, with a new classifier if the classes are others, is the run's supernet. Images are normalised
    and cropped as the network was trained, unless the preset says otherwise.

    Args:
        source: a run directory, the folder of a network, or the name of a timm model; see `read_pretrained`.
        size: height and width of the images in pixels; None for those of the preset's data, or of the network.
        weights_file: weights of a timm model, instead of those that timm downloads.

    Raises:
        RunDirError: the run directory holds another network.
        UserError: the network cannot be read or cannot take such images, or the images have another number of channels.
    """
    check_unfixed(preset)
    model = read_pretrained(source, weights_file)
    config, space = named_data(preset), model.network.space
    if size is not None:
        config = config.model_copy(update={"size": (size, size)})

    def settled(config: DataConfig, *names: str) -> Preset:
        """Return the preset with settings in which those of these names that are left out are as trained."""
        asked = preset.model_copy(update={"data": model.as_trained(config, *names)})
        return asked.model_copy(update={"data": resolve_data(asked, space)})

    if not has_begun(run_dir, "import"):
        check_images(preset.model_copy(update={"data": config}), default_resources(), progress)
    found = settled(config, *["crop_pct"] * are_files(config))  # other images are not cropped
    model.check_channels(load_data(named_data(found)))
    found = settled(named_data(found), "mean", "std")
    data = load_data(named_data(found))
    new_head = not model.knows(data)
    if not new_head:
        model.accept_classes(data, progress)
    scaled = preset.retrain.windows == "scaled"
    network = model.fitted(data, new_head, preset.recipe.seed, progress, scaled).network
    for line in describe_reading(_of_model(preset), data):
        progress(line)
    model.compare_reading(data, progress)
    return write_imported(run_dir, "raynas", os.fspath(source), network.space, network.state_dict(), found, data)


def write_imported(
    run_dir: Run | str | os.PathLike[str],
    system: str,
    checkpoint: str,
    found: Space,
    weights: Mapping[str, Tensor],
    preset: Preset,
    images: Data,
) -> Run:
    """Write a run directory that begins with given weights of a space; a network alone is its `best`.

    Raises:
        RunDirError: the run directory holds another supernet.
    """
    run = Run(run_dir, create=True)
    fingerprint = weights_fingerprint(weights)
    with run.lock():
        if run.about_supernet.get("fingerprint", fingerprint) != fingerprint:
            raise RunDirError(f"{run.name} holds another supernet: name another run directory")
        source = {"system": system, "checkpoint": checkpoint, "fingerprint": fingerprint}
        begin(run, "import", {**source, "space": found.fingerprint, "data": images.fingerprint})
        run.write_space(found)
        run.write_preset(preset)
        about: dict[str, Any] = {
            "fingerprint": fingerprint,
            "weights": f"imported from {system}",
            "space": found.fingerprint,
        }
        about |= {"data": images.fingerprint, "seed": None, "versions": versions()}
        run.write_supernet(weights, about)
        if found.cardinality() == 1:
            run.write_arch("best", found.smallest())
    return run


def preset_of(system: str) -> str:
    """Return the shipped preset that searches and retrains a system's supernets.

    Raises:
        UserError: checkpoints of this system cannot be read.
    """
    if system == TRANSFER:
        return "transfer/preset"
    if system not in SYSTEMS:
        raise UserError(f"unknown system {system!r}: raynas imports {', '.join(SYSTEMS)}, {TRANSFER}")
    return SYSTEMS[system]


def _read(system: str, checkpoint: str | Path, space: Space | None) -> tuple[Space, dict[str, Tensor]]:
    """Read a released checkpoint."""
    try:
        return family_module(FAMILY_OF[system], "checkpoint").read_released(checkpoint, space)
    except UserError as error:
        named = str(checkpoint) in str(error)
        raise UserError(str(error) if named else f"{checkpoint}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The names of a release with tensors of unknown shapes: readers go by shapes.
        raise UserError(
            f"{checkpoint} is not of a network of {system}: its tensors have other shapes ({reason(error)})"
        ) from error


def _of_model(preset: Preset) -> Preset:
    """Return a preset whose space follows from a model, not from its file."""
    return preset.model_copy(update={"space": None})


def _space_of(name: str) -> Space:
    """Return a space by name or path, or the one-point space of an arch."""
    if not describes_arch(name):
        return load_space(name)
    arch = load_arch(name)
    return arch.space.fix(arch)

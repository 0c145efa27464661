"""Trained models that are adapted: of timm, of a run directory, or of a folder that `raynas export` wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raynas.data.class_order import in_order, order_of
from raynas.data.config import DataConfig
from raynas.data.load import Data
from raynas.data.preprocessing import preprocessing_of
from raynas.errors import UserError
from raynas.locations import hide_secrets, is_uri
from raynas.nets.released import check_finite
from raynas.nets.supernet import Supernet
from raynas.nets.timm_weights import load_timm
from raynas.nets.weights import load_supernet
from raynas.phases.export import choose_network, load_network
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.results.run_dir import MARKER
from raynas.runs.network_folder import ARCH_FILE, load_network_folder
from raynas.runs.run import Run, open_run
from raynas.space.families import family_module

TIMM = {"twins_": "twins", "swin_": "s3", "deit": "vit", "vit_": "vit"}
"""Family that reads each of timm's models, by the start of the model's name."""


@dataclass(frozen=True)
class Pretrained:
    """A trained model as a network of a one-point space.

    Attributes:
        network: the network, in eval mode on the CPU.
        reading: preprocessing of its images in timm's format (a `pretrained_cfg`).
    """

    name: str
    network: Supernet
    reading: Mapping[str, Any]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Class names in the order of the logits; None if they are not known."""
        return tuple(self.reading["label_names"]) if self.reading.get("label_names") else None

    def knows(self, data: Data) -> bool:
        """Return True if its logits are for the classes of a dataset, as far as that is known."""
        if self.class_names is not None:
            return self.class_names == data.class_names
        return self.network.space.classes == data.classes

    def accept_classes(self, data: Data, progress: Progress, advice: str = "") -> None:
        """Take the model's classes for those of a dataset, and say so if nothing but their number is known.

        Raises:
            UserError: the dataset's classes have two orders, and its settings do not say which.
        """
        if self.class_names is None:
            check_order(data)
            first = ", ".join(data.class_names[:4]) + (", ..." if data.classes > 4 else "")
            told = (
                f"the {data.classes} classes of {self.name} are taken for those of the data, in their order ({first})"
            )
            progress(told + advice)

    def as_trained(self, config: DataConfig, *names: str) -> DataConfig:
        """Return settings in which those of these names that are left out are as the model was trained."""
        unset = {name: self.reading.get(name) for name in names if getattr(config, name) is None}
        return config.model_copy(update=unset)

    def check_channels(self, data: Data) -> None:
        """Refuse a dataset whose images have another number of channels than the model's."""
        ours = self.network.space.channels
        if data.channels != ours:
            raise UserError(
                f"{self.name} takes images of {ours} channel(s), {hide_secrets(data.name)} is read with "
                f"{data.channels}: give --set data.channels={ours}, or another model"
            )

    def compare_reading(self, data: Data, progress: Progress = silent) -> None:
        """Say in a line each how a dataset's images are read otherwise than the model's were, if that is known."""
        name, theirs = hide_secrets(data.name), self.reading
        if theirs.get("mean") and not np.allclose([theirs["mean"], theirs["std"]], [data.mean, data.std], atol=1e-3):
            pairs = (theirs["mean"], theirs["std"]), (data.mean, data.std)
            shown = [" and ".join(str(np.round(each, 3).tolist()) for each in pair) for pair in pairs]
            progress(f"note: trained on pixels of mean and deviation {shown[0]}; {name} is read by {shown[1]}")
        if data.train.is_decoded:  # so that nothing is resized
            return
        ours = data.config.interpolation
        if (trained := theirs.get("interpolation", ours)) != ours:
            progress(
                f"note: trained on images resized by {trained} interpolation; {name} is by {ours}: "
                f"for the same give --set data.interpolation={trained}"
            )
        if (mode := theirs.get("crop_mode", "center")) != "center":
            progress(f"note: trained on images cropped by timm's crop_mode {mode}; {name} is cropped at the centre")

    def fitted(
        self, data: Data, new_head: bool, seed: int, progress: Progress = silent, scaled: bool = False
    ) -> Pretrained:
        """Return the model for the images and classes of a dataset, and say in a line what changes.

        Args:
            seed: seed of the new classifier's weights.
            scaled: windows scale with the images if these are of another size; see `Supernet.resized`.

        Raises:
            UserError: the model cannot take images of this size.
        """
        network, space = self.network, self.network.space
        if data.size != space.input_size:
            before, after = (f"{height} x {width}" for height, width in (space.input_size, data.size))
            progress(f"{self.name} is for images of {before} pixels: it is resized to {after}")
            network = network.resized(data.size, scaled)
        if new_head:
            what = f"the {data.classes} classes of {hide_secrets(data.name)}"
            progress(f"{self.name} gets a new classifier for {what}; all other weights are kept")
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(seed)
                network.reset_classifier(data.classes)
        return replace(self, network=network.eval())


def read_pretrained(source: str | os.PathLike[str], weights_file: str | Path | None = None) -> Pretrained:
    """Read a trained model.

    Args:
        source: the name of a timm model; a run directory, whose winner is read, retrained if it was, on the training
            images alone if it was on these, too; or the folder of a network, which `raynas export` or `raynas retrain`
            wrote.
        weights_file: weights of a timm model, instead of those that timm downloads.

    Raises:
        UserError: there is no such model, no family can express it, or its weights are missing or not finite.
    """
    name = os.fspath(source)
    here = is_uri(name) or os.path.exists(name)
    if not here and (os.sep in name or name.startswith(".")):
        raise UserError(f"{name}: there is no such folder: give a run directory, an exported folder, or a timm model")
    if not here:
        return _of_timm(name, weights_file)
    if weights_file is not None:
        raise UserError(f"{hide_secrets(name)} has its own weights: leave the weights file out")
    if is_uri(name) or Path(name, MARKER).is_file():
        return _of_run(open_run(name))
    model = load_network_folder(name)
    check_finite(model.state_dict(), name)
    return Pretrained(name, model, model.pretrained_cfg)


def _of_timm(name: str, weights_file: str | Path | None) -> Pretrained:
    family = timm_family(name)
    model = load_timm(name, weights_file, instead="--weights FILE")
    space, weights = family.read_timm(model, name)
    return Pretrained(name, load_supernet(space, weights).eval(), model.pretrained_cfg)


def _of_run(run: Run) -> Pretrained:
    space = run.space
    if not run.has_arch("best") and space.cardinality() > 1:
        raise UserError(
            f"{run.name} has no winner: search it first (raynas search), or give the folder of one of its networks "
            f"({run.name}/networks/..., with its {ARCH_FILE})"
        )
    held_out = {row["path"] for row in run.network_rows() if row["trained_on"] == "train"}
    networks = sorted(run.networks(), key=lambda network: network.path not in held_out)  # of equal ones the first
    network = choose_network(networks, run.arch("best") if run.has_arch("best") else space.largest())
    model = load_network(run, network)
    reading = preprocessing_of(run.data().resized(model.space.input_size))
    return Pretrained(f"{run.name} ({network.name})", model.eval(), reading.timm_config(model.space.classes))


def check_order(images: Data) -> None:
    """Refuse class names that have two orders, if no setting says which: a checkpoint numbers its classes."""
    plain, natural = (in_order(images.class_names, order)[:4] for order in ("plain", "natural"))
    if images.config.class_order is None and order_of(images.class_names) == "plain":
        raise UserError(
            f"the classes of {hide_secrets(images.name)} have a plain order ({', '.join(plain)}, ..., as torchvision "
            f"numbers them) and a natural one ({', '.join(natural)}, ..., as timm does): say which the checkpoint was "
            "trained with: --set data.class_order=natural (or plain)"
        )


def check_unfixed(preset: Preset) -> None:
    """Refuse a preset that fixes dimensions of its space, since the space follows from a model."""
    if preset.fix:
        raise UserError(
            f"fix holds {', '.join(preset.fix)} of the preset's space, and the space follows from the model here: "
            "leave fix out"
        )


def timm_family(name: str) -> Any:
    """Return the checkpoint module of the family that reads a timm model."""
    for start, family in TIMM.items():
        if name.startswith(start):
            return family_module(family, "checkpoint")
    raise UserError(f"raynas imports from timm the models whose names start with {', '.join(TIMM)}, not {name}")

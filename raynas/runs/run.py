"""A run directory as typed values: the names of its files and folders stand here and nowhere else."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pydantic
from pyarrow import fs

from raynas.config import validate
from raynas.data.config import DataConfig, stored_config
from raynas.errors import RunDirError, UserError
from raynas.filesystem import FAILURES, open_filesystem
from raynas.locations import hide_secrets
from raynas.progress.reporter import Progress, silent
from raynas.results.run_dir import MARKER, RunDir, first_difference, json_text, plain
from raynas.results.schemas import Row
from raynas.results.scores import comparable_scores
from raynas.results.versions import versions
from raynas.runs.network_folder import ABOUT_FILE, ARCH_FILE, WEIGHTS_FILE, build_network
from raynas.runs.networks import WAYS, Network, arch_text, fitted, of_size
from raynas.runs.searches import StoredSearch
from raynas.space import Arch, Space, load_arch
from raynas.space.load import find_shipped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raynas.data.calibration import Calibration
    from raynas.data.load import Data
    from raynas.nets.supernet import Supernet
    from raynas.presets.preset import Preset
    from raynas.runs.trained_supernet import TrainedSupernet

SPACE, PRESET = "space.yaml", "preset.yaml"
SUPERNET, SUPERNET_WEIGHTS = "supernet.json", "supernet.safetensors"
BEST, REFERENCE, SEARCHES, NETWORKS = "best", "reference", "searches", "networks"
CHECKPOINTS = "checkpoints"
RAY_CHECKPOINTS, LOCAL_CHECKPOINTS = f"{CHECKPOINTS}/supernet", f"{CHECKPOINTS}/local"

MAIN = "search"
"""The search whose winner is the run's `best`."""

EVOLUTION = ("space_evolution", "trials")
KINDS = (("train",), ("import",), EVOLUTION)
"""Pieces of work of which a run directory holds one: what comes after them goes by what they left."""

_ID = re.compile(r"[0-9a-f]{12}")
_MISSING = {
    BEST: "finish the search first (raynas search)",
    REFERENCE: "only raynas pipeline makes one, of a preset that names it; to train a network of your choice "
    "beside the winner, give its file: raynas retrain --arch FILE",
}


class Run(RunDir):
    """Everything that one run holds, read when it is asked for; cheap to make, picklable.

    Args, attributes and errors are those of `RunDir`. Values that are not there yet raise `RunDirError` with a line
    that says which command makes them.
    """

    # -- what is trained -------------------------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """The search space."""
        self.require(SPACE)
        return Space.from_document(self.read_document(SPACE), "space")

    @property
    def has_space(self) -> bool:
        """Whether the run has a space: from the start of its training on."""
        return self.exists(SPACE)

    @property
    def has_preset(self) -> bool:
        """Whether the run has a preset: from the start of its training on."""
        return self.exists(PRESET)

    @property
    def preset(self) -> Preset:
        """The preset as the run resolved it.

        Raises:
            ConfigError: it does not validate, such as one that names parts of the user's own that are not here.
        """
        from raynas.presets.preset import Preset

        self.require(PRESET)
        return validate(Preset, self.read_document(PRESET))

    @property
    def data_config(self) -> DataConfig:
        """The settings of the data, which can be read where the rest of the preset cannot."""
        self.require(PRESET)
        return stored_config(self.read_yaml(PRESET, "data"))

    def data(self) -> Data:
        """Load the data.

        Raises:
            UserError: they are missing or cannot be read.
        """
        from raynas.data.load import load_data

        return load_data(self.data_config)

    def calibration(self, data: Data) -> Calibration:
        """Draw the images that the preset calibrates batch norms on.

        Raises:
            UserError: an image cannot be read, or there are too few.
        """
        from raynas.data.augment import AugmentConfig
        from raynas.data.calibration import Calibration, calibration_batches
        from raynas.data.config import CalibrationConfig

        preset = self.read_yaml(PRESET)
        config = CalibrationConfig.model_validate(preset.get("calibration", {}))
        augment = AugmentConfig.model_validate(preset.get("recipe", {}).get("augment", {}))
        return Calibration(config, calibration_batches(data, augment, config))

    def write_space(self, space: Space) -> None:
        """Write the search space."""
        self.write_yaml(SPACE, space.to_dict())

    def write_preset(self, preset: Preset) -> None:
        """Write the resolved preset."""
        self.write_yaml(PRESET, preset)

    # -- the supernet ----------------------------------------------------------------------------------------------

    @property
    def is_trained(self) -> bool:
        """Whether the supernet's training, or its import, is finished."""
        return self.exists(SUPERNET) and self.exists(SUPERNET_WEIGHTS)

    @property
    def about_supernet(self) -> Row:
        """The record of the supernet: `fingerprint`, `seed` and so on; empty where it is not trained."""
        return dict(self.read_json(SUPERNET)) if self.exists(SUPERNET) else {}

    def weights(self) -> dict[str, Tensor]:
        """The supernet's weights by name."""
        from raynas.nets.weights import parse_weights

        self.require(SUPERNET_WEIGHTS)
        return parse_weights(self.read_bytes(SUPERNET_WEIGHTS), f"{self.name}/{SUPERNET_WEIGHTS}")

    def supernet(self, device: torch.device | str = "cpu") -> TrainedSupernet:
        """The trained supernet, which its subnets inherit from; its weights are read when they are needed.

        Args:
            device: where the supernet is, and its subnets.
        """
        from raynas.runs.trained_supernet import TrainedSupernet

        return TrainedSupernet(self, device)

    def write_supernet(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a supernet's weights, and then its record, whose presence says that they are finished."""
        from safetensors.torch import save

        content = save({name: tensor.contiguous() for name, tensor in weights.items()})
        self.write_together({SUPERNET_WEIGHTS: content, SUPERNET: json_text(about).encode()}, last=SUPERNET)

    # -- searches --------------------------------------------------------------------------------------------------

    def search(self, name: str = MAIN) -> StoredSearch:
        """A search of the run: its settings, what it chose, and the way there.

        Args:
            name: of the search; that of the one called `search` chooses the run's `best`.
        """
        work = f"{SEARCHES}/{name}"
        return StoredSearch(self, name, work, BEST if name == MAIN else work)

    def searches(self) -> list[str]:
        """Names of the run's searches, the main one first."""
        names = [name.removesuffix(".yaml") for name in self.list(SEARCHES) if name.endswith(".yaml")]
        return sorted(names, key=lambda name: (name != MAIN, name))

    # -- archs -----------------------------------------------------------------------------------------------------

    def has_arch(self, name: Literal["best", "reference"]) -> bool:
        """Whether there is a winner, or a reference."""
        return self.exists(f"{name}/{ARCH_FILE}")

    def arch(self, name: str = BEST, progress: Progress = silent) -> Arch:
        """The arch that a user means.

        Args:
            name: `best` (the search's winner), `reference`, a 12-digit id that was scored in this run, an arch file,
                or a shipped arch's name.
            progress: called with a line where the file is of an arch for other images or classes than the run's.

        Raises:
            UserError: there is no such arch; the message says what to do.
        """
        if name in _MISSING:
            self.require(f"{name}/{ARCH_FILE}", _MISSING[name])
            return self.read_arch(f"{name}/{ARCH_FILE}")
        if _ID.fullmatch(name) and not Path(name).exists():
            found = self.table("scores", ["values"], pc.field("arch") == name).to_pylist()
            if not found:
                raise UserError(
                    f"arch {name} was not scored in {self.name}: give one of its `scores` table, or an arch file"
                )
            space, values = self.space, json.loads(found[0]["values"])
            return space.arch(values) if values in space else space.off_grid(values)
        file = find_shipped(name, "arch", "give best, reference, the id of a scored subnet, or an arch file")
        return fitted(load_arch(file), self.space, name, progress)

    def read_arch(self, path: str) -> Arch:
        """An arch file of the run, which holds its whole space."""
        document = self.read_document(path, "space", "arch")
        return Space.from_document(document, "space", ("space",)).arch(document.data["arch"])

    def write_arch(self, name: Literal["best", "reference"], arch: Arch) -> None:
        """Write an arch file; `raynas.load_arch` reads it anywhere."""
        with self.folder(name, last=ARCH_FILE) as folder:
            (folder / ARCH_FILE).write_text(arch_text(arch))

    # -- finished networks -----------------------------------------------------------------------------------------

    def network_rows(self) -> list[Row]:
        """The rows of table `networks`, without those of networks that were deleted, and perhaps trained again."""
        newest = {row["path"] or row["weights"]: row for row in self.table("networks").to_pylist()}
        return [row for row in newest.values() if not row["path"] or self._holds_network(row)]

    def _holds_network(self, row: Row) -> bool:
        """Return True if a row's folder holds its network, and not one that was trained after it and has no row yet."""
        if not self.exists(f"{row['path']}/{ARCH_FILE}"):
            return False
        about = f"{row['path']}/{ABOUT_FILE}"
        return not self.exists(about) or self.read_json(about)["weights"] == row["weights"]

    def networks(self) -> list[Network]:
        """The networks that were retrained in the run and are still there."""
        return [
            Network(self.read_arch(f"{row['path']}/{ARCH_FILE}"), row["how"], row["seed"], row["path"])
            for row in self.network_rows()
            if row["path"]
        ]

    def network(self, name: str) -> Network:
        """A network by its folder, `networks/...`, or by an arch (see `arch`) with inherited weights.

        Raises:
            UserError: there is none.
        """
        if name.startswith(f"{NETWORKS}/"):
            return Network(self.read_arch(f"{name}/{ARCH_FILE}"), "inherited", path=name)
        return Network(self.arch(name), "inherited")

    def trained_network(self, arch: Arch, seed: int, train_on: str) -> Network:
        """The network of an arch that was retrained: from scratch, or else fine-tuned from inherited weights.

        Args:
            arch: with the image size of the network.
            seed: of its training.
            train_on: what it was trained on.

        Raises:
            UserError: there is none.
        """
        rows = self.network_rows()
        paths = {row["path"] for row in rows if row["seed"] == seed and row["trained_on"] == train_on}
        found = [network for network in of_size(self.networks(), arch) if network.path in paths]
        if not found:
            raise UserError(
                f"{self.name} has no network of arch {arch.id} trained with seed {seed} on {train_on}: "
                "train it first (raynas retrain), with the same --arch, --seeds and --on"
            )
        return min(found, key=lambda network: WAYS.index(network.how))

    def model(self, network: Network, supernet: TrainedSupernet | None = None) -> Supernet:
        """A network of the run, ready to be called.

        Args:
            network: with weights of its own, or inherited ones.
            supernet: what it inherits from, where several networks do.

        Raises:
            UserError: its files are missing or do not fit each other, or its weights are not finite.
        """
        from raynas.nets.released import check_finite

        if network.path is None:
            model, source = (supernet or self.supernet()).subnet(network.arch), f"{self.name}/{SUPERNET_WEIGHTS}"
        else:
            source = f"{self.name}/{network.path}"
            model = build_network(network.arch, self.read_bytes(f"{network.path}/{WEIGHTS_FILE}"), source)
        check_finite(model.state_dict(), source)
        return model

    def write_network(self, network: Network, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write the folder of a retrained network; what else is in it stays.

        Args:
            network: with its path.
            weights: by name.
            about: its row of table `networks`, and how images become its input.
        """
        from safetensors.torch import save

        with self.folder(str(network.path), last=ARCH_FILE, keep=lambda name: True) as folder:
            (folder / ARCH_FILE).write_text(arch_text(network.arch))
            (folder / WEIGHTS_FILE).write_bytes(save({k: v.contiguous() for k, v in weights.items()}))
            (folder / ABOUT_FILE).write_text(json_text(about))

    def network_arch(self, network: Network) -> Arch | None:
        """The arch of the network that lies in a network's folder; None where none does."""
        file = f"{network.path}/{ARCH_FILE}"
        return self.read_arch(file) if self.exists(file) else None

    def has_network(self, network: Network) -> bool:
        """Return True if a network is trained: its files are there, and its row."""
        path = network.path
        return any(row["path"] == path for row in self.network_rows()) and self.exists(f"{path}/{WEIGHTS_FILE}")

    def checkpoints_of(self, network: Network) -> str | None:
        """The local folder of a network's checkpoints; None on an object store."""
        return None if self.path is None else str(self.path / CHECKPOINTS / network.name)

    # -- tables ----------------------------------------------------------------------------------------------------

    def table(self, name: str, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """A table of the run, such as `scores`, `training` or `evaluations`; empty where nothing is written yet.

        Raises:
            UserError: there is no such table.
        """
        return self.store.read(name, columns, filter)

    def scores(self, images: int | None = None, precision: str | None = None) -> pa.Table:
        """The newest score of each arch, all of the run's present supernet and measured alike.

        Args:
            images: on so many images of the search split; None for the most that any was measured on.
            precision: in this precision; None for that of the newest row.

        Returns:
            Rows of table `scores`; `.to_pandas()` and `.to_pylist()` turn them into others' values.
        """
        return comparable_scores(self.store, self.about_supernet.get("fingerprint"), images, precision)

    # -- pieces of work, and what binds their settings -------------------------------------------------------------

    def require(self, name: str, otherwise: str = "train a supernet first (raynas train, or raynas import)") -> None:
        """Refuse a run that does not have a file.

        Args:
            name: of the file.
            otherwise: what is to be done then.

        Raises:
            RunDirError: it does not; of an evolution of spaces, the message says where its runs are.
        """
        if self.exists(name):
            return
        if any(self.exists(f"{work}.yaml") for work in EVOLUTION):
            trials = self.list("trials")
            inside = self.local_or_uri(f"trials/{trials[0]}/iterations/0" if trials else "iterations/0")
            raise RunDirError(
                f"{self.name} is an evolution of spaces, each of which has a run directory of its own, such as "
                f"{hide_secrets(inside)}: give one of them"
            )
        if name in (PRESET, SPACE) and self.exists(SUPERNET_WEIGHTS):
            otherwise = "it was lost, since a supernet is there: restore it, or use another run directory"
        raise RunDirError(f"{self.name} has no {name}: {otherwise}")

    def begin(
        self,
        what: str,
        settings: Mapping[str, Any] | pydantic.BaseModel,
        otherwise: str = "give the same, or another run directory",
    ) -> bool:
        """Record the resolved settings of a piece of work in `<what>.yaml`, or check them where it began before.

        Software versions, host and time are added to the file's list of starts each time. Settings bind once something
        depends on them, such as the first checkpoint: until then, others take their place.

        Args:
            what: the work: `train`, `search`, ...; a slash makes folders.
            settings: everything that its result depends on, as plain values or a pydantic model.
            otherwise: what is to be done where it began with others.

        Returns:
            Whether it began before, with equal settings: then what it has done is to be resumed.

        Raises:
            RunDirError: it began with other settings (the message names the first that differs), or the directory is
                of another kind of work.
        """
        begun = self.check_settings(what, settings, otherwise)
        start = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "machine": platform.machine(),
            **versions(),
        }
        for work in _others(what):  # nothing has come of them, and their presets are not this work's
            if self.exists(f"{work}.yaml"):
                for file in (f"{work}.yaml", PRESET, SPACE):
                    self.delete(file)
        name = f"{what}.yaml"
        starts = self.read_yaml(name, "starts")["starts"] if begun else []
        self.write_yaml(name, {"settings": plain(settings), "starts": [*starts, start]})
        return begun

    def check_settings(
        self,
        what: str,
        settings: Mapping[str, Any] | pydantic.BaseModel,
        otherwise: str = "give the same, or another run directory",
    ) -> bool:
        """Return True if a piece of work began before with equal settings; nothing is written. See `begin`.

        Raises:
            RunDirError: as `begin`.
        """
        if found := [work for work in _others(what) if self.is_bound(work)]:
            raise RunDirError(f"{self.name} holds other work (its {found[0]}.yaml): give another run directory")
        name = f"{what}.yaml"
        if not self.exists(name):
            return False
        before = self.read_yaml(name, "settings", "starts")
        difference = first_difference(before["settings"], plain(settings))
        if difference is not None and self.is_bound(what):
            raise RunDirError(f"{self.name}: {what} began with other settings: {difference}; {otherwise}")
        return difference is None

    def is_bound(self, what: str) -> bool:
        """Return True if a piece of work has begun and left something that depends on its settings."""
        if not self.exists(f"{what}.yaml"):
            return False
        left = _left_by(what)
        if what == "trials":
            left = [
                f"{folder}{name}"
                for folder in ("", *(f"trials/{each}/" for each in self.list("trials")))
                for name in left
            ]
        return not left or any(self.holds(name) for name in left)


def open_run(run: str | os.PathLike[str] | RunDir) -> Run:
    """Open a run directory, to read what is in it.

    Args:
        run: a local path or any pyarrow filesystem URI; a `Run` is given back as it is.

    Raises:
        RunDirError: it does not exist, is not a run directory, or cannot be reached.
    """
    return run if isinstance(run, Run) else Run(run)


def has_begun(uri: str | os.PathLike[str] | RunDir, what: str) -> bool:
    """Return True if something depends on a piece of work in a run directory, which need not exist."""
    given = uri.uri if isinstance(uri, RunDir) else os.fspath(uri)
    filesystem, root = open_filesystem(given)
    try:
        there = filesystem.get_file_info(f"{root}/{MARKER}").type == fs.FileType.File
    except FAILURES as error:
        raise RunDirError(f"{hide_secrets(given)}: cannot be reached: {error}") from error
    return there and Run(given).is_bound(what)


def _others(what: str) -> list[str]:
    """The pieces of work that a run directory cannot hold beside one."""
    if not any(what in kind for kind in KINDS):
        return []
    return [work for kind in KINDS if what not in kind for work in kind]


def _left_by(what: str) -> list[str]:
    """Files and folders that bind the settings of a piece of work; none: the settings bind from its start."""
    if what.startswith(f"{NETWORKS}/"):
        path = what.rpartition("/")[0]
        name = path.removeprefix(f"{NETWORKS}/")
        return [f"{path}/{WEIGHTS_FILE}", f"{CHECKPOINTS}/{name}/{CHECKPOINTS}"]
    trained = [SUPERNET, SUPERNET_WEIGHTS, "tables/training", RAY_CHECKPOINTS, LOCAL_CHECKPOINTS]
    evolved = ["tables/space_scores", *(f"iterations/0/{name}" for name in trained)]
    return {
        "train": trained,
        "import": [SUPERNET],
        "training": [CHECKPOINTS],
        "space_evolution": evolved,
        "trials": evolved,
    }.get(what, [])

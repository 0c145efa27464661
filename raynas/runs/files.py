"""The files of a run directory as typed values; the only module with their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raynas.config import validate
from raynas.data.config import DataConfig, stored_config
from raynas.errors import RunDirError
from raynas.locations import hide_secrets
from raynas.results.run_dir import RunDir, json_text
from raynas.results.schemas import Row
from raynas.runs.network_folder import ARCH_FILE
from raynas.runs.networks import arch_text
from raynas.space import Arch, Space

if TYPE_CHECKING:
    from torch import Tensor

    from raynas.data.calibration import Calibration
    from raynas.data.load import Data
    from raynas.presets.preset import Preset

SPACE, PRESET = "space.yaml", "preset.yaml"
SUPERNET, SUPERNET_WEIGHTS = "supernet.json", "supernet.safetensors"
START, START_WEIGHTS = "start.json", "start.safetensors"
BEST, REFERENCE, NETWORKS = "best", "reference", "networks"
SEARCH_FOLDER = "searches"
CHECKPOINTS = "checkpoints"
TUNING = "tune"
RAY_CHECKPOINTS, LOCAL_CHECKPOINTS = f"{CHECKPOINTS}/supernet", f"{CHECKPOINTS}/local"
_CALIBRATION = ("calibration_images", "calibration_batch_size", "calibration_seed")

EVOLUTION = ("space_evolution", "trials")
"""Work on space evolutions, whose run directories hold others."""


def ray_checkpoints(training: str) -> str:
    """Return the folder of a training's checkpoints by Ray Train."""
    return f"{CHECKPOINTS}/{training}"


def local_checkpoints(training: str) -> str:
    """Return the folder of a training's checkpoints by a process without Ray."""
    ray = ray_checkpoints(training)
    return LOCAL_CHECKPOINTS if ray == RAY_CHECKPOINTS else f"{ray}/local"


class RunFiles(RunDir):
    """The content of a run directory, file by file; `Run` adds supernets, searches and networks made of it.

    Args, attributes and errors are those of `RunDir`.
    """

    def require(self, name: str, otherwise: str = "train a supernet first (raynas train, or raynas import)") -> None:
        """Raise unless the run has a file.

        Args:
            otherwise: advice for the message.

        Raises:
            RunDirError: the file is missing; for a space evolution the message names its runs.
        """
        if self.exists(name):
            return
        for work, words in {"ablation": "an ablation", TUNING: "a tuning"}.items():
            if self.exists(f"{work}.yaml"):
                inside = self.local_or_uri("/".join(["trials", *self.list("trials")[:1]]))
                raise RunDirError(
                    f"{self.name} is {words}, each of whose trials has a run directory of its own, such as "
                    f"{hide_secrets(inside)}: give one of them"
                )
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

    @property
    def tuned(self) -> dict[str, str] | None:
        """The objectives of a tuning, `max` or `min` by name; None if the run is none."""
        name = f"{TUNING}.yaml"
        if not self.exists(name):
            return None
        return dict(self.read_yaml(name, "settings.tune.objectives")["settings"]["tune"]["objectives"])

    # -- space and data --------------------------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """The search space."""
        self.require(SPACE)
        return Space.from_document(self.read_document(SPACE), "space")

    @property
    def has_space(self) -> bool:
        """True if the run has a space, which is written when its training starts."""
        return self.exists(SPACE)

    @property
    def has_preset(self) -> bool:
        """True if the run has a preset, which is written when its training starts."""
        return self.exists(PRESET)

    @property
    def preset(self) -> Preset:
        """The preset as the run resolved it.

        Raises:
            ConfigError: it does not validate, for example if it names a user's own part that cannot be imported.
        """
        from raynas.presets.preset import Preset

        self.require(PRESET)
        return validate(Preset, self.read_document(PRESET))

    @property
    def data_config(self) -> DataConfig:
        """The settings of the data, which can be read even if the rest of the preset cannot."""
        self.require(PRESET)
        document = self.read_document(PRESET, "data")
        validate(DataConfig, document, ("data",))
        return stored_config(document.data)

    def data(self) -> Data:
        """Load the data.

        Raises:
            UserError: the data are missing or cannot be read.
        """
        from raynas.data.load import load_data

        return load_data(self.data_config)

    def calibration(self, data: Data) -> Calibration:
        """Return the images that the preset calibrates batch norms on, which are not drawn yet."""
        from raynas.data.augment import AugmentConfig
        from raynas.data.calibration import Calibration, calibration_batches
        from raynas.data.config import CalibrationConfig

        document = self.read_document(PRESET, "recipe")
        there = "calibration" in document.data, "augment" in document.data["recipe"]
        config = validate(CalibrationConfig, document, ("calibration",)) if there[0] else CalibrationConfig()
        augment = validate(AugmentConfig, document, ("recipe", "augment")) if there[1] else AugmentConfig()
        return Calibration(config, partial(calibration_batches, data, augment, config))

    def write_space(self, space: Space) -> None:
        """Write the search space."""
        self.write_yaml(SPACE, space.to_dict())

    def write_preset(self, preset: Preset) -> None:
        """Write the resolved preset."""
        self.write_yaml(PRESET, preset)

    # -- the supernet ----------------------------------------------------------------------------------------------

    @property
    def is_trained(self) -> bool:
        """True if the supernet's training or import is finished."""
        return self.exists(SUPERNET) and self.exists(SUPERNET_WEIGHTS)

    @property
    def about_supernet(self) -> Row:
        """The record of the supernet: `fingerprint`, `seed` and so on; empty if it is not trained."""
        return dict(self.read_json(SUPERNET, "fingerprint")) if self.exists(SUPERNET) else {}

    def weights(self) -> dict[str, Tensor]:
        """The supernet's weights by name."""
        from raynas.nets.weights import parse_weights

        self.require(SUPERNET_WEIGHTS)
        return parse_weights(self.read_bytes(SUPERNET_WEIGHTS), f"{self.name}/{SUPERNET_WEIGHTS}")

    def write_supernet(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a supernet's weights, and then its record, which marks them as finished."""
        self._write_weights(SUPERNET_WEIGHTS, weights, SUPERNET, about)

    def _write_weights(self, file: str, weights: Mapping[str, Tensor], record: str, about: Mapping[str, Any]) -> None:
        from raynas.nets.weights import weights_file

        self.write_together({file: weights_file(weights), record: json_text(about).encode()}, last=record)

    @property
    def about_start(self) -> Row:
        """The record of the weights that adapting begins with, see `write_start`; empty if there are none."""
        return dict(self.read_json(START, "original")) if self.exists(START) else {}

    def write_start(self, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write the weights that the training of an adapted supernet begins with, and then their record.

        Args:
            about: `original`, the folder of the network that they were made of; fingerprints of the weights
                (`ordered`) and of the same with units in random order (`random`); and how units were ordered.
        """
        self._write_weights(START_WEIGHTS, weights, START, about)

    # -- archs -----------------------------------------------------------------------------------------------------

    def read_arch(self, path: str) -> Arch:
        """Read an arch file of the run, which holds its whole space."""
        document = self.read_document(path, "space", "arch")
        return Space.from_document(document, "space", ("space",)).arch(document.data["arch"])

    def write_arch(self, name: Literal["best", "reference"], arch: Arch) -> None:
        """Write an arch file; `raynas.load_arch` reads it anywhere."""
        with self.folder(name, last=ARCH_FILE) as folder:
            (folder / ARCH_FILE).write_text(arch_text(arch))

    # -- tables ----------------------------------------------------------------------------------------------------

    def table(self, name: str, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """Read a table of the run, such as `scores`, `training` or `evaluations`; empty if nothing is written yet.

        Raises:
            UserError: there is no such table.
        """
        return self.store.read(name, columns, filter)

    def scores(self, images: int | None = None, precision: str | None = None) -> pa.Table:
        """Return the newest score of each arch with the run's present supernet, all measured in the same way.

        Batch norms are calibrated as for the newest of them.

        Args:
            images: number of images of the search split; None for the largest number in the table.
            precision: precision of the scores; None for that in which most archs were scored, the newest of equals.

        Returns:
            Rows of table `scores`; `.to_pandas()` and `.to_pylist()` convert them.
        """
        supernet = self.about_supernet.get("fingerprint")  # the run may have been trained again
        table = self.table("scores", filter=None if supernet is None else pc.field("supernet") == supernet)
        rows = list(enumerate(table.select(["arch", "images", "precision", *_CALIBRATION]).to_pylist()))
        if precision is None:
            each_once = dict.fromkeys((row["arch"], row["precision"]) for _, row in reversed(rows))
            precision = next((name for name, _ in Counter(name for _, name in each_once).most_common(1)), None)
        rows = [(place, row) for place, row in rows if row["precision"] == precision]
        rows = [(place, row) for place, row in rows if all(row[name] == rows[-1][1][name] for name in _CALIBRATION)]
        images = images or max((row["images"] for _, row in rows), default=0)
        newest = {row["arch"]: place for place, row in rows if row["images"] == images}
        return table.take(pa.array(newest.values(), pa.int64()))

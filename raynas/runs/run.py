"""A run directory as values to work with: its supernet, searches and networks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.compute as pc

from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent
from raynas.results.run_dir import RunDir, json_text
from raynas.results.schemas import Row
from raynas.runs.files import BEST, CHECKPOINTS, NETWORKS, REFERENCE, SEARCH_FOLDER, SUPERNET_WEIGHTS, RunFiles
from raynas.runs.network_folder import ABOUT_FILE, ARCH_FILE, WEIGHTS_FILE, build_network
from raynas.runs.networks import WAYS, Network, arch_text, fitted, of_size
from raynas.runs.searches import MAIN, StoredSearch
from raynas.space import Arch, load_arch
from raynas.space.load import find_shipped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raynas.nets.supernet import Supernet
    from raynas.runs.trained_supernet import TrainedSupernet

_ID = re.compile(r"[0-9a-f]{12}")
_MISSING = {
    BEST: "finish the search first (raynas search)",
    REFERENCE: "only raynas pipeline makes one, of a preset that names it; to train a network of your choice "
    "beside the winner, give its file: raynas retrain --arch FILE",
}


class Run(RunFiles):
    """Everything that one run holds, read when it is asked for; cheap to make, picklable.

    Args, attributes and errors are those of `RunDir`. Values that are not there yet raise `RunDirError` with a line
    that says which command makes them. The values of single files are those of `RunFiles`.
    """

    def supernet(self, device: torch.device | str = "cpu") -> TrainedSupernet:
        """The trained supernet, which its subnets inherit from; its weights are read when they are needed.

        Args:
            device: where the supernet is, and its subnets.
        """
        from raynas.runs.trained_supernet import TrainedSupernet

        return TrainedSupernet(self, device)

    # -- searches --------------------------------------------------------------------------------------------------

    def search(self, name: str = MAIN) -> StoredSearch:
        """A search of the run: its settings, what it chose, and the way there.

        Args:
            name: of the search; that of the one called `search` chooses the run's `best`.
        """
        return StoredSearch(self, name)

    def searches(self) -> list[str]:
        """Names of the run's searches, the main one first."""
        names = [name.removesuffix(".yaml") for name in self.list(SEARCH_FOLDER) if name.endswith(".yaml")]
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


def open_run(run: str | os.PathLike[str] | RunDir) -> Run:
    """Open a run directory, to read what is in it.

    Args:
        run: a local path or any pyarrow filesystem URI; a `Run` is given back as it is.

    Raises:
        RunDirError: it does not exist, is not a run directory, or cannot be reached.
    """
    return run if isinstance(run, Run) else Run(run)

"""A run directory as values to work with: its supernet, searches and networks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.compute as pc

from raynas.arguments import checked
from raynas.errors import RunDirError, UserError
from raynas.progress.reporter import Progress, silent
from raynas.results.run_dir import RunDir, json_text
from raynas.results.schemas import Row
from raynas.runs.files import BEST, NETWORKS, REFERENCE, START, SUPERNET_WEIGHTS, RunFiles
from raynas.runs.network_folder import ABOUT_FILE, ARCH_FILE, WEIGHTS_FILE, build_network
from raynas.runs.networks import WAYS, Network, arch_text, fitted, of_size
from raynas.runs.searches import MAIN, StoredSearch, search_names
from raynas.space import Arch, load_arch
from raynas.space.load import find_shipped

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
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
    """The content of one run, read when needed; cheap to create, picklable.

    Args, attributes and errors are those of `RunDir`. Values that do not exist yet raise `RunDirError` with a line that
    names the command to create them. Values of single files are those of `RunFiles`.
    """

    def supernet(self, device: torch.device | str = "cpu") -> TrainedSupernet:
        """Return the trained supernet; its weights are read when needed."""
        from raynas.runs.trained_supernet import TrainedSupernet

        return TrainedSupernet(self, device)

    # -- searches --------------------------------------------------------------------------------------------------

    def search(self, name: str = MAIN) -> StoredSearch:
        """Return a search of the run, with its settings, scores, winner and front.

        Args:
            name: name of the search; the one called `search` chooses the run's `best`.
        """
        return StoredSearch(self, name)

    def searches(self) -> list[str]:
        """Return the names of the run's searches, the main one first."""
        return search_names(self)

    # -- archs -----------------------------------------------------------------------------------------------------

    def has_arch(self, name: Literal["best", "reference"]) -> bool:
        """Return True if there is a winner, or a reference."""
        return self.exists(f"{name}/{ARCH_FILE}")

    @checked()
    def arch(self, name: str = BEST, progress: Progress = silent) -> Arch:
        """Return an arch by name.

        Args:
            name: `best` (the main search's winner), the name of another search, `reference`, a 12-digit id that was
                scored in this run (on a part of the images, if it was stopped early), an arch file, or a shipped
                arch's name.
            progress: called with a line if the file's arch is for other images or classes than the run's.

        Raises:
            UserError: there is no such arch; the message says what to do.
        """
        if name in _MISSING:
            self.require(f"{name}/{ARCH_FILE}", _MISSING[name])
            return self.read_arch(f"{name}/{ARCH_FILE}")
        if _ID.fullmatch(name) and not Path(name).exists():
            found: list[Row] = []
            for table in ("scores", "blocks", "proxies"):  # archs that were stopped early are in the others alone
                found = found or self.table(table, ["values"], pc.field("arch") == name).to_pylist()
            if not found:
                raise UserError(
                    f"arch {name} was not scored in {self.name}: give one of its `scores` table, or an arch file"
                )
            space, values = self.space, json.loads(found[0]["values"])
            return space.arch(values) if values in space else space.off_grid(values)
        if name in self.searches() and not Path(name).exists():
            return self.search(name).winner
        if name.rpartition("/")[2] == "front" and not Path(name).exists():
            ids = ", ".join(one.id for one in self.front(name))
            raise UserError(f"arch {name!r} stands for several, and here one is wanted: give one of {ids}")
        instead = "give best, the name of a search, reference, the id of a scored subnet, or an arch file"
        file = find_shipped(name, "arch", instead)
        return fitted(load_arch(file), self.space, name, progress)

    def front(self, name: str = "front") -> list[Arch]:
        """Return the archs on the front of a search: `front` for the main search, `NAME/front` for the one called NAME.

        Raises:
            RunDirError: there is no such front.
        """
        stored = self.search(name.rpartition("/")[0] or MAIN)
        if not (front := stored.front):
            only = "only a finished search with several objectives leaves a front"
            raise RunDirError(f"{self.name} has no {stored.folder}/front: {only}")
        return front

    # -- figures ---------------------------------------------------------------------------------------------------

    @checked()
    def plot_front(self, cost: str | None = None) -> Figure:
        """Draw accuracy on the search split against a cost: every scored subnet, and the front of the best.

        Args:
            cost: `macs`, `params`, `paper_macs`, or what its searches go by (`latency`, `throughput`: as predicted);
                None for what the main search goes by.

        Returns:
            A matplotlib figure: `figure.savefig("front.png")` writes it, and a notebook shows it.

        Raises:
            RunDirError: no subnet has been scored yet.
            UserError: the cost is not known.
        """
        from raynas.runs.plots import front_of_run

        return front_of_run(self, cost)

    def plot_progress(self) -> Figure:
        """Draw the best accuracy so far of each search, against the number of subnets scored.

        Raises:
            RunDirError: no subnet has been scored by a search yet.
        """
        from raynas.runs.plots import progress_of_run

        return progress_of_run(self)

    def plot_arch(self, arch: Arch | str = BEST) -> Figure:
        """Draw an arch block by block, outlined up to the largest choice of its space.

        Args:
            arch: an arch, or its name; see `arch`.

        Raises:
            UserError: there is no such arch, or it is neither.
        """
        from raynas import figures

        if not isinstance(arch, Arch):
            if not isinstance(arch, str):
                raise UserError(f"give an arch or its name, not {type(arch).__name__} {arch!r}")
            arch = self.arch(arch)
        return figures.blocks(arch, self.space)

    # -- finished networks -----------------------------------------------------------------------------------------

    def network_rows(self) -> list[Row]:
        """Return the rows of table `networks`, without those of deleted networks, which may be trained again."""
        newest = {row["path"] or row["weights"]: row for row in self.table("networks").to_pylist()}
        return [row for row in newest.values() if not row["path"] or self._holds_network(row)]

    def _holds_network(self, row: Row) -> bool:
        """Return True if a row's folder holds its network, not a later one that has no row yet."""
        if not self.exists(f"{row['path']}/{ARCH_FILE}"):
            return False
        about = f"{row['path']}/{ABOUT_FILE}"
        return not self.exists(about) or self.read_json(about, "weights")["weights"] == row["weights"]

    def networks(self) -> list[Network]:
        """Return the networks that were retrained in the run and still exist."""
        return [
            Network(self.read_arch(f"{row['path']}/{ARCH_FILE}"), row["how"], row["seed"], row["path"])
            for row in self.network_rows()
            if row["path"]
        ]

    @checked()
    def network(self, name: str) -> Network:
        """Return a network by its folder, `networks/...`, or by an arch (see `arch`) with inherited weights.

        Args:
            name: the folder or the arch; `original` is the model that the run adapts.

        Raises:
            UserError: there is none.
        """
        if name == "original":
            self.require(START, "raynas adapt writes it")
            name = self.about_start["original"]
        if name.startswith(f"{NETWORKS}/"):
            return Network(self.read_arch(f"{name}/{ARCH_FILE}"), "inherited", path=name)
        return Network(self.arch(name), "inherited")

    def trained_network(self, arch: Arch, seed: int, train_on: str) -> Network:
        """Return an arch's network that was trained from scratch or, if there is none, fine-tuned.

        Args:
            arch: arch with the image size of the network.

        Raises:
            UserError: there is none.
        """
        rows = self.network_rows()
        paths = {
            row["path"] for row in rows if (row["seed"], row["trained_on"]) == (seed, train_on) and row["how"] in WAYS
        }
        found = [network for network in of_size(self.networks(), arch) if network.path in paths]
        if not found:
            raise UserError(
                f"{self.name} has no network of arch {arch.id} trained with seed {seed} on {train_on}: "
                "train it first (raynas retrain), with the same --arch, --seeds and --on"
            )
        return min(found, key=lambda network: WAYS.index(network.how))

    def model(self, network: Network, supernet: TrainedSupernet | None = None, calibrated: bool = True) -> Supernet:
        """Load a network of the run, ready to be called.

        Args:
            network: network with weights of its own, or inherited ones.
            supernet: supernet to inherit from, shared by several networks; None to load the run's.
            calibrated: False to leave batch norms that would be calibrated the supernet's running averages.

        Raises:
            UserError: its files are missing or do not fit each other, or its weights are not finite.
        """
        from raynas.nets.released import check_finite

        if network.path is None:
            model = (supernet or self.supernet()).subnet(network.arch, calibrated)
            source = f"{self.name}/{SUPERNET_WEIGHTS}"
        else:
            file = f"{network.path}/{WEIGHTS_FILE}"
            source = f"{self.name}/{file}"
            model = build_network(network.arch, self.read_bytes(file), source)
        check_finite(model.state_dict(), source)
        return model

    def write_network(self, network: Network, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write the folder of a retrained network, keeping other files in it.

        Args:
            about: row of table `networks`, and the preprocessing.
        """
        from raynas.nets.weights import weights_file

        with self.folder(str(network.path), last=ARCH_FILE, keep=lambda name: True) as folder:
            (folder / ARCH_FILE).write_text(arch_text(network.arch))
            (folder / WEIGHTS_FILE).write_bytes(weights_file(weights))
            (folder / ABOUT_FILE).write_text(json_text(about))

    def network_arch(self, network: Network) -> Arch | None:
        """Return the arch stored in a network's folder, or None."""
        file = f"{network.path}/{ARCH_FILE}"
        return self.read_arch(file) if self.exists(file) else None

    def has_network(self, network: Network) -> bool:
        """Return True if a network is trained: it has its files and a row."""
        path = network.path
        return any(row["path"] == path for row in self.network_rows()) and self.exists(f"{path}/{WEIGHTS_FILE}")


def open_run(run: str | os.PathLike[str] | RunDir) -> Run:
    """Open a run directory for reading.

    Args:
        run: a local path or any pyarrow filesystem URI; a `Run` is returned as it is.

    Raises:
        RunDirError: it does not exist, is not a run directory, or cannot be reached.
    """
    return run if isinstance(run, Run) else Run(run)

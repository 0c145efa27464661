"""Networks of small spaces whose accuracies are known: each was trained alone, with several seeds (docs/truths.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raynas.arguments import checked
from raynas.config import Seed
from raynas.errors import UserError
from raynas.search.predictors import Predict, fit_forest
from raynas.space import Arch, Space, load_space
from raynas.space.load import SPACES
from raynas.text import nearest, shown

FOLDER = SPACES / "truths"
"""Has a table for each space."""

FEWEST = 5
"""Networks that a model of a space is fitted to, at least."""

Split = Literal["search", "test"]


class Truth:
    """The networks of one space that were trained alone.

    Attributes:
        space: their space.
        table: a row for each training, with the columns in docs/truths.md.
        archs: the arch of each network, in the order of the table.
        macs: multiply-accumulates of one image, int64 [archs].
        params: parameters, int64 [archs].
        ms: milliseconds of a pass over one image, float64 [archs]; the median over the network's trainings.
    """

    def __init__(self, space: Space, table: pa.Table):
        self.space, self.table = space, table
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}  # by network and seed
        for row in table.to_pylist():
            self._rows.setdefault(row["network"], {})[row["seed"]] = row
        every = [list(rows.values()) for rows in self._rows.values()]
        self.archs = [space.arch(json.loads(rows[0]["values"])) for rows in every]
        self.macs, self.params = (np.array([rows[0][name] for rows in every]) for name in ("macs", "params"))
        self.ms = np.array([np.median([row["ms"] for row in rows]) for rows in every])

    def __repr__(self) -> str:
        return f"Truth({self.space.name}: {len(self.archs)} networks, {len(self.table)} trainings)"

    def seeds(self, arch: Arch | Mapping[str, Any]) -> list[int]:
        """Return the seeds that a network was trained with.

        Raises:
            UserError: no network of the table, as for all methods.
        """
        return sorted(self._of(arch))

    @checked()
    def accuracy(
        self,
        arch: Arch | Mapping[str, Any],
        epoch: int | None = None,
        seed: int | None = None,
        split: Split = "search",
    ) -> float:
        """Return the top-1 accuracy of a network, 0 to 1.

        Args:
            arch: an arch of the space, or its values.
            epoch: number of epochs trained, from 1; None for all. Earlier ones are known on the search split.
            seed: seed of the training; None for the mean over all that there are.
            split: `search`, 1,000 images that are held out of training, to choose by; or `test`, 2,000 others, to judge
                the choice by.

        Raises:
            UserError: the table has no such network, seed, epoch or split.
        """
        return float(np.mean([_accuracy(row, epoch, split) for row in self._trained(arch, seed)]))

    @checked()
    def accuracies(self, epoch: int | None = None, seed: int | None = None, split: Split = "search") -> np.ndarray:
        """Return the accuracy of every network, in the order of `archs`; the arguments are those of `accuracy`.

        Returns:
            float64 [archs], NaN for a network that was not trained with the seed.

        Raises:
            UserError: none was.
        """
        known = [seed is None or seed in rows for rows in self._rows.values()]
        if not any(known):
            seeds = sorted({each for rows in self._rows.values() for each in rows})
            raise UserError(f"no training with seed {seed}: there are {', '.join(map(str, seeds))}")
        pairs = zip(self.archs, known, strict=True)
        return np.array([self.accuracy(arch, epoch, seed, split) if there else np.nan for arch, there in pairs])

    @checked()
    def correct(self, arch: Arch | Mapping[str, Any], seed: int, split: Split = "search") -> np.ndarray:
        """Return for which images a trained network is right: bool [images], the same images for all networks.

        Args:
            arch: the network.
            seed: one of its seeds.
            split: see `accuracy`.
        """
        (row,) = self._trained(arch, seed)
        bits = np.frombuffer(row[f"{split}_correct"], dtype=np.uint8)
        return np.unpackbits(bits, count=row[f"{split}_images"]).astype(bool)

    @checked()
    def scorer(self, seed: Seed = 0) -> Surrogate:
        """Return a scorer of any arch of the space for searches that take seconds: a model of the known accuracies.

        Args:
            seed: seed of the model, a random forest.

        Raises:
            UserError: too few networks were trained.
        """
        if len(self.archs) < FEWEST:
            raise UserError(
                f"{len(self.archs)} network(s) of {self.space.name} are too few for a model: {FEWEST} at least"
            )
        return Surrogate(self.space, fit_forest(self.space, self.space.encode(self.archs), self.accuracies(), seed))

    def _of(self, arch: Arch | Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        network = self.space.arch(arch).network_id
        if network not in self._rows:
            raise UserError(f"{network} was not trained: the {len(self.archs)} networks that were are in `archs`")
        return self._rows[network]

    def _trained(self, arch: Arch | Mapping[str, Any], seed: int | None) -> list[dict[str, Any]]:
        rows = self._of(arch)
        if seed is None:
            return list(rows.values())
        if seed not in rows:
            raise UserError(f"no training of this arch with seed {seed}: there are {', '.join(map(str, sorted(rows)))}")
        return [rows[seed]]


class Surrogate:
    """A scorer of archs by a model of known accuracies: `run_search(search, truth.scorer())`."""

    def __init__(self, space: Space, predict: Predict):
        self.space, self._predict = space, predict

    def __repr__(self) -> str:
        return f"Surrogate({self.space.name})"

    def score(self, archs: Iterable[Arch | Mapping[str, Any]]) -> list[float]:
        """Return the predicted accuracies on the search split, in the given order."""
        wanted = [self.space.arch(arch) for arch in archs]
        return [float(value) for value in self._predict(self.space.encode(wanted))] if wanted else []


@checked()
def load_truth(name: str) -> Truth:
    """Return the truth table of a family or a space; see `raynas.bench.truth`."""
    family = name.removeprefix("truths/")
    known = sorted(path.stem for path in FOLDER.glob("*.parquet"))
    if family not in known:
        raise UserError(f"no truth table {shown(name)}{nearest(family, known)}")
    return Truth(load_space(f"truths/{family}"), pq.read_table(FOLDER / f"{family}.parquet"))


def _accuracy(row: Mapping[str, Any], epoch: int | None, split: Split) -> float:
    curve: Sequence[float] = row["curve"]
    if epoch is None:
        return float(row["accuracy" if split == "search" else "test_accuracy"])
    if split != "search":
        raise UserError("earlier epochs are known on the search split: leave out epoch, or split")
    if not 1 <= epoch <= len(curve):
        raise UserError(f"epoch {epoch}: a training has the epochs 1 to {len(curve)}")
    return float(curve[epoch - 1])

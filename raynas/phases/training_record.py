"""Records of training in the run directory: rows for every epoch, and the final weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from raynas.costs.columns import arch_columns
from raynas.data.load import Data
from raynas.nets.weights import weights_fingerprint
from raynas.results.schemas import Row
from raynas.results.versions import versions
from raynas.runs.run import Run
from raynas.space import Space
from raynas.training.context import State
from raynas.training.health import choose_probes
from raynas.training.recipe import Recipe

WHAT = "supernet"


class Recorder:
    """Writer of the history's entries to the tables `training` and `probes`, each once.

    The history only grows and has a fixed order, so the number of rows tells how far it was written, also by a killed
    driver.
    """

    def __init__(self, run: Run, space: Space, data: Data, recipe: Recipe):
        self.run = run
        self._probes = {role: arch_columns(arch) for role, arch in choose_probes(space, recipe.seed).items()}
        self._common = {"space": space.fingerprint, "data": data.fingerprint, "seed": recipe.seed}
        rows = run.store.read("training", ["epoch"], pc.field("what") == WHAT)
        self._entries = len(rows)
        self._probed = len(run.store.read("probes", ["epoch"])) // len(self._probes)

    def history(self, history: Sequence[dict[str, Any]]) -> None:
        """Write the entries that are not written yet."""
        probed = [entry for entry in history if "probes" in entry]
        self.run.store.append(
            "probes",
            [
                {**self._common, **self._probes[row["role"]], **row, "epoch": entry["epoch"]}
                for entry in probed[self._probed :]
                for row in entry["probes"]
            ],
        )
        self._probed = max(self._probed, len(probed))
        self.run.store.append(
            "training",
            [{**self._common, "what": WHAT, **_row(entry)} for entry in history[self._entries :]],
        )
        self._entries = max(self._entries, len(history))


def probed(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return the epochs after which probes were scored, each with their mean accuracy."""
    scored = [(entry["epoch"], entry["probes"]) for entry in history if "probes" in entry]
    return [(epoch, sum(row["accuracy"] for row in rows) / len(rows)) for epoch, rows in scored]


def _row(entry: Mapping[str, Any]) -> Row:
    """Return an entry of the history as a row of table `training`."""
    row = {key: value for key, value in entry.items() if key != "probes"}
    if "conflict_layers" in row:
        row["conflict_layers"] = json.dumps(row["conflict_layers"])
    return row


def write_supernet(run: Run, state: State, space: Space, data: Data, recipe: Recipe) -> None:
    """Write the final weights and then their record, which marks the training as finished."""
    averaged = state["ema"] is not None
    weights = state["ema" if averaged else "model"]
    last: list[dict[str, Any]] = next((e["probes"] for e in reversed(state["history"]) if "probes" in e), [])
    run.write_supernet(
        weights,
        {
            "fingerprint": weights_fingerprint(weights),
            "weights": "exponential moving average" if averaged else "as trained",
            "space": space.fingerprint,
            "data": data.fingerprint,
            "epochs": state["epoch"],
            "steps": state["step"],
            "rollbacks": state["rollbacks"],
            "seed": recipe.seed,
            "seconds": round(sum(entry.get("seconds", 0.0) for entry in state["history"]), 3),
            "probes": {row["role"]: row["accuracy"] for row in last},
            "versions": versions(),
        },
    )

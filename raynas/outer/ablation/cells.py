"""The trials of an ablation, one for each row and seed, and the phases that they have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raynas.errors import UserError
from raynas.outer.measures import MEASURES, RETRAINS, SEARCHES, TRAINING
from raynas.outer.trials import TRIALS, Listed, Proposed, Trial, Wait
from raynas.phases.search import BASELINE
from raynas.presets.ablation import AblationRow
from raynas.presets.preset import Preset, override
from raynas.runs.searches import MAIN


@dataclass(frozen=True)
class Cell:
    """One row with one seed.

    Attributes:
        run: folder of its run directory, shared by rows with the same training.
        search: name of its search there.
        retraining: name of its retraining there; None for that of the folder's first row.
    """

    row: AblationRow
    seed: int
    run: str
    search: str
    retraining: str | None
    preset: Preset

    @property
    def name(self) -> str:
        """Name of the trial."""
        return f"{as_name(self.row.name)}-{self.seed}"

    def proposed(self, number: int) -> Proposed:
        """Return the trial."""
        return Proposed(number, self.name, {"row": self.row.name, "seed": self.seed, **self.row.changes}, self.run)


def cells_of(rows: Sequence[AblationRow], seeds: Sequence[int], measures: Collection[str]) -> list[Cell]:
    """Return the cells, all rows of the first seed before the second, so that there is early something to compare.

    Rows that differ in search alone share a run directory, and those that differ in retraining alone a search, too.

    Raises:
        UserError: two rows are equal in all that the measures depend on, or have the same folder name.
    """
    needs = {MEASURES[name].needs for name in measures}
    found: list[Cell] = []
    for seed in seeds:
        folders: dict[str, str] = {}
        searches: dict[str, str] = {}
        retrainings: dict[str, str | None] = {}
        known: dict[str, str] = {}
        for row in rows:
            preset = override(row.preset, {"recipe.seed": seed, "search.seed": seed, "retrain.seeds": [seed]})
            dumped = preset.model_dump(mode="json")
            trained = _key(dumped, TRAINING)
            searched = trained + (_key(dumped, ("search",)) if needs & SEARCHES else "")
            whole = searched + (_key(dumped, ("retrain",)) if needs & RETRAINS else "")
            if whole in known:
                raise UserError(
                    f"rows {known[whole]!r} and {row.name!r} are equal in all that {', '.join(measures)} depend on: "
                    "leave one out, or measure more"
                )
            name = as_name(row.name)
            folder = folders.setdefault(trained, f"{TRIALS}/{name}-{seed}")
            others = any(cell.run == folder for cell in found)
            own = f"{name}_" if name in (MAIN, BASELINE) else name
            search = searches.setdefault(searched, own if others else MAIN)
            # By recipe alone, so that searches with the same winner share its training.
            retraining = retrainings.setdefault(trained + _key(dumped, ("retrain",)), name if others else None)
            found.append(Cell(row, seed, folder, search, retraining, preset))
            known[whole] = row.name
    names = [cell.name for cell in found]
    if twice := [cell for cell in found if names.count(cell.name) > 1]:
        raise UserError(f"rows {twice[0].row.name!r} and {twice[1].row.name!r} have the same folder name: rename one")
    return found


def _key(preset: Mapping[str, Any], parts: Sequence[str]) -> str:
    return json.dumps({name: preset.get(name) for name in parts}, sort_keys=True)


def as_name(row: str) -> str:
    """Return the name of a row as that of a folder."""
    return "".join(char if char.isalnum() or char in "_-" else "_" for char in row.replace("+", "and")) or "_"


class Shared(Listed):
    """A proposer of trials that are known in advance and share run directories, which one of them has at a time.

    Args:
        ended: called after each trial that ends in this attempt.
    """

    def __init__(self, trials: Sequence[Proposed], ended: Callable[[], object] = lambda: None):
        super().__init__(trials)
        self._busy: dict[int, str] = {}  # folders of running trials by number
        self._ended = ended

    def ask(self) -> Proposed | Wait | None:
        """Return the next trial whose folder is free."""
        busy = set(self._busy.values())
        free = next((trial for trial in self._left.values() if trial.run not in busy), None)
        if free is None:
            return Wait() if self._left else None
        self._busy[free.number] = free.run
        return self._left.pop(free.number)

    def tell(self, trial: Trial) -> None:
        was_busy = self._busy.pop(trial.number, None) is not None
        if trial.state == "running":  # read back, and carried on
            self._busy[trial.number] = trial.run
        super().tell(trial)
        if was_busy:
            self._ended()

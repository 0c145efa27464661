"""Searches of a run: their settings, winners and course, read back from the rows of scores.

A search stores only its settings and the rows of its scores. Asked and told again from these rows, it goes through the
same archs, to be resumed or reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from raynas.config import Config, validate
from raynas.costs import COSTS, CostFunction, cost
from raynas.documents import Document
from raynas.errors import RunDirError, UserError
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.stored import stored_predictor
from raynas.latency.timing import TimedOn
from raynas.results import Store
from raynas.runs.files import BEST, SEARCH_FOLDER, RunFiles
from raynas.runs.network_folder import ARCH_FILE
from raynas.runs.recorded_blocks import NotScored, RecordedBlocks
from raynas.runs.settings import begin, check_settings
from raynas.search.build import build_search
from raynas.search.config import SEARCHES, SearchConfig
from raynas.search.halving import ask_together, early_stops
from raynas.search.own import RecordedSearch
from raynas.search.problem import Problem
from raynas.space import Arch, Space

MAIN = "search"
"""The search whose winner is the run's `best`."""


EXACT = "fp32"
"""The precision of the scores that decide a search."""


class Scoring(Config):
    """Settings of the measurement of scores.

    Attributes:
        images: number of images of the search split; None for all.
        precision: `fp32`, or `bf16` or `fp16` by autocast.
    """

    images: int | None = Field(default=None, ge=1, le=10**7)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"


class SearchSettings(Config):
    """The record of a search's settings: the search, its scoring and its timing.

    `timed_on` is filled in when the space is timed, if the search uses latency or throughput.
    """

    search: SearchConfig
    scoring: Scoring = Field(default_factory=Scoring)
    timed_on: TimedOn | None = None


@dataclass(frozen=True)
class StoredSearch:
    """One search of a run by name; created by `Run.search`."""

    run: RunFiles
    name: str

    @property
    def work(self) -> str:
        """Name under which its settings are recorded."""
        return f"{SEARCH_FOLDER}/{self.name}"

    @property
    def folder(self) -> str:
        """Folder of the chosen archs."""
        return BEST if self.name == MAIN else self.work

    @property
    def has_begun(self) -> bool:
        """True if the run has a search of this name."""
        return self.run.exists(f"{self.work}.yaml")

    @property
    def settings(self) -> SearchSettings:
        """The recorded settings.

        Raises:
            RunDirError: the run has no search of that name.
        """
        if not self.has_begun:
            raise RunDirError(f"{self.run.name} has no search called {self.name!r}: run one first (raynas search)")
        file = f"{self.work}.yaml"
        settings = self.run.read_yaml(file, "settings")["settings"]
        return validate(SearchSettings, Document(settings, f"{self.run.name}/{file}"))

    @property
    def winner_file(self) -> str:
        """File of the winner in the run directory."""
        return f"{self.folder}/{ARCH_FILE}"

    @property
    def winner(self) -> Arch:
        """The winner; with several objectives, the arch that represents the front.

        Raises:
            RunDirError: the search has no winner yet.
        """
        return self.run.read_arch(self.winner_file)

    @property
    def front(self) -> list[Arch]:
        """The archs on the front by ascending MACs; empty with one objective, or if the search is not finished."""
        folder = f"{self.folder}/front"
        archs = [self.run.read_arch(f"{folder}/{file}") for file in self.run.list(folder)]
        return sorted(archs, key=lambda arch: int(cost(arch.space, [arch])["macs"][0]))

    def begin(self, settings: SearchSettings, check: bool = False) -> bool:
        """Record the settings, or check them if the search began before; see `raynas.runs.settings.begin`.

        Args:
            check: True to check only, and write nothing.
        """
        record = check_settings if check else begin
        another = f"give the same, or search under another name: raynas search {self.run.name} --name NAME"
        return record(self.run, self.work, settings, another)

    def forget(self) -> None:
        """Delete the record of its settings, so that another search can use the name."""
        self.run.delete(f"{self.work}.yaml")

    def write(self, winner: Arch, front: Sequence[Arch], text: Mapping[Arch, str]) -> None:
        """Write the winner and the front in one step.

        Args:
            front: archs on the front, with several objectives; else empty.
            text: text of each arch's file.
        """
        with self.run.folder(self.folder, last=ARCH_FILE) as folder:
            if front:
                (folder / "front").mkdir()
            for arch in front:
                (folder / "front" / f"{arch.id}.yaml").write_text(text[arch])
            (folder / ARCH_FILE).write_text(text[winner])

    def scores(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the archs that the search asked for, by arch id in the order of asking.

        An arch that other searches of the run asked for, too, has one row, whoever scored it. Archs that racing stopped
        have none.

        Raises:
            RunDirError: the run has no search of that name.
        """
        rows, (made, _) = self.comparable_scores(), self.read_back()
        return {row.arch.id: rows[row.arch.id] for row in made.history if row.arch.id in rows}

    def comparable_scores(self) -> dict[str, dict[str, Any]]:
        """Return the rows of all scores of the run that were measured as this search measures, by arch id."""
        scoring = self.settings.scoring
        return {row["arch"]: row for row in self.run.scores(scoring.images, scoring.precision).to_pylist()}

    def course(self) -> pa.Table:
        """Return the subnets that the search asked for, in order.

        Returns:
            One row for each: `arch`, `accuracy` (on the search split, 0 to 1; null if scoring it failed, or if accuracy
            is no objective), and its costs by name (`macs`, `params`, `paper_macs`, and predicted ones that the search
            goes by). `.to_pandas()` converts the table.

        Raises:
            RunDirError: the run has no search of that name.
        """
        made, _ = self.read_back()
        rows = [
            {"arch": row.arch.id, "accuracy": (row.objectives or {}).get("accuracy"), **row.costs}
            for row in getattr(made, "history", [])
        ]
        names = dict.fromkeys(["arch", "accuracy", *COSTS, *(name for row in rows for name in row)])
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def read_back(self) -> tuple[Any, bool]:
        """Restore the search in its present state from the rows of its scores, without scoring anything.

        A search that stops archs early does so again, with the stored blocks and training-free scores.

        Returns:
            The search object, and whether it has ended.

        Raises:
            RunDirError: the run has no search of that name.
        """
        settings, space, rows = self.settings, self.run.space, self.comparable_scores()
        made = make_search(space, settings, predictor_of(space, settings, self.run.store))
        if (early := early_stops(made, settings.search.racing, settings.search.rungs)) is not None:
            supernet = self.run.about_supernet.get("fingerprint")
            scorer = RecordedBlocks(self.run.store, supernet, settings.scoring.images, settings.scoring.precision, rows)
            ask = partial(ask_together, made) if settings.search.rungs else made.ask
            try:
                while archs := ask(settings.search.batch):
                    made.tell(archs, early(archs, scorer, lambda done: None))
            except NotScored:
                return made, False
            return made, True
        while archs := made.ask(settings.search.batch):  # the answers of a user's own search may depend on it
            known = [rows[arch.id] for arch in takewhile(lambda arch: arch.id in rows, archs)]
            made.tell(archs[: len(known)], known)
            if len(known) < len(archs):
                return made, False
        return made, True

    def has_ended(self) -> bool:
        """Return True if the search is finished."""
        return self.has_begun and self.read_back()[1]


def search_names(run: RunFiles) -> list[str]:
    """Return the names of a run's searches, the main one first."""
    names = [name.removesuffix(".yaml") for name in run.list(SEARCH_FOLDER) if name.endswith(".yaml")]
    return sorted(names, key=lambda name: (name != MAIN, name))


def make_search(space: Space, settings: SearchSettings, predictor: LatencyPredictor | None = None) -> Any:
    """Build the search that settings describe; see `raynas.search.build_search`.

    A user's own search is checked against the interface and recorded: see `RecordedSearch`.

    Raises:
        UserError: the search cannot be built, or uses latency and there is no predictor.
        InfeasibleError: no arch of the space meets the constraints.
    """
    costs: dict[str, CostFunction] = {}
    if predictor is not None:
        costs = {"latency": predictor, "throughput": predictor.throughput}
    config = settings.search
    made = build_search(config, space, costs=costs)
    if config.name in SEARCHES:
        return made
    return RecordedSearch(made, Problem(space, config.objectives, config.constraints, costs), config.evaluations)


def predictor_of(space: Space, settings: SearchSettings, store: Store) -> LatencyPredictor | None:
    """Return the latency predictor of a search, fitted to a run's rows; None for a search by other costs.

    Raises:
        UserError: the space was not timed.
        RunDirError: the run lacks some of the timings.
    """
    config = settings.search.latency
    if config is None:
        return None
    if settings.timed_on is None:
        raise UserError("the search goes by latency: its space was not timed")
    return stored_predictor(store, space, config.timings, settings.timed_on)

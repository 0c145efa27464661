"""Run directories in one line each: what they are of, how far they are, and the best result so far."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyarrow import fs

from raynas.comparison import best_first
from raynas.errors import UserError
from raynas.filesystem import FAILURES, open_filesystem
from raynas.locations import hide_secrets, inside
from raynas.outer.course import TUNE
from raynas.outer.tuning.tuned import read_tuned
from raynas.quantities import QUANTITIES, amount
from raynas.reports.collect import HOW, Content, collect
from raynas.reports.status import Work, status
from raynas.results.phases import FILE as PHASE
from raynas.results.run_dir import MARKER
from raynas.results.schemas import Row
from raynas.runs.files import PRESET, SPACE, SUPERNET
from raynas.runs.run import Run
from raynas.space import Arch

DEEPEST = 4
"""The most folders below the given one that a run directory may lie in."""

_OF_A_RUN, _OF_ITS_PHASES = {PRESET, SPACE, SUPERNET}, {"tables", PHASE}


@dataclass(frozen=True)
class Overview:
    """A run directory in one line.

    Attributes:
        run: its path, or its URI without credentials.
        state: its newest phase and how far that is, such as `search finished, 60 scored`; or `cannot be read`.
        space: name of the space; None if it has none.
        data: name of the data; None if it has none.
        seconds: wall time of all phases.
        best: numbers of the best result: `accuracy` (0 to 1) and `macs`, or the objectives of a tuning's best trial.
        how: how they were measured: on which images, with which weights; empty if there are none.
        reason: why it cannot be read; empty if it can.
    """

    run: str
    state: str
    space: str | None = None
    data: str | None = None
    seconds: float = 0.0
    best: Mapping[str, float] = field(default_factory=dict)
    how: str = ""
    reason: str = ""

    @property
    def result(self) -> str:
        """The numbers of the best result in words: `93.17%, 1.2M MACs`."""
        return ", ".join(_words(name, value) for name, value in self.best.items())


def find_runs(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the path or URI of each run directory in a folder, in alphabetical order.

    A folder with files of a run but without its marker is one of them, though it cannot be read. Runs inside a run
    directory (an experiment's trials) are found only if that one is given itself. Links are not followed, and folders
    whose names begin with a dot are left out.

    Raises:
        UserError: there is no such folder, or it cannot be listed.
    """
    given = os.fspath(folder)
    filesystem, root = open_filesystem(given)
    local = isinstance(filesystem, fs.LocalFileSystem)

    def walk(name: str, depth: int) -> Iterator[str]:
        at = f"{root}/{name}" if name else root
        try:
            entries = sorted(filesystem.get_file_info(fs.FileSelector(at)), key=lambda entry: entry.base_name)
        except FAILURES as error:
            if not name:
                raise UserError(f"{hide_secrets(given)}: no folder that can be listed: {error}") from error
            return  # of somebody else's, or deleted meanwhile
        names = {entry.base_name for entry in entries}
        if MARKER in names or (name and names & _OF_A_RUN and names & _OF_ITS_PHASES):
            yield at if local else inside(given, name)
            if name:
                return
        for entry in entries if depth < DEEPEST else ():
            hidden = entry.base_name.startswith(".") or (local and os.path.islink(entry.path))
            hidden |= at == root and entry.base_name == TUNE and MARKER in names  # Tune's own files of an experiment
            if entry.type == fs.FileType.Directory and not hidden:
                yield from walk(f"{name}/{entry.base_name}".lstrip("/"), depth + 1)

    return walk("", 0)


def overview(run: str | Run) -> Overview:
    """Return a run directory in one line; one that cannot be read has a `reason`."""
    try:
        return _overview(Run(run) if isinstance(run, str) else run)
    except UserError as error:
        return Overview(hide_secrets(run) if isinstance(run, str) else run.name, "cannot be read", reason=str(error))


def _words(name: str, value: float) -> str:
    if name in ("accuracy", "top5"):
        return f"{value:.2%}"
    return amount(name, value) if name in QUANTITIES else f"{name} {value:.4g}"


def _overview(run: Run) -> Overview:
    content, works = collect(run), status(run)
    best, how = _best(run, content)
    data = run.data_config.name if run.has_preset else None
    return Overview(
        run.name,
        _state(run, works),
        None if content.space is None else content.space.name,
        None if data is None else hide_secrets(data),
        sum(work.seconds for work in works),
        best,
        how,
    )


def _state(run: Run, works: Sequence[Work]) -> str:
    if not works:
        return "supernet imported" if run.is_trained else "nothing has begun yet"
    unfinished = [work for work in works if work.state in ("running", "silent")]
    work = (unfinished or works)[-1]
    return f"{work.what} {work.state}" + (f", {work.progress}" if work.progress else "")


def _best(run: Run, content: Content) -> tuple[dict[str, float], str]:
    """Return the best result and how it was measured: of a tuning's trials, of an evolution's spaces, or of networks.

    The winners of the searches by accuracy count before other networks, the most accurate one on the search split
    first; networks with weights of their own before inherited ones, the test split before the search split.
    """
    if (tuned := read_tuned(run)) is not None:
        return (dict(tuned.best.results), tuned.best.name) if tuned.best is not None else ({}, "")
    if content.spaces:
        row = min(content.spaces, key=lambda row: row["best_error"])
        best = {"accuracy": 1 - row["best_error"], "macs": row["best_macs"]}
        return best, f"search split, inherited weights, space {row['name']}"
    scored = {row["arch"]: row for row in _best_first(content.scores)}
    winners = _winners(run, content, scored)
    tested = {(row["network"], found.how): found
              for found in content.finished if found.size is None for row in found.tested}  # fmt: skip
    ways = [(winner, how) for how in ("scratch", "finetuned", "inherited") for winner in winners]
    for winner, how in ways:
        if (found := tested.get((winner.network_id, how))) is not None:
            mean, interval = found.test_accuracy() or (float("nan"), None)
            seeds = "" if interval is None else f", mean of {len(found.tested)} seeds"
            told = f"test split, {HOW[how]}{seeds}{winners[winner]}"
            return {"accuracy": mean, "macs": found.macs or 0}, told
    if not scored:
        return {}, ""
    first = next((winner for winner in winners if winner.id in scored), None)
    row = next(iter(scored.values())) if first is None else scored[first.id]
    told = winners[first] if first is not None else ", of any size" if run.searches() else ", sampled before any search"
    return {"accuracy": row["accuracy"], "macs": row["macs"]}, f"search split, inherited weights{told}"


def _best_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with an accuracy, the best first."""
    rows = [row for row in rows if row["accuracy"] is not None]
    costs, losses = [row["macs"] for row in rows], [row["loss"] for row in rows]
    return [rows[place] for place in best_first([-row["accuracy"] for row in rows], [costs], losses)] if rows else []


def _winners(run: Run, content: Content, scored: Mapping[str, Row]) -> dict[Arch, str]:
    """Return the winners of the searches by accuracy, the best first, each with the words about its search.

    The main search's winner, about which nothing need be said, is there in any case. Winners that were not scored as in
    the main search cannot be compared: they come last.

    Args:
        scored: rows of scores by arch id, the best first.
    """
    found: dict[Arch, str] = {} if content.winner is None else {content.winner: ""}
    for name in run.searches():
        stored = run.search(name)
        if run.exists(stored.winner_file) and stored.settings.search.objectives.get("accuracy") == "max":
            found.setdefault(stored.winner, f", search {name}")
    places = {arch: place for place, arch in enumerate(scored)}
    return dict(sorted(found.items(), key=lambda item: places.get(item[0].id, len(places))))

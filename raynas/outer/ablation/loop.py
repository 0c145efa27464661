"""Ablations carried out as an experiment, and their tables written after each trial."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raynas.cluster.resources import Resources
from raynas.config import validate
from raynas.documents import Document, Location
from raynas.errors import UserError
from raynas.locations import is_uri
from raynas.outer.ablation.cells import Cell, Shared, cells_of
from raynas.outer.experiment import run_experiment
from raynas.outer.measures import (
    MEASURES,
    RETRAINS,
    carry_out,
    check_energy,
    check_limits,
    check_measures,
    cost_limit,
    unknown_measure,
)
from raynas.outer.trials import Proposed, Trial, read_trials
from raynas.outer.work import Report, Work
from raynas.phases.images import check_images
from raynas.phases.inputs import space_of
from raynas.phases.preflight import preflight
from raynas.phases.rank import accuracies, archs_of, read_truth
from raynas.phases.where import placed
from raynas.presets.ablation import Ablation, AblationRow
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, reporter, silent
from raynas.reports.ablation import AblationTable, Column, Line
from raynas.reports.status import status
from raynas.runs.run import Run
from raynas.runs.settings import begin, check_settings, has_begun
from raynas.space.values import digest
from raynas.text import shown

ABLATION = "ablation"
"""Name of the settings and of the tables in the run directory: `ablation.md` and so on."""


def run_ablation(
    ablation: Ablation,
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    seeds: Sequence[int],
    at_a_time: int | None = None,
    progress: Progress = silent,
) -> AblationTable:
    """Carry out an ablation, or go on with it; see `raynas.ablate`.

    Args:
        preset: the preset that the rows change, with data.
        seeds: those of every row.
    """
    progress, resources = reporter(progress), placed(resources, several=True)
    rows, measures, truth = ablation.rows(preset), ablation.config.measure, ablation.config.truth
    named: list[tuple[Location, str]] = [(("measure", place), name) for place, name in enumerate(measures)]
    named += [(("published", row, name), name) for row, each in ablation.config.published.items() for name in each]
    for at, name in named:
        if name not in MEASURES:
            raise ablation.document.error(at, unknown_measure(name))
    for row in rows:
        with _naming(row):
            check_measures(measures, row.preset, truth)
    cells = cells_of(rows, seeds, measures)
    settings = {
        "names": [row.name for row in rows],  # first, for a short message
        "rows": {row.name: _recorded(row) for row in rows},
        "measure": sorted(measures),
        "truth": truth if truth is None or is_uri(truth) else os.path.abspath(truth),
    }
    if truth is not None:
        settings["truth_content"] = digest(accuracies(read_truth(truth)))
    if has_begun(run_dir, ABLATION):
        check_settings(Run(run_dir), ABLATION, settings)
    else:
        if "energy" in measures:
            check_energy(at_a_time, progress)
        _check(rows, measures, truth, preset, resources, progress)
    run = Run(run_dir, create=True)
    with run.lock():
        begin(run, ABLATION, settings)
        trials = _numbered(run, cells)

        def write() -> AblationTable:
            return write_tables(run, table_of(ablation, rows, seeds, read_trials(run)))

        proposer = Shared([trial for trial, _ in trials], write)
        run_experiment(run, proposer, work_of(cells, measures, truth, resources), resources, None, at_a_time, progress,
                       lambda trial: _state(run, trial))  # fmt: skip
        return write()


def _check(
    rows: Sequence[AblationRow],
    measures: Sequence[str],
    truth: str | None,
    preset: Preset,
    resources: Resources,
    progress: Progress = silent,
) -> None:
    """Refuse rows that cannot be carried out; every image of the preset is looked at."""
    table = None if truth is None else read_truth(truth)
    check_images(preset, resources, progress)
    notes: dict[str, None] = {}  # without duplicates: all rows note what they have in common
    retrained = any(MEASURES[name].needs in RETRAINS for name in measures)
    limits = []
    for row in rows:
        with _naming(row):
            ready = preflight(row.preset, resources, None, lambda line: notes.update({line: None}), False, retrained)
            if table is not None:
                archs_of(table, ready.space, truth or "")
            limits.append(cost_limit(row.preset.search, ready.space))
    if "hypervolume" in measures:
        check_limits(limits)
    if retrained and (keys := retrained_apart(rows)):
        both, more = ", ".join(keys), " and so on" if keys[1:] else ""
        line = (
            f"note: rows differ in {both} of the supernet's recipe, and of the retraining's with it; to retrain all by "
        )
        notes[f"{line}one recipe, set retrain.recipe.{keys[0]}{more}"] = None
    for line in notes:
        progress(line)


def retrained_apart(rows: Sequence[AblationRow]) -> list[str]:
    """Return the settings of the supernet's recipe that differ between rows, and that retraining takes over from it."""
    recipes = [(row.preset.recipe.model_dump(), row.preset.retrain_recipe.model_dump()) for row in rows]
    first = recipes[0]
    apart = [{key for each in recipes for key in each[i] if each[i][key] != first[i][key]} for i in (0, 1)]
    return sorted(apart[0] & apart[1])


@contextmanager
def _naming(row: AblationRow) -> Iterator[None]:
    """Name the row in the block's mistakes."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"row {shown(row.name)}: {error}") from error


def _recorded(row: AblationRow) -> dict[str, Any]:
    """Return a row's settings as they bind: the space by its content, since a file may have another name, or change."""
    settings = row.preset.model_dump(mode="json", exclude={"space", "reference", "space_evolution", "tune"})
    with _naming(row):
        return {"space": space_of(row.preset.model_copy(update={"fix": {}})).to_dict(), **settings}


def _numbered(run: Run, cells: Sequence[Cell]) -> list[tuple[Proposed, Cell]]:
    """Return the trials of cells; those that are there keep their numbers, new ones (more seeds) follow."""
    known = {trial.name: trial.number for trial in read_trials(run)}
    new = max(known.values(), default=-1) + 1
    found = []
    for cell in cells:
        number = known.get(cell.name)
        if number is None:
            number, new = new, new + 1
        found.append((cell.proposed(number), cell))
    return found


def work_of(cells: Sequence[Cell], measures: Sequence[str], truth: str | None, resources: Resources) -> Work:
    """Return what is done in each trial; it is pickled by value."""
    written = {
        (cell.row.name, cell.seed): (cell.preset.model_dump(mode="json"), cell.search, cell.retraining)
        for cell in cells
    }
    asked = list(measures)

    def work(folder: str, values: Mapping[str, Any], report: Report) -> Mapping[str, float]:
        """Carry out a row with a seed."""
        settings, search, retraining = written[values["row"], values["seed"]]
        preset = validate(Preset, Document(dict(settings), "preset"))
        return carry_out(
            preset, folder, asked, resources, print, report, search=search, retraining=retraining, truth=truth
        )

    return work


def _state(run: Run, trial: Trial) -> str | None:
    """Return how far a trial is, from its tables."""
    try:
        running = [work for work in status(Run(run.local_or_uri(trial.run))) if work.state == "running"]
    except UserError:  # not begun, or unreadable just now
        return None
    return " ".join(filter(None, (running[-1].what, running[-1].progress))) if running else None


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of(
    ablation: Ablation, rows: Sequence[AblationRow], seeds: Sequence[int], trials: Sequence[Trial]
) -> AblationTable:
    """Return the table of an ablation, as far as its trials have ended."""
    config = ablation.config
    columns = [Column(name, (measure := MEASURES[name]).text, measure.unit, measure.better) for name in config.measure]
    found = {(trial.values["row"], trial.values["seed"]): trial for trial in trials}
    lines = []
    for row in rows:
        own = {seed: found[row.name, seed] for seed in seeds if (row.name, seed) in found}
        values = {
            name: {seed: trial.results[name] for seed, trial in own.items() if trial.state == "finished"}
            for name in config.measure
        }
        failed = {seed: trial.reason or "no reason is known" for seed, trial in own.items() if trial.state == "failed"}
        changes = "" if row.toggles else ", ".join(f"{key}={_told(value)}" for key, value in row.changes.items())
        lines.append(Line(row.name, row.toggles, changes, values, failed, config.published.get(row.name, {})))
    toggles = list(dict.fromkeys(name for row in rows for name in row.toggles))
    return AblationTable(config.title, config.source, toggles, columns, lines, ablation.baseline, list(seeds))


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_tables(run: Run, table: AblationTable) -> AblationTable:
    """Write the tables of an ablation into its run directory: `ablation.md`, `.html`, `.arrow` and `.png`."""
    files = {"md": table.markdown().encode(), "html": table.page().encode("utf-8", "backslashreplace")}
    for ending, content in {**files, "arrow": table.arrow(), "png": table.png()}.items():
        run.write_bytes(f"{ABLATION}.{ending}", content)
    return table

"""Figures of runs: the front of each, the progress of its searches, and the blocks of an arch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from raynas import figures
from raynas.comparison import pareto
from raynas.errors import RunDirError, UserError
from raynas.quantities import QUANTITIES
from raynas.runs.files import RunFiles
from raynas.runs.searches import StoredSearch, search_names
from raynas.text import nearest

Points = tuple[np.ndarray, np.ndarray]
"""Costs and accuracies of the same subnets."""


def front_of_run(run: RunFiles, cost: str | None = None) -> Figure:
    """Draw the scored subnets of a run, by the search that asked for them, with their front; see `Run.plot_front`."""
    groups, name = _scored(run, cost)
    if not groups:
        raise RunDirError(f"{run.name}: no subnet has been scored yet: raynas search")
    configs = [StoredSearch(run, search).settings.search for search in search_names(run)]
    bounds = [config.constraints.get(name, (None, None)) for config in configs]
    limits = sorted({bound for pair in bounds for bound in pair if bound is not None})
    return figures.accuracy_against_cost(groups, _front(groups, name), name, limits)


def fronts_of_runs(runs: Mapping[str, RunFiles], cost: str | None = None) -> Figure:
    """Draw the fronts of several runs in one figure; runs without scores are left out.

    Args:
        runs: the runs, by the name that each bears in the figure.
        cost: as in `Run.plot_front`; None for that of the first run.
    """
    found: dict[str, Points] = {}
    for name, run in runs.items():
        groups, cost = _scored(run, cost)
        if groups:
            found[name] = _front(groups, cost)
    if not found:
        raise RunDirError("no subnet has been scored in any of these runs yet: raynas search")
    return figures.fronts(found, cost or "macs")


def progress_of_run(run: RunFiles) -> Figure:
    """Draw the best accuracy so far of each search of a run; see `Run.plot_progress`."""
    curves = {}
    for name in search_names(run):
        accuracy = np.array(StoredSearch(run, name).course()["accuracy"].to_pylist(), dtype=float)  # None is NaN
        if not np.isnan(accuracy).all():
            curves[name] = np.fmax.accumulate(accuracy)
    if not curves:
        raise RunDirError(f"{run.name}: no search has scored a subnet yet: raynas search")
    return figures.search_progress(curves)


def _scored(run: RunFiles, cost: str | None) -> tuple[dict[str, Points], str]:
    """Return the subnets with an accuracy, by search, and the name of the cost."""
    names = search_names(run)
    if cost is None:
        config = StoredSearch(run, names[0]).settings.search if names else None
        goes_by = [] if config is None else [*config.constraints, *config.objectives]
        cost = next((name for name in goes_by if name in QUANTITIES), "macs")
    elif cost not in QUANTITIES:
        raise UserError(f"no such cost: {cost!r}{nearest(cost, list(QUANTITIES))}")
    tables = {name: StoredSearch(run, name).course() for name in names} or {"scored subnets": run.scores()}
    groups = {}
    for name, table in tables.items():
        if table.num_rows and cost not in table.column_names:
            raise UserError(f"{run.name}: {cost} of the subnets is not known: its searches do not go by it")
        costs, accuracy = (np.array(table[column].to_pylist(), dtype=float) for column in (cost, "accuracy"))
        if (known := ~np.isnan(costs) & ~np.isnan(accuracy)).any():
            groups[name] = (costs[known], accuracy[known])
    return groups, cost


def _front(groups: Mapping[str, Points], cost: str) -> Points:
    costs, accuracy = (np.concatenate(columns) for columns in zip(*groups.values(), strict=True))
    return pareto(costs, accuracy, QUANTITIES[cost].higher_is_better)

"""Searches after an evolution: the best subnet of every space at the same budget (S3, Table 5)."""

from __future__ import annotations

from raynas.cluster.resources import Resources
from raynas.outer.evolution.record import iteration_run, read_iterations
from raynas.phases.search import search_fully
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run


def search_spaces(run: Run, resources: Resources, progress: Progress = silent) -> None:
    """Run or resume the preset's search in every space of an evolution, with the supernet of each.

    Budget and constraints are the same for all. The iterations' run directories are then as after `raynas search`.

    Args:
        run: run of an evolution by `evolve_preset`.

    Raises:
        UserError: a search cannot be carried out; see `raynas.phases.search.search_fully`.
    """
    for iteration in read_iterations(run):
        here = iteration_run(run, iteration.index)
        preset = here.preset
        progress(f"searching space {iteration.index}, {iteration.space.name}, in {here.name}")
        with here.lock():
            search_fully(here, preset.search, resources, progress=progress)

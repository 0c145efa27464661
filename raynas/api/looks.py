"""Public functions that look and change nothing: reports, runs and their state, check of data and a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.api.given import DataLike, PresetLike, RunLike, chosen_preset, data_alone, opened_run, read_preset, typed
from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from raynas.outer.overview import Overview
    from raynas.outer.side_by_side import SideBySide
    from raynas.phases.check_place import Finding
    from raynas.reports.status import Work


@typed
def report(run: RunLike, *, tensorboard: str | os.PathLike[str] | None = None) -> str:
    """Write one HTML page about a run, or about all trials of an experiment.

    The page of an ablation is there already, written after each trial.

    Args:
        run: the run directory.
        tensorboard: a folder on this machine for TensorBoard's event files of trainings and searches; None for none.

    Returns:
        The path of the page, or its URI without credentials.

    Raises:
        RunDirError: it is not a run directory.
        UserError: the folder for event files cannot be made, or the run is an ablation, which has none.
    """
    opened = opened_run(run)
    if opened.exists("ablation.html"):  # written after each of its trials
        if tensorboard is not None:
            raise UserError(f"{opened.name} is an ablation: give one of its trials, such as {opened.name}/trials/NAME")
        return f"{opened.name}/ablation.html"
    from raynas.outer.report_data import searched_spaces, trial_findings, tuning_findings
    from raynas.phases.report_data import traces
    from raynas.reports.collect import collect
    from raynas.reports.page import write_report

    courses = traces(opened)
    if tensorboard is not None:
        from raynas.reports.tensorboard import write_events

        write_events(opened, Path(tensorboard), courses)
    content = replace(collect(opened), traces=courses, searched=searched_spaces(opened))
    content = replace(content, trials=trial_findings(opened), tuning=tuning_findings(opened))
    return write_report(opened, content)


@typed
def status(run: RunLike) -> list[Work]:
    """Return how far each phase of a run is, from its tables alone; see `raynas watch`.

    Raises:
        RunDirError: it is not a run directory, or cannot be read.
    """
    from raynas.reports.status import status as read_status

    return read_status(opened_run(run))


@typed
def list_runs(folder: str | os.PathLike[str]) -> list[Overview]:
    """Return the run directories in a folder, each with its state and best result; see `raynas runs`.

    Args:
        folder: a folder or a URI; run directories may lie up to four folders below it. Those inside a run directory,
            such as an experiment's trials, are returned only if that one is given itself.

    Raises:
        UserError: there is no such folder, or it cannot be listed.
    """
    from raynas.outer.overview import find_runs, overview

    return [overview(run) for run in find_runs(folder)]


@typed
def compare(runs: Sequence[RunLike]) -> SideBySide:
    """Compare runs: their results, and the settings in which they differ; see `raynas compare`.

    Args:
        runs: two or more run directories.

    Returns:
        The comparison: `overviews`, `differences` and `plot_front()`.

    Raises:
        UserError: fewer than two runs are given.
        RunDirError: one is not a run directory, or cannot be read.
    """
    from raynas.outer.side_by_side import side_by_side

    if len(runs) < 2:
        raise UserError("give two or more runs to compare")
    return side_by_side([opened_run(run) for run in runs])


@typed
def check(
    preset: PresetLike | None = None,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    run_dir: RunLike | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Check data, a preset and a cluster before hours are spent on them.

    The cluster is checked if there is one (`RAY_ADDRESS`) or a run directory or resources are given: versions, CPUs and
    GPUs, the connection between workers, data and run directory on every node, and memory. Nodes that are missing are
    asked for. If nothing of it failed, every image is read: what is there, what cannot be read, how it will be read.
    The preset's training, search, retraining and reference are checked for such images, and all mistakes are told
    together. Where the space follows from a model (`raynas.adapt`) they are not.

    Args:
        preset: the preset to carry out; its space says how images are read.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key; without a preset only those of `data`.
        run_dir: the run directory, which need not exist.
        resources: workers and replicas to find room for; None on a cluster for one and two, else for none.
        progress: called with lines of text.

    Returns:
        The checks of the cluster, each with its `mend` if it failed.

    Raises:
        UserError: the dataset is missing or unusable, an image cannot be read, or the preset does not fit the images.
    """
    cluster = os.environ.get("RAY_ADDRESS") not in (None, "", "local")
    anywhere = cluster or run_dir is not None or resources is not None
    before = whole = None
    if preset is not None:
        before = read_preset(preset)
        whole = chosen_preset(before, data, overrides, check_data=False)
        config = whole.data
    elif data is not None:
        config = data_alone(data, overrides or {})
    elif anywhere:
        config = None
    else:
        raise UserError("say what to check: --data DIR, and the preset that it is for where there is one")
    checked = whole
    if whole is not None and whole.space is None:  # and so says nothing about images
        checked = None
        progress("its space follows from a model: limits, recipes and the model are checked by raynas adapt alone")
    findings: list[Finding] = []
    if anywhere:
        from raynas.phases.check import check_cluster, show

        asked = resources or (Resources() if cluster else Resources(workers=0, replicas=0))
        findings = check_cluster(checked, config, asked, None if run_dir is None else str(run_dir), progress)
        show(findings, progress)
    if (whole is not None or config is not None) and all(finding.mend is None for finding in findings):
        from raynas.phases.images import check_data
        from raynas.phases.inputs import named_data
        from raynas.phases.preflight import check_preset

        there = resources or Resources()
        if checked is None or anywhere:  # the checks of a cluster include those of the settings
            check_data(config if whole is None else named_data(whole), checked, there, progress)
        else:
            check_preset(checked, None if data is None else before, there, progress)
            progress("not checked: memory, GPUs and what the preset costs; give --run DIR and the resources for them")
    return findings

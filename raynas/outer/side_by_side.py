"""Several runs side by side: the settings in which they differ, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raynas.outer.overview import Overview, overview
from raynas.runs.files import PRESET
from raynas.runs.run import Run
from raynas.runs.searches import MAIN
from raynas.runs.settings import KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VERSIONS = ("raynas", "torch", "timm", "ray", "numpy", "python", "machine")


@dataclass(frozen=True)
class SideBySide:
    """Several runs side by side.

    Attributes:
        runs: the runs.
        overviews: each run in one line.
        differences: the settings in which the runs differ, by dotted key: the value in each run, None if it has none.
    """

    runs: Sequence[Run]
    overviews: Sequence[Overview]
    differences: Mapping[str, Sequence[Any]]

    def plot_front(self, cost: str | None = None) -> Figure:
        """Draw the fronts of all runs in one figure; see `Run.plot_front`.

        Raises:
            RunDirError: no subnet has been scored in any of them.
            UserError: the cost is not known.
        """
        from raynas.runs.plots import fronts_of_runs

        return fronts_of_runs({run.name: run for run in self.runs}, cost)


def side_by_side(runs: Sequence[Run]) -> SideBySide:
    """Compare runs.

    Raises:
        RunDirError: one of them cannot be read.
    """
    settings = [_settings(run) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key) for each in settings] for key in keys}
    differing = {key: found for key, found in values.items() if any(value != found[0] for value in found)}
    return SideBySide(runs, [overview(run) for run in runs], differing)


def _settings(run: Run) -> dict[str, Any]:
    """Return all settings of a run by dotted key: its preset, the records of its work, and versions of its last start.

    Keys of the main work and of the main search are those of a preset; other searches have their name before it.
    """
    tree: dict[str, Any] = dict(run.read_yaml(PRESET)) if run.has_preset else {}
    for work in (name for kind in KINDS for name in kind if run.exists(f"{name}.yaml")):
        content = run.read_yaml(f"{work}.yaml", "settings", "starts")
        versions = {name: content["starts"][-1].get(name) for name in _VERSIONS} if content["starts"] else {}
        tree |= {"work": work, **content["settings"], "versions": versions}
    for search in map(run.search, run.searches()):
        recorded = run.read_yaml(f"{search.work}.yaml", "settings")["settings"]
        tree |= recorded if search.name == MAIN else {search.work: recorded}
    return dict(_flat(tree, ""))


def _flat(value: Any, key: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for name, inner in value.items() for pair in _flat(inner, f"{key}.{name}" if key else str(name))]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [pair for place, item in enumerate(value) for pair in _flat(item, f"{key}.{place}")]
    return [(key, value)]

"""Several runs side by side: the settings in which they differ, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raynas.arguments import checked
from raynas.config import spelled_out
from raynas.outer.overview import Overview, overview
from raynas.results.run_dir import plain
from raynas.runs.files import PRESET, SEARCH_FOLDER
from raynas.runs.networks import of_size
from raynas.runs.run import Run
from raynas.runs.searches import MAIN, StoredSearch
from raynas.runs.settings import KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VERSIONS = ("raynas", "torch", "timm", "ray", "numpy", "python", "machine")


@dataclass(frozen=True)
class SideBySide:
    """Several runs side by side.

    Attributes:
        differences: the settings in which the runs differ, by dotted key: the value in each run, None if it has none.
            A search that a run lacks is one of them, `searches/NAME`, with its algorithm as the value; settings of
            searches are compared among the runs that have them, and so is the training of the winner alone
            (`retrained`).
    """

    runs: Sequence[Run]
    overviews: Sequence[Overview]
    differences: Mapping[str, Sequence[Any]]

    @checked()
    def plot_front(self, cost: str | None = None) -> Figure:
        """Draw the fronts of all runs in one figure; see `Run.plot_front`.

        Raises:
            RunDirError: no subnet has been scored in any of them.
            UserError: the cost is not known.
        """
        from raynas.runs.plots import fronts_of_runs

        return fronts_of_runs({run.name: run for run in self.runs}, cost)


def side_by_side(runs: Sequence[Run]) -> SideBySide:
    """Compare runs that can be read."""
    searches = [{name: run.search(name) for name in run.searches()} for run in runs]
    names = dict.fromkeys(name for each in searches for name in each)
    differing = _differences([_settings(run, whole=MAIN not in names) for run in runs])
    for name in names:
        searched = [each.get(name) for each in searches]
        if None in searched:
            differing[f"{SEARCH_FOLDER}/{name}"] = [each.settings.search.name if each else None for each in searched]
        differing |= _differences([_search_settings(each) if each else None for each in searched])
    differing |= _differences([_retraining(run) for run in runs])
    return SideBySide(runs, [overview(run) for run in runs], differing)


def _differences(settings: Sequence[dict[str, Any] | None]) -> dict[str, Sequence[Any]]:
    """Return the settings in which those that are there differ: by key the value of each, None if it has none."""
    there = [each for each in settings if each is not None]
    keys = dict.fromkeys(key for each in there for key in each)
    values = {key: [None if each is None else each.get(key) for each in settings] for key in keys}
    return {key: values[key] for key in keys if any(each.get(key) != there[0].get(key) for each in there)}


def _settings(run: Run, whole: bool) -> dict[str, Any]:
    """Return settings of a run by dotted key: its preset, the records of its work, and versions of its last start.

    Args:
        whole: with the preset's settings of searches, which have no record yet.
    """
    preset = run.preset if run.has_preset else None
    tree: dict[str, Any] = spelled_out(run.read_yaml(PRESET), preset) if preset else {}
    if not whole:
        tree.pop("search", None)
    for work in (name for kind in KINDS for name in kind if run.exists(f"{name}.yaml")):
        content = run.read_yaml(f"{work}.yaml", "settings", "starts")
        versions = {name: content["starts"][-1].get(name) for name in _VERSIONS} if content["starts"] else {}
        settings = spelled_out(content["settings"], dict(preset) if preset else {})
        tree |= {"work": work, **settings, "versions": versions}
    return dict(_flat(tree, ""))


def _search_settings(search: StoredSearch) -> dict[str, Any]:
    """Return the settings of a search by dotted key: those of the main one as in a preset, others below their name."""
    settings = search.settings
    return dict(_flat(spelled_out(plain(settings), settings), "" if search.name == MAIN else search.work))


def _retraining(run: Run) -> dict[str, Any] | None:
    """Return how the winner was trained on its own, which may not be as the preset says; None if it was not."""
    if not run.exists(run.search().winner_file):
        return None
    networks = of_size(run.networks(), run.search().winner, run.space.input_size)
    records = [record for each in networks if run.exists(record := f"{each.path}/training.yaml")]
    if not records:  # the model that is adapted may be the winner, and was not trained here
        return None
    settings = run.read_yaml(records[0], "settings.recipe", "settings.how", "settings.train_on")["settings"]
    recipe = {name: value for name, value in settings["recipe"].items() if name != "seed"}
    return dict(_flat({name: settings[name] for name in ("how", "train_on")} | {"recipe": recipe}, "retrained"))


def _flat(value: Any, key: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for name, inner in value.items() for pair in _flat(inner, f"{key}.{name}" if key else str(name))]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [pair for place, item in enumerate(value) for pair in _flat(item, f"{key}.{place}")]
    return [(key, value)]

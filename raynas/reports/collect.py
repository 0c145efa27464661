"""Content of a report, read from the tables and files of a run directory; missing parts are left empty."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.comparison import mean_interval
from raynas.reports.sampled import Sampled, sampled
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.space import Arch, Space

if TYPE_CHECKING:
    from raynas.reports.tuning import Tuning  # draws, and so takes time to import

HOW = {
    "inherited": "inherited weights",
    "finetuned": "fine-tuned",
    "scratch": "retrained from scratch",
    "resized": "retrained, then fine-tuned",
    "pretrained": "as it was given",
    "transferred": "fine-tuned to the data",
}
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Timed:
    """Measured times of the best archs of a search by latency.

    Attributes:
        about: description of the latency predictor and its quality.
        rows: rows, best first: `arch`, `predicted_ms`, `ms`, `ms_q1`, `ms_q3`, `images_per_s`, and `keeps` (True if it
            keeps the search's limits).
    """

    about: str
    rows: Sequence[Row] = ()


@dataclass(frozen=True)
class Predicted:
    """Quality of the predictors of a search.

    Attributes:
        tried: one row for each predictor: `objective`, number of archs `fitted` and `held_out`, `kendall`, `by_macs`,
            `spearman`, `rmse`, `regret` (see `raynas.search.predictors.Quality`), and `used`.
        points: one row for each arch and objective that was predicted and measured: `of` (`held out` or `proposed`),
            `arch`, `objective`, `predicted`, `measured`.
    """

    tried: Sequence[Row] = ()
    points: Sequence[Row] = ()


@dataclass(frozen=True)
class Trace:
    """Course of one search: the archs that it asked for, in order.

    Attributes:
        name: name such as `evolution` or `random`.
        archs: ids of the archs.
        accuracy: accuracy of each arch, 0 to 1; None if scoring failed.
        limits: bounds on the costs that are constraints or objectives of the search.
        finished: True if it spent its budget.
        timed: measured times of its best archs, for a search by latency.
        front: `arch` and measured objectives of the archs on its front, with several objectives.
        predicted: quality of its predictors, if it had any.
        costs: values, in the order of `archs`, of the costs in `limits` that are not in the rows of `scores`: MACs as
            papers count them, and predicted latency and throughput.
        timed_on: conditions of its latencies; empty if it does not use them.
        best: id of the best arch by accuracy; by default the first that reached the best accuracy.
        racing: setting of racing, or `rungs`.
        stopped: for each arch that was stopped early, the number of images that it was scored on.
        images: number of images of a whole score; None if it is not known yet.
    """

    name: str
    archs: Sequence[str]
    accuracy: Sequence[float | None]
    limits: Mapping[str, Bounds] = field(default_factory=dict)
    finished: bool = True
    timed: Timed | None = None
    front: Sequence[Row] = ()
    predicted: Predicted | None = None
    costs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    timed_on: str = ""
    best: str | None = None
    racing: str = "off"
    stopped: Sequence[int] = ()
    images: int | None = None

    def best_so_far(self) -> np.ndarray:
        """Return the best accuracy up to each evaluation, [n]; NaN before the first success."""
        return np.fmax.accumulate(np.array(self.accuracy, dtype=float))  # None is NaN

    def improvements(self) -> list[int]:
        """Return the places of the evaluations that were better than all before."""
        best = np.nan_to_num(self.best_so_far(), nan=-np.inf)
        return [int(place) for place in np.flatnonzero(best > np.concatenate([[-np.inf], best[:-1]]))]


@dataclass(frozen=True)
class Finished:
    """Networks of one architecture made in one way by one recipe, over all seeds.

    Attributes:
        label: `winner`, `reference`, or the arch's id.
        size: height and width of its images, if they are not the run's.
        rows: rows of `networks`, one for each seed; empty for inherited weights.
        tested: rows of `evaluations`, the newest for each network.
        folder: name of their folders, without seeds, if others differ from them in the recipe alone.
    """

    label: str
    how: str
    trained_on: str | None
    arch: str
    macs: int | None
    params: int | None
    size: tuple[int, int] | None = None
    rows: Sequence[Row] = ()
    tested: Sequence[Row] = ()
    folder: str | None = None

    @property
    def name(self) -> str:
        """Name in the report."""
        where = f" on {self.trained_on}" if self.trained_on not in (None, "train") else ""
        where += "" if self.size is None else f", {self.size[0]} x {self.size[1]} pixels"
        where += "" if self.folder is None else f" ({self.folder})"
        return f"{self.label}, {HOW.get(self.how, self.how)}{where}"

    def test_accuracy(self) -> tuple[float, float | None] | None:
        """Return mean top-1 on the test split and the half-width of its 95 % interval; None if it was not evaluated."""
        return mean_interval([row["accuracy"] for row in self.tested]) if self.tested else None


@dataclass(frozen=True)
class Tried:
    """Measurements so far of one trial of an experiment of space evolutions.

    Attributes:
        values: settings that differ from the preset, in words.
        folder: its run directory, relative to the experiment's.
        spaces: rows of its table `spaces`, in order.
        scores: rows of its table `space_scores`.
    """

    values: str
    folder: str
    spaces: Sequence[Row]
    scores: Sequence[Row]
    searched: Sequence[Row] = ()


@dataclass(frozen=True)
class Content:
    """The whole content of the page.

    Attributes:
        traces: courses of its searches, the main one first.
        searched: the best subnets of an evolution's spaces; see `raynas.outer.report_data.searched_spaces`.
        trials: measurements of each trial of an evolution of spaces.
    """

    run: str
    space: Space | None = None
    winner: Arch | None = None
    scores: Sequence[Row] = ()
    probes: Sequence[Row] = ()
    training: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    timings: Sequence[Row] = ()
    finished: Sequence[Finished] = ()
    traces: Sequence[Trace] = ()
    rankings: Sequence[Row] = ()
    phases: Sequence[Row] = ()
    spaces: Sequence[Row] = ()
    space_moves: Sequence[Row] = ()
    space_scores: Sequence[Row] = ()
    searched: Sequence[Row] = ()
    trials: Sequence[Tried] = ()
    tuning: Tuning | None = None
    sampled: Sampled | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    starts: Sequence[Row] = ()


def collect(run: Run) -> Content:
    """Read a run directory, all but what later layers know how to read: traces, searched, trials and tuning."""
    space = run.space if run.has_space or run.is_trained else None
    main = run.search()  # scores as it has them, or measured in any way if there is none
    scored = main.comparable_scores().values() if main.has_begun else run.scores().to_pylist()
    if run.about_start and not run.is_trained:  # of the model that is adapted, with its units in several orders
        scored = []
    networks = run.network_rows()
    there = {row["weights"] for row in networks}
    readings, evaluations = _rows(run, "evaluations"), []
    for row in readings:
        if not row["path"] or row["weights"] in there:
            evaluations.append(row)
        else:
            row["path"] += " (that network was deleted)"
    winner, reference = (run.arch(name) if run.has_arch(name) else None for name in ("best", "reference"))
    original = run.network("original").arch if run.about_start else None
    labels: dict[str, str] = {}
    for arch, label in ((original, "model"), (reference, "reference"), (winner, "winner")):
        if arch is not None:  # also by its own id: at another image size it can be another network
            labels |= {arch.id: label, arch.network_id: label}
    settings, starts = _settings(run)
    return Content(
        run=run.name,
        space=space,
        winner=winner,
        scores=[row for row in scored if row["status"] == "ok"],
        probes=_rows(run, "probes"),
        training=_rows(run, "training"),
        evaluations=readings,
        timings=_rows(run, "timings"),
        finished=_finished(networks, evaluations, labels, None if space is None else space.input_size),
        rankings=_rankings(run),
        phases=read_phases(run),
        spaces=_rows(run, "spaces"),
        space_moves=_rows(run, "space_moves"),
        space_scores=_rows(run, "space_scores"),
        sampled=sampled(run),
        settings=settings,
        starts=starts,
    )


def _finished(
    networks: list[Row], evaluations: list[Row], labels: dict[str, str], own_size: tuple[int, int] | None
) -> list[Finished]:
    newest = {(row["network"], row["how"], row["weights"]): row for row in evaluations}
    trained_on = {row["weights"]: row["trained_on"] for row in networks}

    def size_of(row: Row) -> tuple[int, int] | None:
        size = (row["height"], row["width"])
        return None if size in (own_size, (None, None)) else size

    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in networks:
        key = (row["network"], row["how"], row["trained_on"], size_of(row), _without_seed(row))
        groups.setdefault(key, {"rows": [], "tested": []})["rows"].append(row)
    for row in newest.values():
        key = (row["network"], row["how"], trained_on.get(row["weights"]), size_of(row), _without_seed(row))
        groups.setdefault(key, {"rows": [], "tested": []})["tested"].append(row)
    recipes = Counter(key[:-1] for key in groups)
    found = []
    for (network, how, trained, size, folder), group in groups.items():
        first = (group["rows"] or group["tested"])[0]
        label = labels.get(network) or labels.get(first["arch"]) or str(first["arch"])
        told = folder if recipes[network, how, trained, size] > 1 else None
        arch, macs, params = (first[name] for name in ("arch", "macs", "params"))
        found.append(Finished(label, how, trained, arch, macs, params, size, group["rows"], group["tested"], told))
    first = {name: place for place, name in enumerate(("winner", "reference", "model", *HOW))}
    return sorted(
        found,
        key=lambda f: (first.get(f.label, len(first)), f.label, first.get(f.how, len(first)), f.how, f.size or (0, 0)),
    )


def _without_seed(row: Row) -> str:
    """Return the name of a network's folder without its seed, equal for networks of one arch trained by one recipe."""
    return re.sub(rf"-{row['seed']}(?=-|$)", "", (row["path"] or "").rpartition("/")[2], count=1)


def _rows(run: Run, table: str) -> list[Row]:
    return run.store.read(table).to_pylist()


def _rankings(run: Run) -> list[Row]:
    """Return the rows of the newest ranking of each pair of quantities; a ranking need not have all pairs."""
    rows = _rows(run, "rankings")
    newest = {(row["x"], row["y"]): row["time"] for row in rows}  # rows are in the order of writing
    return [row for row in rows if row["time"] == newest[row["x"], row["y"]]]


def _settings(run: Run) -> tuple[dict[str, Any], list[Row]]:
    """Return settings by piece of work, and every start with the work's name; see `raynas.runs.settings.begin`."""
    settings: dict[str, Any] = {}
    starts: list[Row] = []
    names = [name for name in run.list() if name.endswith(".yaml")]
    names += [f"{run.search(name).work}.yaml" for name in sorted(run.searches())]
    for name in names:
        content = run.read_yaml(name)
        if {"settings", "starts"} <= content.keys():
            work = name.removesuffix(".yaml")
            settings[work] = content["settings"]
            starts += [{"work": work, **start} for start in content["starts"]]
    return settings, sorted(starts, key=lambda start: start["time"])

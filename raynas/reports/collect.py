"""What a report shows, read from the tables and files of a run directory. Whatever is not there yet is left empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raynas.comparison import mean_interval
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.space import Arch, Space

HOW = {
    "inherited": "inherited weights",
    "finetuned": "fine-tuned",
    "scratch": "retrained from scratch",
    "resized": "retrained, then fine-tuned",
}
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Timed:
    """What the best archs of a search by latency take.

    Attributes:
        about: what latency was predicted from, and how well.
        rows: best first: `arch`, `predicted_ms`, `ms`, `ms_q1`, `ms_q3`, `images_per_s`, and whether it `keeps` the
            search's limits.
    """

    about: str
    rows: Sequence[Row] = ()


@dataclass(frozen=True)
class Predicted:
    """How good the predictors of a search were.

    Attributes:
        tried: one row for each: `objective`, number of archs `fitted` and `held_out`, `kendall`, `by_macs`, `spearman`,
            `rmse`, `regret` (see `raynas.search.predictors.Quality`), and whether it was `used`.
        points: one row for each arch and objective that was predicted and measured: `of` what (`held out`, `proposed`),
            `arch`, `objective`, `predicted`, `measured`.
    """

    tried: Sequence[Row] = ()
    points: Sequence[Row] = ()


@dataclass(frozen=True)
class Trace:
    """What one search asked for, in its order.

    Attributes:
        name: `evolution`, `random`, ...
        archs: ids.
        accuracy: of each arch, 0 to 1; None where scoring it failed.
        limits: the search's bounds on what it goes by: the costs that it is limited in, and those that are objectives.
        finished: whether it had spent its budget.
        timed: what its best archs take, where it went by latency.
        front: `arch` and measured objectives of what it left as its front, where it had several objectives.
        predicted: how good its predictors were, where it had any.
        costs: of each arch, in order, those of the costs in `limits` that the rows of `scores` do not have: MACs as
            papers count them, and latency and throughput as predicted.
        timed_on: what its latencies hold for; empty where it does not go by them.
        best: id of the best arch by accuracy; the first that reached the best accuracy where left out.
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

    def best_so_far(self) -> np.ndarray:
        """The best accuracy up to each evaluation [n]; NaN before the first that did not fail."""
        values = np.array([np.nan if value is None else value for value in self.accuracy], dtype=float)
        return np.fmax.accumulate(values) if len(values) else values


@dataclass(frozen=True)
class Finished:
    """Networks of one architecture made in one way, over all seeds.

    Attributes:
        label: `winner`, `reference`, or the arch's id.
        size: height and width of its images, where they are not the run's.
        rows: the rows of `networks`, one for each seed; empty for inherited weights.
        tested: the rows of `evaluations`, the newest for each network.
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

    @property
    def name(self) -> str:
        """What the report calls it."""
        where = f" on {self.trained_on}" if self.trained_on not in (None, "train") else ""
        where += "" if self.size is None else f", {self.size[0]} x {self.size[1]} pixels"
        return f"{self.label}, {HOW.get(self.how, self.how)}{where}"

    def test_accuracy(self) -> tuple[float, float | None] | None:
        """Mean top-1 on the test split with the half-width of its 95 % interval; None if it was not evaluated."""
        return mean_interval([row["accuracy"] for row in self.tested]) if self.tested else None


@dataclass(frozen=True)
class Tried:
    """What one trial of several evolutions has measured so far.

    Attributes:
        values: what differs from the preset, in words.
        folder: its run directory, within the experiment's.
        spaces: the rows of its table `spaces`, in order.
        scores: of `space_scores`.
        searched: as `Content.searched`.
    """

    values: str
    folder: str
    spaces: Sequence[Row]
    scores: Sequence[Row]
    searched: Sequence[Row] = ()


@dataclass(frozen=True)
class Content:
    """Everything that the page shows.

    Of an evolution's spaces `searched` are the best subnets; see `raynas.outer.report_data.searched_spaces`.
    """

    run: str
    space: Space | None = None
    winner: Arch | None = None
    reference: Arch | None = None
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
    settings: dict[str, Any] = field(default_factory=dict)
    starts: Sequence[Row] = ()


def collect(
    run: Run, traces: Sequence[Trace] = (), searched: Sequence[Row] = (), trials: Sequence[Tried] = ()
) -> Content:
    """Read a run directory; see `raynas.reports.page.write_report`."""
    space = run.space if run.has_space or run.is_trained else None
    scores = [row for row in _scores(run) if row["status"] == "ok"]
    networks = run.network_rows()
    there = {row["weights"] for row in networks}
    readings, evaluations = _rows(run, "evaluations"), []
    for row in readings:
        if not row["path"] or row["weights"] in there:
            evaluations.append(row)
        else:
            row["path"] += " (that network was deleted)"
    winner, reference = (run.arch(name) if run.has_arch(name) else None for name in ("best", "reference"))
    labels: dict[str, str] = {}
    for arch, label in ((reference, "reference"), (winner, "winner")):
        if arch is not None:  # by its own id too: at another image size it can be another network
            labels |= {arch.id: label, arch.network_id: label}
    settings, starts = _settings(run)
    return Content(
        run=run.name,
        space=space,
        winner=winner,
        reference=reference,
        scores=scores,
        probes=_rows(run, "probes"),
        training=_rows(run, "training"),
        evaluations=readings,
        timings=_rows(run, "timings"),
        finished=_finished(networks, evaluations, labels, None if space is None else space.input_size),
        traces=traces,
        rankings=_rankings(run),
        phases=read_phases(run),
        spaces=_rows(run, "spaces"),
        space_moves=_rows(run, "space_moves"),
        space_scores=_rows(run, "space_scores"),
        searched=searched,
        trials=trials,
        settings=settings,
        starts=starts,
    )


def pareto(macs: np.ndarray, accuracy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points that no other beats in fewer MACs and higher accuracy, by ascending MACs."""
    order = np.lexsort((-accuracy, macs))
    best = np.maximum.accumulate(accuracy[order]) if len(order) else accuracy
    keep = np.r_[True, best[1:] > best[:-1]] if len(order) else np.zeros(0, bool)
    return macs[order][keep], accuracy[order][keep]


def _finished(
    networks: list[Row], evaluations: list[Row], labels: dict[str, str], own_size: tuple[int, int] | None
) -> list[Finished]:
    newest = {(row["network"], row["how"], row["weights"]): row for row in evaluations}
    trained_on = {row["weights"]: row["trained_on"] for row in networks}

    def size_of(row: Row) -> tuple[int, int] | None:
        size = (row["height"], row["width"])
        return None if size in (own_size, (None, None)) else size

    groups: dict[tuple[Any, Any, Any, Any], dict[str, list[Row]]] = {}
    for row in networks:
        key = (row["network"], row["how"], row["trained_on"], size_of(row))
        groups.setdefault(key, {"rows": [], "tested": []})["rows"].append(row)
    for row in newest.values():
        key = (row["network"], row["how"], trained_on.get(row["weights"]), size_of(row))
        groups.setdefault(key, {"rows": [], "tested": []})["tested"].append(row)
    found = []
    for (network, how, trained, size), group in groups.items():
        first = (group["rows"] or group["tested"])[0]
        label = labels.get(network) or labels.get(first["arch"]) or str(first["arch"])
        found.append(Finished(label, how, trained, first["arch"], first["macs"], first["params"], size, **group))
    first = {name: place for place, name in enumerate(("winner", "reference", *HOW))}
    return sorted(
        found,
        key=lambda f: (first.get(f.label, len(first)), f.label, first.get(f.how, len(first)), f.how, f.size or (0, 0)),
    )


def _rows(run: Run, table: str) -> list[Row]:
    return run.store.read(table).to_pylist()


def _rankings(run: Run) -> list[Row]:
    """Of every pair of quantities the rows of its newest ranking: a later one need not have measured them all."""
    rows = _rows(run, "rankings")
    newest = {(row["x"], row["y"]): row["time"] for row in rows}  # rows stand in the order of their writing
    return [row for row in rows if row["time"] == newest[row["x"], row["y"]]]


def _scores(run: Run) -> list[Row]:
    """One row for each arch, measured as the main search measures; any way of measuring where there is none."""
    main = run.search()
    return list(main.scores().values()) if main.has_begun else run.scores().to_pylist()


def _settings(run: Run) -> tuple[dict[str, Any], list[Row]]:
    """Settings by piece of work, and every start with the work's name, as `Run.begin` recorded them."""
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

"""Ranking quality of inherited weights: correlations with MACs, and with networks trained on their own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raynas.cluster.resources import Resources
from raynas.correlation import FEWEST, STATISTICS, correlations
from raynas.costs import sample_within, span
from raynas.errors import InfeasibleError, UserError, first_line, reason
from raynas.filesystem import open_location
from raynas.locations import hide_secrets
from raynas.phases.phase import phase
from raynas.phases.retrain import retrain
from raynas.phases.where import computing, for_short_work
from raynas.presets.preset import changed_recipe
from raynas.progress.reporter import Progress, reporter, silent
from raynas.proxies.scorer import ProxyScorer, check_proxy, proxy_images
from raynas.results.schemas import Row
from raynas.results.store import rows_by
from raynas.runs.run import Run
from raynas.space import Arch, Space
from raynas.training.recipe import Recipe

SEED = 0  # of the sample, the bootstrap and the training-free scores
FINETUNE_RATE = 0.1  # share of the recipe's learning rate, to refine inherited weights


@dataclass(frozen=True)
class Sample:
    """Archs to rank, grouped by equal ranges of MACs.

    Attributes:
        edges: bounds of the ranges in MACs, [buckets + 1].
        buckets: archs of each range, the cheapest range first.
    """

    edges: np.ndarray
    buckets: list[list[Arch]]

    def spread(self, n: int) -> list[Arch]:
        """Return n archs, as evenly from the buckets as possible."""
        rounds = max(len(bucket) for bucket in self.buckets)
        return [bucket[i] for i in range(rounds) for bucket in self.buckets if i < len(bucket)][:n]


def sample_by_budget(space: Space, n: int, buckets: int) -> Sample:
    """Return about n different archs, equally many from each of some equal ranges of MACs, drawn by dimension.

    A range with too few archs contributes all that were found. If all archs have the same MACs there is one range.

    Raises:
        UserError: n is smaller than the number of buckets, or the space has too few archs.
    """
    if not 1 <= buckets <= n:
        raise UserError(f"rank at least as many archs as there are buckets: {n} archs, {buckets} buckets")
    if (count := space.cardinality()) < FEWEST:
        there_are = "is 1 arch" if count == 1 else f"are {count} archs"
        raise UserError(f"there {there_are} in space {space.name}: nothing to rank, which takes at least {FEWEST}")
    low, high = span(space)["macs"]
    if low == high:
        buckets = 1
    edges = np.linspace(low, high, buckets + 1)
    each = n // buckets
    found: list[list[Arch]] = []
    known: set[Arch] = set()  # archs of earlier ranges, since two ranges share a bound
    for bucket in range(buckets):
        window = (float(edges[bucket]), float(edges[bucket + 1]))
        try:
            codes = sample_within(space, {"macs": window}, np.random.default_rng([SEED, bucket]), 4 * each)
        except InfeasibleError:  # no arch in this range
            codes = space.sample_codes(np.random.default_rng(0), 0)
        found.append([arch for arch in dict.fromkeys(space.decode(codes)) if arch not in known][:each])
        known.update(found[-1])
    return Sample(edges, found)


def read_truth(path: str | Path) -> pa.Table:
    """Read a Parquet table of networks trained on their own, with columns `network`, `values` and `accuracy`.

    `values` is the architecture as JSON; several rows of one network are several seeds. In columns `height` and
    `width` there may be the networks' image size, as in table `networks`.

    Raises:
        UserError: there is no such file, it lacks a column, or accuracies are no numbers.
    """
    filesystem, inside = open_location(str(path))
    path = hide_secrets(str(path))
    try:
        table = pq.read_table(inside, filesystem=filesystem)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {first_line(error)}") from error
    missing = [name for name in ("network", "values", "accuracy") if name not in table.column_names]
    if missing:
        raise UserError(f"{path} lacks the column {missing[0]!r}: a truth table has network, values and accuracy")
    kind = table.schema.field("accuracy").type
    if not pa.types.is_floating(kind):
        raise UserError(f"{path}: its accuracies are of type {kind}: a truth table has fractions between 0 and 1")
    if wrong := [each for each in table["accuracy"].to_pylist() if each is not None and not 0 <= each <= 1]:
        raise UserError(f"{path}: holds the accuracy {wrong[0]:g}: a truth table has fractions between 0 and 1")
    return table


def archs_of(table: pa.Table, space: Space, source: str | Path = "the table") -> list[Arch]:
    """Return the archs of a truth table, each once.

    Args:
        source: name of the table in messages.

    Raises:
        UserError: an arch is not of the space, is for other images, or is not given as JSON.
    """
    for name, own in zip(("height", "width"), space.input_size, strict=True):
        sizes = table[name].unique().to_pylist() if name in table.column_names else []
        if others := [size for size in sizes if size not in (own, None)]:
            raise UserError(
                f"{source} holds networks for images of {name} {others[0]}, and the run's are of {own} pixels: leave "
                "out their rows, because the same values are another network there"
            )
    values = dict.fromkeys(table["values"].to_pylist())
    try:
        return list(dict.fromkeys(space.arch(json.loads(each)) for each in values))
    except UserError as error:
        raise UserError(f"{source} holds networks of another space than the run's: {error}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{source}: its column 'values' must hold architectures as JSON: {reason(error)}") from error


def accuracies(table: pa.Table) -> dict[str, float]:
    """Return mean accuracy over seeds by network id, without networks that failed or were not measured."""
    return _by_network(table.select(["network", "accuracy"]).to_pylist())


def _by_network(rows: Sequence[Row]) -> dict[str, float]:
    measured = rows_by([row for row in rows if row["accuracy"] is not None], "network")
    return {network: float(np.mean([row["accuracy"] for row in each])) for network, each in measured.items()}


def train_alone(
    run: Run,
    archs: Sequence[Arch],
    recipe: Recipe,
    seeds: Sequence[int],
    finetune_epochs: int | None = None,
    parallel: int | None = None,
    progress: Progress = silent,
    resources: Resources | None = None,
) -> dict[str, dict[str, float]]:
    """Train networks on their own, from scratch and, if epochs are given, also from inherited weights.

    Networks that were trained before in this run are not trained again.

    Returns:
        Accuracies on the search split by network id: `{"scratch": ..., "finetuned": ...}`.
    """
    train = partial(
        retrain,
        seeds=seeds,
        train_on="train",
        parallel=parallel,
        progress=progress,
        purpose="ranking",
        resources=resources,
    )
    trained = {"scratch": train(run, archs, recipe, "scratch")}
    if finetune_epochs is not None:
        rate = recipe.lr * FINETUNE_RATE
        short = changed_recipe(
            recipe, {"epochs": finetune_epochs, "warmup_epochs": 0, "lr": rate}, ("retrain", "recipe")
        )
        trained["finetuned"] = train(run, archs, short, "finetuned")
    return {how: _by_network(rows) for how, rows in trained.items()}


def rank_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of a ranking as lines of text."""
    table = {"": ["networks", *STATISTICS]}
    for (x, y, bucket, low, high), group in rows_by(rows, "x", "y", "bucket", "low", "high").items():
        found = {row["statistic"]: row for row in group}
        where = "" if bucket is None else f", {low / 1e6:,.4g} to {high / 1e6:,.4g} M"
        table[f"{y} by {x}{where}"] = [
            f"{found['kendall']['networks']:,}",
            *(_cell(found[name]) for name in STATISTICS),
        ]
    width = max(map(len, table)) + 1
    return [
        f"{label:<{width}}{networks:>9}" + "".join(f"{cell:>26}" for cell in cells)
        for label, (networks, *cells) in table.items()
    ]


def _cell(row: Row) -> str:
    if row["value"] is None:
        return "too few" if row["networks"] < FEWEST else "all equal"
    return f"{row['value']:.3f} [{row['lower']:.3f}, {row['upper']:.3f}]"


def rank_run(
    run: Run,
    scorer: Any,
    recipe: Recipe,
    *,
    archs: int = 2000,
    buckets: int = 8,
    train: int = 0,
    finetune_epochs: int | None = None,
    seeds: Sequence[int] | None = None,
    truth: str | Path | None = None,
    proxies: Sequence[str] = (),
    parallel: int | None = None,
    progress: Progress = silent,
    resources: Resources | None = None,
) -> list[Row]:
    """Score a sample of a run's subnets, train some of them alone, and correlate; see `raynas.rank`.

    Args:
        scorer: a `ScorePool` or `LocalScorer` of this run, not entered, since trainings come first and need its CPUs.
        proxies: training-free scores to correlate as well, see `raynas.proxies.scorer.PROXIES`.
        parallel: number of trainings side by side; None for as many as there is room for.
    """
    if not train and (finetune_epochs is not None or seeds is not None):
        raise UserError("epochs of fine-tuning and seeds apply to networks trained alone: give their number (--train)")
    if train > archs:
        raise UserError(f"{train} networks cannot be trained out of {archs} that are scored: give as many --archs")
    space = run.space
    table = None if truth is None else read_truth(truth)
    sample = sample_by_budget(space, archs, buckets)
    found = sum(map(len, sample.buckets))
    if found < archs:
        progress(
            f"Ranking {found:,} subnets, not {archs:,}: each range of MACs gives equally many, or all that it has."
        )
    if train > found:
        progress(f"Training all {found:,} of them, not {train:,}.")
    for name in proxies:
        check_proxy(name)
    measured_elsewhere = [] if table is None else archs_of(table, space, truth or "the table")
    known: dict[str, Mapping[str, float]] = {} if table is None else {"truth": accuracies(table)}
    if train:
        alone, seeds = sample.spread(train), seeds or (0,)
        known |= train_alone(run, alone, recipe, seeds, finetune_epochs, parallel, progress, resources)
    asked = [*(arch for bucket in sample.buckets for arch in bucket), *measured_elsewhere]
    free = {name: training_free_scores(run, name, asked, resources, progress) for name in proxies}
    with scorer:
        return _correlate(run, scorer, sample, known, measured_elsewhere, free, progress)


def proxy_scorer(run: Run, name: str) -> ProxyScorer:
    """Return the scorer of a training-free score, on 64 images of the run's search split, or all if it has fewer.

    Raises:
        UserError: there is no such score, or the data cannot be loaded.
    """
    data, space = run.data(), run.space
    return ProxyScorer(space, name, proxy_images(space, data.search, data.normalisation), SEED)


def training_free_scores(
    run: Run, name: str, archs: Sequence[Arch], resources: Resources | None, progress: Progress
) -> dict[str, float]:
    """Return archs' training-free scores by network id; on a cluster a task with a replica's CPUs computes them."""
    place = None if resources is None else for_short_work(replace(resources, gpus=0, per_gpu=1))
    if place is None or not place.replicas:
        scores = proxy_scorer(run, name).score(archs, progress, name)
        return dict(zip((arch.network_id for arch in archs), scores, strict=True))
    asked = list(dict.fromkeys(archs))
    arguments = _score_each, run, name, asked
    with (
        reporter(progress).doing(name, len(asked), "archs scored") as activity,
        computing(*arguments, resources=place, progress=progress, activity=activity) as found,
    ):
        values = {}
        for arch in asked:
            values[arch.network_id] = next(found)
            activity.advance()
        return values


def _score_each(run: Run, name: str, archs: Sequence[Arch], device: str) -> Iterator[float]:
    """Yield archs' values, which are computed on CPUs."""
    scorer = proxy_scorer(run, name)
    for arch in archs:
        yield scorer.score([arch])[0]


def _correlate(
    run: Run,
    scorer: Any,
    sample: Sample,
    truth: Mapping[str, Mapping[str, float]],
    others: Sequence[Arch],
    free: Mapping[str, Mapping[str, float]],
    progress: Progress,
) -> list[Row]:
    """Score a sample and correlate the scores with MACs, and accuracies of the same networks with each other.

    Args:
        scorer: entered.
        truth: accuracies by kind of training and network id: `{"scratch": {...}}`.
        others: archs outside the sample that are scored only because they have a truth.
        free: training-free scores by name and network id.

    Returns:
        One row for each pair of quantities, statistic and bucket (`bucket` is None for all networks together, the only
        rows if there is one bucket); training-free scores and MACs only with accuracies. Intervals are 95 % percentile
        bootstrap intervals over networks.
    """
    replicas: int = getattr(scorer, "replicas", 0)  # only a pool has replicas; other scorers run in this process
    with phase(run, "ranking", "inherited", cluster=replicas > 0, progress=progress):
        sampled = [arch for bucket in sample.buckets for arch in bucket]
        scored = iter(scorer.score([*sampled, *others], progress, "ranking"))
        scores = [[next(scored) for _ in bucket] for bucket in sample.buckets]
        other_scores = list(scored)
    everything = [row for each in scores for row in each]
    if failed := [row for row in everything if row["accuracy"] is None]:
        told = f"{len(failed):,} of {len(everything):,} subnets could not be scored: {failed[0]['reason']}"
        if len(failed) == len(everything):
            raise UserError(f"{run.name}: {told}")
        progress(told)
    values: dict[str, Mapping[str, float]] = {"macs": {row["network"]: float(row["macs"]) for row in everything}}
    values |= free
    rng = np.random.default_rng(SEED)
    # Of their own, so that what else is asked for changes no interval.
    draws = {"macs": rng} | {name: np.random.default_rng([SEED, *name.encode()]) for name in free}
    rows: list[Row] = []
    overall = {"bucket": None, "low": float(sample.edges[0]), "high": float(sample.edges[-1])}
    ranges = zip(sample.edges[:-1].tolist(), sample.edges[1:].tolist(), strict=True)
    places = [{"bucket": i, "low": low, "high": high} for i, (low, high) in enumerate(ranges)]
    grouped = list(zip(places, scores, strict=True)) if len(scores) > 1 else []  # a single bucket equals the whole
    for place, measured in [*grouped, (overall, everything)]:
        good = [row for row in measured if row["accuracy"] is not None]
        for x, of in values.items():
            pairs = correlations([of[row["network"]] for row in good], [row["accuracy"] for row in good], draws[x])
            rows += [{"x": x, "y": "inherited", **place, **row} for row in pairs]
    # Only this call's scores: the run may hold others, on other images or in another precision.
    known = {"inherited": _by_network([*everything, *other_scores]), **truth}
    names = list(known)
    for i, x in enumerate(names):
        for y in names[i + 1 :]:
            both = sorted(set(known[x]) & set(known[y]))
            if x == "inherited" and not both:
                raise UserError(f"none of the networks of {y} was scored in {run.name}: are they of its space?")
            found = correlations([known[x][name] for name in both], [known[y][name] for name in both], rng)
            rows += [{"x": x, "y": y, **overall, **row} for row in found]
    for x in free:
        for y, measured_alone in truth.items():
            both = sorted(set(values[x]) & set(measured_alone))
            pairs = correlations([values[x][name] for name in both], [measured_alone[name] for name in both], draws[x])
            rows += [{"x": x, "y": y, **overall, **row} for row in pairs]
    stored = [{**row, "space": scorer.space.fingerprint, "seed": SEED} for row in rows]
    if run.store.read("rankings", list(stored[0])).to_pylist()[-len(stored) :] != stored:  # of a command given again
        run.store.append("rankings", stored)
    return rows

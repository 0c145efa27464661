"""Measures of a run: what an ablation shows of it and a tuning goes by, and the phases that they need."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from raynas.cluster.connection import on_cluster
from raynas.cluster.resources import Resources
from raynas.costs import COSTS, cost, span
from raynas.energy import counters
from raynas.errors import UserError
from raynas.phases.evaluate import evaluate
from raynas.phases.network_training import NetworkTraining
from raynas.phases.phase import phase
from raynas.phases.pipeline import finetune_winner, retrain_with_reference
from raynas.phases.preflight import preflight
from raynas.phases.rank import accuracies, archs_of, read_truth
from raynas.phases.search import make_scorer, search_fully
from raynas.phases.train import train
from raynas.phases.training_record import WHAT
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.runs.searches import MAIN, Scoring
from raynas.search.config import SearchConfig
from raynas.space import Space
from raynas.text import nearest, shown

Needs = Literal["train", "search", "rank", "test", "retrain", "evaluate"]
"""Phases: `test` is the evaluation of the search's winner with inherited weights, `evaluate` that of retrained ones."""

SEARCHES = {"search", "test", "retrain", "evaluate"}
RETRAINS = {"retrain", "evaluate"}
"""Those that need a search, or a retraining."""

TRAINING = ("space", "fix", "data", "plan", "recipe", "calibration")
"""The parts of a preset that a supernet and the scores of its subnets depend on."""


@dataclass(frozen=True)
class Measured:
    """A run as a preset describes it, to be measured.

    Attributes:
        preset: the preset; it differs from the run's in what the run holds several of.
        retraining: name of the retraining, if the run holds several of one winner.
        truth: Parquet table of networks trained on their own (see `raynas.phases.rank.read_truth`).
    """

    run: Run
    preset: Preset
    search: str = MAIN
    retraining: str | None = None
    truth: str | None = None

    def networks(self) -> list[Network]:
        """Return the retrained winner, once for each seed; fine-tuned at another image size if the preset says so."""
        names = [trainings[-1].network.path for trainings in self.trainings()]
        found = {network.path: network for network in self.run.networks()}
        if missing := [name for name in names if name not in found]:
            raise UserError(f"{self.run.name} has no {missing[0]}: the winner is not retrained yet")
        return [found[name] for name in names]

    def trainings(self) -> list[list[NetworkTraining]]:
        """Return the trainings of the winner for each seed: alone, then at another image size if the preset says so."""
        retraining, winner = self.preset.retrain, self.run.search(self.search).winner
        start = Network(winner, "inherited") if retraining.start == "inherited" else None
        found = []
        for seed in retraining.seeds:
            recipe = self.preset.retrain_recipe.model_copy(update={"seed": seed})
            alone = NetworkTraining(
                winner, recipe, self.run.data_config, retraining.train_on, "", start, name=self.retraining
            )
            found.append([alone])
            if retraining.finetune is not None:
                found[-1].append(replace(alone, start=alone.network, size=retraining.finetune.size, name=None))
        return found


@dataclass(frozen=True)
class Measure:
    """A number that a run is asked for.

    Attributes:
        text: what it is, for the head of a table.
        unit: `%` (a fraction, shown in percent), `s`, `bytes`, `J`, or empty.
        needs: the last phase that it needs; those before it are needed, too.
        tuned: True if it can be the objective of a tuning.
        of: returns the number, NaN if it is not known.
    """

    name: str
    text: str
    unit: Literal["%", "s", "bytes", "J", ""]
    better: Literal["max", "min"]
    needs: Needs
    tuned: bool
    of: Callable[[Measured], float]


def _probes(of: Measured) -> float:
    return float(np.mean(list(_last_probes(of).values())))


def _last_probes(of: Measured) -> dict[str, float]:
    """Return the accuracies of the probes at the last epoch, by role."""
    rows = of.run.store.read("probes", ["epoch", "role", "accuracy"]).to_pylist()
    last = max(row["epoch"] for row in rows)
    return {row["role"]: row["accuracy"] for row in rows if row["epoch"] == last}


def _searched(of: Measured) -> float:
    found = of.run.search(of.search)
    return float(found.comparable_scores()[found.winner.id]["accuracy"])


def _hypervolume(of: Measured) -> float:
    """Return the share of all errors and costs that are beaten by some network that the search scored.

    Errors are those from 0 to 1; for costs see `cost_limit`.
    """
    from pymoo.indicators.hv import HV  # slow import

    stored = of.run.search(of.search)
    name, limit = cost_limit(stored.settings.search, of.run.space)
    scores = stored.comparable_scores()
    told = [each.arch for each in stored.read_back()[0].history if each.stopped is None]
    archs = [arch for arch in told if scores[arch.id]["accuracy"] is not None]
    errors = np.array([1 - scores[arch.id]["accuracy"] for arch in archs])
    costs = cost(of.run.space, archs)[name] / limit
    return float(HV(ref_point=np.ones(2))(np.stack([errors, costs], axis=1)[costs <= 1]))


def cost_limit(search: SearchConfig, space: Space) -> tuple[str, float]:
    """Return the cost of a search's hypervolume and its limit: the upper one of the search, else the space's most MACs.

    Of several limits the first counts.
    """
    limits = {name: high for name, (_, high) in search.constraints.items() if name in COSTS and high is not None}
    return next(iter(limits.items()), ("macs", float(span(space)["macs"][1])))


def check_limits(limits: Collection[tuple[str, float]]) -> None:
    """Refuse to compare hypervolumes up to different limits, see `cost_limit`."""
    if len(different := sorted(set(limits))) > 1:
        told = " and ".join(f"{limit:,.0f} {name}" for name, limit in different[:2])
        raise UserError(
            f"hypervolume is compared up to one limit, not up to {told}: give all the same upper limit in "
            "search.constraints, or leave it out"
        )


def _retrained(of: Measured) -> float:
    rows = {row["path"]: row for row in of.run.network_rows()}
    return float(np.mean([rows[network.path]["accuracy"] for network in of.networks()]))


def _inherited(of: Measured) -> float:
    winner = of.run.search(of.search).winner
    rows = [row for row in of.run.store.read("evaluations").to_pylist() if row["how"] == "inherited"]
    return float(next(row["accuracy"] for row in reversed(rows) if row["arch"] == winner.id))


def _tested(of: Measured) -> float:
    rows = {row["path"]: row for row in of.run.store.read("evaluations").to_pylist()}
    return float(np.mean([rows[network.path]["accuracy"] for network in of.networks()]))


def _tau(of: Measured) -> float:
    from scipy import stats  # slow import

    truth = accuracies(read_truth(str(of.truth)))
    scored = accuracies(of.run.scores())
    both = sorted(truth.keys() & scored.keys())
    return float(stats.kendalltau([scored[name] for name in both], [truth[name] for name in both]).statistic)


def _conflict(of: Measured) -> float:
    """Return the mean over epochs of the share of layers and steps in which gradients conflict."""
    return float(np.mean([row["conflict"] for row in _epochs(of, "conflict")]))


def _memory(of: Measured) -> float:
    return float(max((row["memory"] for row in _epochs(of, "memory")), default=math.nan))


def _epochs(of: Measured, column: str) -> list[Row]:
    known = (pc.field("what") == WHAT) & pc.field(column).is_valid()
    return of.run.store.read("training", [column], known).to_pylist()


def _seconds(of: Measured) -> float:
    return float(sum(row["seconds"] for row in _attempts(of)))


def _energy(of: Measured) -> float:
    known = [row["joules"] for row in _attempts(of)]
    return math.nan if not known or None in known else float(sum(known))


def _attempts(of: Measured) -> list[Row]:
    """Return the attempts of the phases that led to the run's results.

    Without those of other searches and their winners, which a run directory may hold, too, and without rankings.
    """
    retraining = "scratch" if of.preset.retrain.start == "scratch" else "finetuned"
    ways = [way if of.retraining is None else f"{way}-{of.retraining}" for way in (retraining, "resized")]
    names: dict[str, list[str | None]] = {
        "supernet": [None],
        "timing": [] if of.preset.search.latency is None else [None],
        "search": [of.search],
        "retraining": [*ways],
    }
    own, rows = _networks(of), [row for row in read_phases(of.run) if row["name"] in names.get(row["phase"], ())]
    # Rows of earlier versions do not name the networks.
    return [row for row in rows if row["phase"] != "retraining" or own & set(row["networks"] or own)]


def _networks(of: Measured) -> set[str]:
    """Return the names of the retrained winner's networks; none before there is a winner."""
    if not of.run.exists(of.run.search(of.search).winner_file):
        return set()
    return {each.network.name for trainings in of.trainings() for each in trainings}


MEASURES: dict[str, Measure] = {
    each.name: each
    for each in (
        Measure("probes", "mean of the probes", "%", "max", "train", True, _probes),
        Measure("smallest", "smallest subnet", "%", "max", "train", True, lambda of: _last_probes(of)["smallest"]),
        Measure("largest", "largest subnet", "%", "max", "train", True, lambda of: _last_probes(of)["largest"]),
        Measure("searched", "winner, inherited weights", "%", "max", "search", True, _searched),
        Measure("hypervolume", "hypervolume of the search", "%", "max", "search", True, _hypervolume),
        Measure("retrained", "winner, retrained", "%", "max", "retrain", True, _retrained),
        Measure("inherited", "winner, inherited weights, test split", "%", "max", "test", False, _inherited),
        Measure("tested", "winner, retrained, test split", "%", "max", "evaluate", False, _tested),
        Measure("tau", "Kendall's tau", "", "max", "rank", True, _tau),
        Measure("conflict", "conflict ratio", "%", "min", "train", True, _conflict),
        Measure("seconds", "time", "s", "min", "train", True, _seconds),
        Measure("memory", "peak memory", "bytes", "min", "train", True, _memory),
        Measure("energy", "energy", "J", "min", "train", True, _energy),
    )
}
"""The measures by name.

Time and energy are those of the trainings and the search that the other measures asked for need. Scoring the networks
of a truth table and reading the test split are not in them.
"""


def unknown_measure(name: str, tuned: bool = False) -> str:
    """Return the message for a name that is no measure, or none that a tuning can go by."""
    known = [each.name for each in MEASURES.values() if each.tuned or not tuned]
    return f"no measure {shown(name)}{nearest(name, known)}"


def check_measures(names: Collection[str], preset: Preset, truth: str | None = None, tuned: bool = False) -> None:
    """Refuse measures that a preset does not provide.

    Args:
        tuned: the measures are the objectives of a tuning.

    Raises:
        UserError: a name is unknown, or the preset lacks what a measure needs; the message says what to set.
    """
    for name in names:
        measure = MEASURES.get(name)
        if measure is None:
            raise UserError(unknown_measure(name, tuned))
        if tuned and not measure.tuned:
            raise UserError(
                f"{name} is no objective: the test split is for reporting alone; tune by retrained, which is measured "
                "on the search split"
            )
        if name == "retrained" and preset.retrain.train_on != "train":
            raise UserError(
                "retrained is measured on the search split, which the winner must not be trained on: set "
                "retrain.train_on: train"
            )
        if name == "conflict" and preset.recipe.health.conflict is None:
            raise UserError("conflict is measured in training: set recipe.health.conflict, such as {steps: 2}")
        if name == "tau" and truth is None:
            raise UserError("tau needs a table of networks trained on their own: give truth, a Parquet file")


def check_energy(at_a_time: int | None, progress: Progress) -> None:
    """Refuse to measure energy where nothing counts it, as far as that is known here.

    Args:
        at_a_time: trials side by side.
        progress: called with a line if these may count each other's energy.
    """
    reading = counters.read_counters(counters.POWERCAP, counters.GPUS)
    if not on_cluster() and not reading.counters:
        raise UserError(f"energy cannot be measured on this machine ({'; '.join(reading.unread)}): leave it out")
    if at_a_time != 1:
        progress(
            "note: energy is that of whole machines, so that trials side by side on one count each other's: compare it "
            "with --at-a-time 1 (at_a_time) alone"
        )


def carry_out(
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    names: Collection[str],
    resources: Resources,
    progress: Progress = silent,
    after_epoch: Callable[[int, float], None] = lambda epoch, accuracy: None,
    *,
    search: str = MAIN,
    retraining: str | None = None,
    truth: str | None = None,
) -> dict[str, float]:
    """Carry a preset out as far as some measures need, or go on with it, and return them.

    They are fractions between 0 and 1, seconds, bytes or joules. What is done is not done again: a killed call is
    resumed by the same one.

    Args:
        preset: with data, whose images are not looked at once more (see `preflight`).
        run_dir: a run directory; calls with presets of equal training can share it.
        resources: workers and replicas; without them this process does everything.
        after_epoch: see `raynas.phases.train.train`; what it raises ends the training.
        search: name of the search; presets that share a run directory and differ in their search need one each.
        retraining: name of the retraining, for presets that share the search, too.
        truth: the truth table, for `tau`.

    Raises:
        UserError: the preset cannot be carried out, or does not provide a measure.
    """
    check_measures(names, preset, truth)
    needs = {MEASURES[name].needs for name in names}
    run = Run(run_dir, create=True)
    with run.lock():
        ready = preflight(preset, resources, run, look=False)
        train(ready, run, progress, after_epoch=after_epoch)
        of = Measured(run, ready.preset, search, retraining, truth)
        if "rank" in needs:
            _score_truth(of, resources, progress)
        if needs & SEARCHES:
            _search(of, resources, progress)
        if "test" in needs:
            winner = Network(run.search(search).winner, "inherited")
            evaluate(run, [winner], progress=progress, resources=resources)
        if needs & RETRAINS:
            _retrain(of, resources, progress)
        if "evaluate" in needs:
            evaluate(run, of.networks(), progress=progress, resources=resources)
        return {name: MEASURES[name].of(of) for name in names}


def _score_truth(of: Measured, resources: Resources, progress: Progress) -> None:
    archs = archs_of(read_truth(str(of.truth)), of.run.space, str(of.truth))
    known = set(of.run.scores()["arch"].to_pylist())
    if missing := [arch for arch in archs if arch.id not in known]:
        attempt = phase(of.run, "ranking", "inherited", cluster=resources.replicas > 0, progress=progress)
        with make_scorer(of.run, Scoring(), resources) as scorer, attempt:
            scorer.score(missing, progress, "scoring the networks of the truth table")


def _search(of: Measured, resources: Resources, progress: Progress) -> None:
    stored, config = of.run.search(of.search), of.preset.search
    ended = stored.has_begun and stored.settings.search == config and stored.has_ended()
    if not (ended and of.run.exists(stored.winner_file)):
        search_fully(of.run, config, resources, name=of.search, progress=progress)


def _retrain(of: Measured, resources: Resources, progress: Progress) -> None:
    winner = of.run.search(of.search).winner
    trained = retrain_with_reference(of.run, of.preset, winner, None, progress, resources, of.retraining)
    finetune_winner(of.run, of.preset, trained, progress, resources, of.retraining)

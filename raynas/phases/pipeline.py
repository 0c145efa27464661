"""Everything in one resumable function: train, search, retrain, evaluate, export, report.

Each stage knows from the run directory what it has done. Killed at any moment and called again with the same arguments,
the pipeline goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from raynas.cluster.connection import ray_cluster
from raynas.costs import cost, scale_to_macs
from raynas.errors import UserError
from raynas.phases.preflight import check_later, check_training, reference_shape
from raynas.phases.report_data import traces
from raynas.phases.search import (
    BASELINE,
    baseline,
    choose_winner,
    make_scorer,
    search,
    time_space,
)
from raynas.presets.preset import Preset
from raynas.progress.heartbeat import Heartbeat, heartbeat
from raynas.reports.lines import describe_cost, finished_lines
from raynas.reports.page import write_report
from raynas.runs.networks import Network
from raynas.runs.run import MAIN, Run
from raynas.runs.searches import SearchSettings, make_search, predictor_of
from raynas.space import Arch, Space
from raynas.space.counting import shown_count

STAGES = 6


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline leaves.

    Attributes:
        run: its run directory.
        winner: the best arch.
        evaluations: rows of the finished networks on the test split.
        exported: the folder of the exported winner.
        report: path or URI of the page.
    """

    run: Run
    winner: Arch
    evaluations: list[dict[str, Any]]
    exported: str
    report: str


def pipeline(
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    workers: int = 1,
    replicas: int = 2,
    gpus: int = 0,
    say: Callable[[str], None] = print,
) -> PipelineResult:
    """Carry out a whole procedure, or go on with it.

    Args:
        preset: the procedure; its data must be named.
        run_dir: a path or a pyarrow filesystem URI.
        workers: Ray Train workers of the supernet's training; 0 trains the supernet and the found networks in this
            process.
        replicas: Ray actors that score; 0 scores in this process. With neither, Ray is not started.
        gpus: GPUs of one worker and of one replica: 0 or 1.
        say: called with the lines of the story.

    Raises:
        UserError: what the user can mend: settings, data, an impossible budget, a busy or foreign run directory.
    """
    for name, value in (("workers", workers), ("replicas", replicas)):
        if value < 0:
            raise UserError(f"{name} must be at least 0, not {value}")
    parallel = None if workers else 1
    run = Run(run_dir, create=True)
    if not run.is_bound("train"):  # before Ray starts
        from raynas.phases.images import check_images

        check_images(preset, say)
    cluster = ray_cluster(cpus=max(workers, replicas)) if workers or replicas else nullcontext()
    with run.lock(), heartbeat("starting") as beat, cluster:
        from raynas.phases.evaluate import evaluate  # torch takes its time: the heartbeat tells of it
        from raynas.phases.export import choose_network, export_into_run

        story = _Story(run, beat, say)
        beat.doing = "checking what comes later"
        settings = _check_all_stages(preset, run, workers, story.tell)
        with story.stage(1, "Training the supernet", "all candidate networks at once, sharing one set of weights"):
            _train(preset, run, workers, gpus, say)
        space, limits = run.space, preset.search.constraints
        budget = ", ".join(f"{name} {_bounds(bounds)}" for name, bounds in limits.items()) or "no limit"
        story.tell(f"The space holds {shown_count(space.cardinality())} networks. Budget: {budget}.")
        # Where both have ended, all is answered from rows, without actors.
        ended = all(run.search(name).has_ended() for name in (MAIN, BASELINE))
        with make_scorer(run, settings, 0 if ended else replicas, gpus) as scorer:
            with story.stage(
                2, f"Searching ({preset.search.name})", "scoring candidates with the weights they inherit"
            ):
                main = search(run, settings, scorer, MAIN, story.tell)
                spent = main.evaluations
            with story.stage(3, "Random search", f"the baseline, at the same budget of {spent} networks"):
                random = settings.model_copy(update={"search": baseline(preset.search, spent)})
                baseline_search = search(run, random, scorer, BASELINE, story.tell)
        choose_winner(run, settings, main, MAIN, story.tell)
        choose_winner(run, random, baseline_search, BASELINE, story.tell)
        winner = run.arch("best")
        story.tell(f"The winner is {winner.id}: {describe_cost(winner)}.")
        beside = "" if preset.reference is None else ", and the hand-designed reference beside it"
        with story.stage(4, "Retraining the winner", f"on its own{beside}"):
            reference = make_reference(run, preset, winner, space)
            retrained = retrain_with_reference(run, preset, winner, reference, story.tell, parallel)
            finetune_winner(run, preset, retrained, story.tell, parallel)
        with story.stage(5, "Evaluating", "on the test split, which nothing has seen so far"):
            networks = [Network(winner, "inherited"), *run.networks()]
            evaluations = evaluate(run, networks, progress=lambda line: None)
            for line in finished_lines(run):
                story.tell(line)
        with story.stage(6, "Exporting and writing the report"):
            size = None if preset.retrain.finetune is None else preset.retrain.finetune.size
            exported = export_into_run(run, choose_network(run.networks(), winner, size), progress=story.tell)
        report = write_report(run, traces(run))  # now that the last stage's duration is a row
        return PipelineResult(run, winner, evaluations, exported, report)


def make_reference(run: Run, preset: Preset, winner: Arch, space: Space) -> Arch | None:
    """The preset's hand-designed arch with its widths scaled to the winner's MACs; None where it names none.

    It is the run's arch `reference` from then on.
    """
    if preset.reference is None:
        return None
    shape, own = reference_shape(preset.reference, space)
    reference = scale_to_macs(own, shape, macs=int(cost(winner.space, [winner])["macs"][0]))
    run.write_arch("reference", reference)
    return reference


def _check_all_stages(preset: Preset, run: Run, workers: int, say: Callable[[str], None]) -> SearchSettings:
    """What is wrong with any stage is told before the long training, not after it.

    Subnets are timed now, too, where the search goes by latency: whether anything keeps its limits is then known.

    Returns:
        The search's settings.
    """
    from raynas.phases.inputs import load_inputs

    if run.is_bound("train"):
        space = run.space
    else:
        space, data = load_inputs(preset)
        check_training(preset, space, data, workers)
    check_later(preset, space, note=lambda line: None)  # a search that cannot be made here is an error: see below
    settings = time_space(run, SearchSettings(search=preset.search), progress=say, space=space)
    make_search(space, settings, predictor_of(space, settings, run.store))
    return settings


def _train(preset: Preset, run: Run, workers: int, gpus: int, say: Callable[[str], None]) -> None:
    from raynas.phases.train import train

    train(preset, run_dir=run, workers=workers, use_gpu=gpus > 0, progress=lambda line: say(f"  {line.strip()}"))


def retrain_with_reference(
    run: Run,
    preset: Preset,
    winner: Arch,
    reference: Arch | None,
    say: Callable[[str], None],
    parallel: int | None = None,
) -> list[Network]:
    """Train the winner as the preset says, and the reference from scratch.

    A winner that is fine-tuned has most of its training behind it, in the supernet. The reference inherits nothing: a
    recipe for fine-tuning would leave it untrained, so it gets the whole recipe that the winner's weights come from.

    Returns:
        The winner's networks, one for each seed.
    """
    from raynas.phases.retrain import retrain

    seeds, train_on = preset.retrain.seeds, preset.retrain.train_on
    labels = {winner.id: "winner", **({} if reference is None else {reference.id: "reference"})}
    train = partial(retrain, run, seeds=seeds, train_on=train_on, parallel=parallel, progress=say, labels=labels)
    references = [] if reference is None else [reference]
    if preset.retrain.start == "scratch":
        rows = train([winner, *references], preset.retrain_recipe, "scratch")[: len(seeds)]
    else:
        rows = train([winner], preset.retrain_recipe, "finetuned")
        train(references, preset.recipe, "scratch")
    paths = [row["path"] for row in rows]
    return [network for network in run.networks() if network.path in paths]


def finetune_winner(
    run: Run,
    preset: Preset,
    retrained: Sequence[Network],
    say: Callable[[str], None],
    parallel: int | None = None,
) -> None:
    """Fine-tune the retrained winner at another image size, where the preset says so."""
    from raynas.phases.retrain import finetune_resized

    finetune = preset.retrain.finetune
    if finetune is not None:
        labels = {network.arch.id: "winner" for network in retrained}
        finetune_resized(run, retrained, preset.finetune_recipe, finetune.size, parallel, say, labels)


class _Story:
    """Headings, durations and results, in words for someone who sees them for the first time."""

    def __init__(self, run: Run, beat: Heartbeat, say: Callable[[str], None]):
        self._run = run
        self._beat = beat
        self._say = say

    def tell(self, line: str) -> None:
        self._say(f"  {line}")

    @contextmanager
    def stage(self, number: int, heading: str, explanation: str = "") -> Iterator[None]:
        self._say(f"\n[{number}/{STAGES}] {heading}{f': {explanation}' if explanation else ''}")
        self._beat.doing = heading[0].lower() + heading[1:]
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self._beat.doing = ""
        self._run.store.append("timings", [{"what": heading, "seconds": seconds, "count": 1}])
        self._say(f"  done in {seconds:.0f} s")


def _bounds(bounds: tuple[float | None, float | None]) -> str:
    low, high = bounds
    parts = ["" if low is None else f"at least {_amount(low)}", "" if high is None else f"at most {_amount(high)}"]
    return " and ".join(part for part in parts if part) or "unlimited"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"

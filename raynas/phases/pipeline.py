"""Everything in one resumable function: train, search, retrain, evaluate, export, report.

The state of each stage is in the run directory: killed at any moment and called again with the same arguments, the
pipeline resumes where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raynas.cluster.connection import ray_cluster
from raynas.cluster.resources import Resources
from raynas.costs import cost, scale_to_macs
from raynas.phases.evaluate import evaluate
from raynas.phases.export import choose_network, export_into_run
from raynas.phases.preflight import Ready, preflight, reference_shape
from raynas.phases.recipes import recipe_of
from raynas.phases.report_data import traces
from raynas.phases.retrain import finetune_resized, retrain
from raynas.phases.search import BASELINE, choose_winner, make_scorer, prepare, search
from raynas.phases.train import train
from raynas.phases.where import for_short_work, placed
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, Reporter, reporter, silent
from raynas.quantities import bounds_text
from raynas.reports.adapting import adapting_lines
from raynas.reports.collect import collect
from raynas.reports.lines import describe_cost, finished_lines
from raynas.reports.page import write_report
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.runs.searches import MAIN, SearchSettings
from raynas.runs.settings import is_bound
from raynas.space import Arch, Space
from raynas.space.counting import shown_count


@dataclass(frozen=True)
class PipelineResult:
    """Result of a pipeline.

    Attributes:
        run: the run directory.
        winner: the best arch.
        evaluations: rows of the finished networks on the test split.
        exported: folder of the exported winner.
        report: path or URI of the HTML page.
    """

    run: Run
    winner: Arch
    evaluations: list[dict[str, Any]]
    exported: str
    report: str


class Stages:
    """The stages of a pipeline: each is shown, explained for a first-time user, and its duration recorded."""

    def __init__(self, run: Run, progress: Reporter, count: int):
        self._run, self._progress, self._count, self._number = run, progress, count, 0

    @contextmanager
    def __call__(self, heading: str, explanation: str = "") -> Iterator[None]:
        """Show the block as the next stage."""
        self._number += 1
        told = f": {explanation}" if explanation else ""
        self._progress(f"\n[{self._number}/{self._count}] {heading}{told}")
        began = time.monotonic()
        with self._progress.indented(), self._progress.doing(heading[0].lower() + heading[1:]):
            yield
        seconds = time.monotonic() - began
        self._run.store.append("timings", [{"what": heading, "seconds": seconds, "count": 1}])
        self._progress(f"  done in {seconds:.0f} s")


@dataclass(frozen=True)
class Start:
    """A beginning of a pipeline with trained weights.

    Attributes:
        make: carries them out with the resources of short work, and returns the preset as it is to be trained, with
            its teachers, and the file of weights in the run directory.
        archs: archs that are scored beside the search.
    """

    stages: int
    make: Callable[[Stages, Resources], tuple[Ready, str]]
    archs: Sequence[Arch] = ()


def pipeline(
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    progress: Progress = silent,
) -> PipelineResult:
    """Carry out a whole preset, whose data must be named, or go on with it; see `raynas.pipeline`."""
    progress = reporter(progress)
    with progress.doing("checking all stages"):
        checked = preflight(preset, resources, run_dir, progress, retrained=True)
    return carry_out(checked, Run(run_dir, create=True), progress)


def carry_out(checked: Ready, run: Run, progress: Reporter, start: Start | None = None) -> PipelineResult:
    """Carry out a preset that was checked with its later stages, or go on with it.

    Args:
        start: makes the weights that training begins with; None for random ones, and a random search for comparison.
    """
    preset, resources = checked.preset, checked.resources
    cluster = partial(ray_cluster, int(resources.together["CPU"]), progress)
    with run.lock(), progress.doing("starting"), ExitStack() as ray:
        # This process trains the supernet before Ray starts, unless replicas score a sample before that.
        if placed(resources).workers or (resources.replicas and start is not None):
            ray.enter_context(cluster())
        stage = Stages(run, progress, 6 if start is None else 5 + start.stages)
        # One machine trains networks side by side, with a worker each, and does here what is short.
        later = for_short_work(resources)
        # Subnets are timed before training, so that an infeasible limit on latency is refused in time.
        space = None if is_bound(run, "train") else checked.space
        ready = prepare(run, SearchSettings(search=preset.search), progress=progress, space=space)
        ready.stored.begin(ready.settings, check=True)  # before the preset is written, which other commands go by
        init = None
        if start is not None:
            checked, init = start.make(stage, later)
            preset = checked.preset
        with stage("Training the supernet", "all candidate networks at once, sharing one set of weights"):
            train(checked, run, progress, init)
        space, limits = run.space, preset.search.constraints
        budget = ", ".join(filter(None, (bounds_text(*limit) for limit in limits.items()))) or "no limit"
        progress(f"  The space holds {shown_count(space.cardinality())} networks. Budget: {budget}.")
        searches = [ready]
        # If all have ended, all results come from rows, without actors.
        names = [MAIN, BASELINE] if start is None else [MAIN]
        ended = all(run.search(name).has_ended() for name in names)
        if resources.replicas and not ended:
            ray.enter_context(cluster())  # once, for searches and retraining; one that is connected stays as it is
        with make_scorer(run, ready.settings.scoring, replace(resources, replicas=0) if ended else resources) as scorer:
            with stage(f"Searching ({preset.search.name})", "scoring candidates with the weights they inherit"):
                found = [search(ready, scorer, progress)]
                if start is not None:
                    scorer.score(start.archs, progress, "scoring the sample again")
                    for line in adapting_lines(run):
                        progress(line)
            if start is None:
                spent = found[0].evaluations
                with stage("Random search", f"the baseline, at the same budget of {spent} networks"):
                    searches.append(ready.random(spent))
                    found.append(search(searches[1], scorer, progress))
        with progress.indented():
            for each, finished in zip(searches, found, strict=True):
                choose_winner(each, finished, progress)
        winner = run.arch("best")
        progress(f"  The winner is {winner.id}: {describe_cost(winner)}.")
        also = "" if preset.reference is None else ", and the hand-designed reference beside it"
        with stage("Retraining the winner", f"on its own{also}"):
            reference = make_reference(run, preset, winner, space)
            retrained = retrain_with_reference(run, preset, winner, reference, progress, later)
            finetune_winner(run, preset, retrained, progress, later)
        with stage("Evaluating", "on the test split, which nothing has seen so far"):
            networks = [Network(winner, "inherited"), *run.networks()]
            evaluations = evaluate(run, networks, progress=progress, resources=later)
            for line in finished_lines(run):
                progress(line)
        with stage("Exporting and writing the report"):
            size = None if preset.retrain.finetune is None else preset.retrain.finetune.size
            exported = export_into_run(run, choose_network(run.networks(), winner, size), None, progress, later)
        with progress.doing("writing the report"):
            content = replace(collect(run), traces=traces(run))  # after the last stage, to include its duration
            report = write_report(run, content)
        return PipelineResult(run, winner, evaluations, exported, report)


def make_reference(run: Run, preset: Preset, winner: Arch, space: Space) -> Arch | None:
    """Return the preset's hand-designed arch with its widths scaled to the winner's MACs, or None if it names none.

    It is written as the run's arch `reference`.
    """
    if preset.reference is None:
        return None
    shape = reference_shape(preset.reference, space)
    reference = scale_to_macs(shape.space, shape, macs=int(cost(winner.space, [winner])["macs"][0]))
    run.write_arch("reference", reference)
    return reference


def retrain_with_reference(
    run: Run,
    preset: Preset,
    winner: Arch,
    reference: Arch | None,
    progress: Progress,
    resources: Resources | None = None,
    name: str | None = None,
) -> list[Network]:
    """Train the winner as the preset says, and the reference from scratch; `name` is that of the trainings.

    A fine-tuned winner was mostly trained in the supernet, while the reference inherits no weights and would hardly be
    trained by a fine-tuning recipe; it is trained by the recipe of the supernet instead.

    Returns:
        The winner's networks, one for each seed.
    """
    seeds, train_on = preset.retrain.seeds, preset.retrain.train_on
    labels = {winner.id: "winner", **({} if reference is None else {reference.id: "reference"})}
    train = partial(
        retrain, run, seeds=seeds, train_on=train_on, progress=progress, labels=labels, resources=resources, name=name
    )
    references = [] if reference is None else [reference]
    recipe = recipe_of(preset, run.space.input_size, progress)
    if preset.retrain.start == "scratch":
        rows = train([winner, *references], recipe, "scratch")[: len(seeds)]
    else:
        rows = train([winner], recipe, "finetuned")
        train(references, preset.recipe, "scratch")
    paths = [row["path"] for row in rows]
    return [network for network in run.networks() if network.path in paths]


def finetune_winner(
    run: Run,
    preset: Preset,
    retrained: Sequence[Network],
    progress: Progress,
    resources: Resources | None = None,
    name: str | None = None,
) -> None:
    """Fine-tune the retrained winner at another image size, if the preset asks for it."""
    finetune = preset.retrain.finetune
    if finetune is not None:
        labels = {network.arch.id: "winner" for network in retrained}
        recipe = recipe_of(preset, run.space.input_size, progress, finetune=True)
        windows = preset.retrain.windows
        finetune_resized(run, retrained, recipe, finetune.size, None, progress, labels, resources, name, windows)

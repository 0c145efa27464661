"""Searches of a run, from timing its space to scoring its archs and choosing the winner; resumable."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raynas.cluster.resources import Resources
from raynas.errors import InfeasibleError
from raynas.latency.measured import time_archs
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.stored import archs_to_time, fit_predictor
from raynas.phases.latency_winners import Candidate, choose_within_limits, time_candidates, unbeaten
from raynas.phases.phase import phase
from raynas.phases.where import device_here
from raynas.progress.reporter import Activity, Progress, silent
from raynas.runs.networks import arch_text
from raynas.runs.run import Run
from raynas.runs.searches import EXACT, MAIN, Scoring, SearchSettings, StoredSearch, make_search
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.search.base import Search
from raynas.search.config import SearchConfig
from raynas.search.history import FINALISTS, History
from raynas.search.loop import run_search
from raynas.space import Arch, Space

BASELINE = "random"
"""Name of the search that follows the main one for comparison."""
FOR_EACH = 16  # archs for each replica are scored at a time, so that few replicas wait for the last
_HOPELESS = 2.0  # a busy device makes the smallest subnet no more than so many times slower
_ROUGH = 0.1  # median relative error of a poor latency predictor; on a quiet device it is a few hundredths


@dataclass(frozen=True)
class ReadySearch:
    """A search that can begin: some arch meets its constraints and, if it uses latency, its space is timed.

    Attributes:
        predictor: latency predictor; None if the search does not use latency.
    """

    stored: StoredSearch
    space: Space
    settings: SearchSettings
    predictor: LatencyPredictor | None = None

    def make(self) -> Any:
        """Return a new ask/tell object."""
        return make_search(self.space, self.settings, self.predictor)

    def random(self, evaluations: int) -> ReadySearch:
        """Return random search with the same objectives and constraints, at the budget that this one spent."""
        settings = self.settings.model_copy(update={"search": baseline(self.settings.search, evaluations)})
        name = BASELINE if self.stored.name == MAIN else f"{self.stored.name}-{BASELINE}"
        return replace(self, stored=replace(self.stored, name=name), settings=settings)


def search_fully(
    run: Run,
    config: SearchConfig,
    resources: Resources,
    scoring: Scoring | None = None,
    name: str = MAIN,
    random: bool = False,
    progress: Progress = silent,
) -> None:
    """Search a run from timing its space to writing the winner, with a scorer of its own; see `raynas.search_run`."""
    # Timed before there are replicas, which would disturb the timing.
    ready = prepare(run, SearchSettings(search=config, scoring=scoring or Scoring()), name, progress)
    with make_scorer(run, ready.settings.scoring, resources) as scorer:
        done = [(ready, search(ready, scorer, progress))]
        if random:
            beside = ready.random(done[0][1].evaluations)
            done.append((beside, search(beside, scorer, progress)))
    if ready.settings.scoring.precision != EXACT:
        exact = ready.settings.scoring.model_copy(update={"precision": EXACT})
        with make_scorer(run, exact, resources) as scorer:
            done = [(each, finals(each, finished, scorer, progress)) for each, finished in done]
    for each, finished in done:
        choose_winner(each, finished, progress)


def prepare(
    run: Run,
    settings: SearchSettings,
    name: str = MAIN,
    progress: Progress = silent,
    space: Space | None = None,
) -> ReadySearch:
    """Prepare a search: time subnets for its latency predictor, if it uses one, and check that it can be built.

    Nothing is timed twice.

    Args:
        run: run directory for the timings; it may be untrained, since weights do not matter.
        name: name of the search; one run directory may hold several. The winner of the one called `search` is `best`. A
            search can be resumed only on the device that it began on.
        space: the space, for a run that has none yet.

    Raises:
        InfeasibleError: no arch of the space meets the constraints.
        UserError: the search cannot be built, the device is missing or another than the one that the search began on,
            or no subnet can be timed.
    """
    stored, config = run.search(name), settings.search.latency
    ready = ReadySearch(stored, space or run.space, settings)
    if config is not None:
        before = stored.settings if stored.has_begun else None
        on = before.timed_on if before is not None and before.search.latency == config else None
        with run.lock():
            attempt = partial(phase, run, "timing", cluster=config.resources is not None, progress=progress)
            archs = archs_to_time(ready.space, config.timings)
            check = partial(_check_reachable, settings.search)
            rows = time_archs(
                run.store, archs, config, config.resources, on, progress=progress, attempt=attempt, check=check
            )
        predictor = fit_predictor(ready.space, rows)
        progress(f"{name}: {predictor.describe()}")
        if predictor.held_out.error > _ROUGH:
            again = f"remove {run.name}/tables/latencies to time them again"
            progress(f"{name}: this is a rough prediction. Was the device busy with something else? Then {again}")
        settings = settings.model_copy(update={"timed_on": predictor.on})
        ready = replace(ready, settings=settings, predictor=predictor)
    ready.make()
    return ready


def _check_reachable(config: SearchConfig, arch: Arch, ms: float) -> None:
    """Refuse a limit that the smallest subnet misses by far, before the others, which are slower, are timed."""
    if config.latency is None or arch != arch.space.smallest():
        return
    rate = 1000 * config.latency.batch_size / ms
    latency = config.constraints.get("latency", (None, None))[1]
    throughput = config.constraints.get("throughput", (None, None))[0]
    if latency is not None and ms > _HOPELESS * latency:
        told = f"a latency of at most {latency:g} ms: the smallest takes {ms:.4g} ms"
    elif throughput is not None and throughput > _HOPELESS * rate:
        told = f"a throughput of at least {throughput:g} images/s: the smallest has {rate:.4g}"
    else:
        return
    raise InfeasibleError(f"search: no network of the space keeps {told}. Give another limit in search.constraints")


def make_scorer(run: Run, scoring: Scoring, resources: Resources, scored: ScoredSupernet | None = None) -> Any:
    """Return the scorer of a run, to be entered: a pool of replicas, or with none of them one in this process.

    Args:
        scored: supernet to score instead of the run's.
    """
    on: dict[str, Any] = {**scoring.model_dump(), "scored": scored}
    if resources.replicas:
        from raynas.scoring.pool import ScorePool  # local: it imports Ray

        each: dict[str, Any] = {"threads": resources.cpus, "gpus": resources.gpus, "per_gpu": resources.per_gpu}
        return ScorePool(run, resources.replicas, **each, **on)
    from raynas.scoring.local import LocalScorer

    return LocalScorer(run, threads=resources.cpus, device=device_here(resources), **on)


def search(ready: ReadySearch, scorer: Any, progress: Progress = silent) -> Any:
    """Run a search in its run directory, or resume it.

    For a search in another precision than fp32 call `finals` afterwards, and for one by latency `choose_winner`, when
    the scorer has ended.

    Args:
        scorer: a `ScorePool` or `LocalScorer` of this run, entered, made for the search's `scoring`.

    Returns:
        The search object. The winner is `run.search(name).winner`; with several objectives there is also its `front`.

    Raises:
        RunDirError: a search of that name began with other settings.
        InfeasibleError: no arch of the space meets the constraints.
        UserError: every arch failed.
    """
    stored, settings = ready.stored, ready.settings
    begun = stored.begin(settings, check=True)
    replicas: int = getattr(scorer, "replicas", 0)  # only a pool has replicas; other scorers run in this process
    work = partial(phase, stored.run, "search", stored.name, cluster=replicas > 0, progress=progress)

    def begin(activity: Activity) -> None:
        if not (stored.begin(settings) and stored.has_ended()):
            attempt.enter_context(work(activity=activity))

    try:
        with ExitStack() as attempt:
            goal = settings.search
            made, early, batch = ready.make(), (goal.racing, goal.rungs), goal.batch
            if isinstance(made, Search) and early == ("off", ()):  # a user's own may depend on the size of a batch
                batch = max(batch, FOR_EACH * replicas)
            finished = run_search(made, scorer, batch, progress, stored.name, begin, *early)
            scorer.flush()
        if (tie := finished.tie()) is not None:
            progress(f"{stored.name}: {tie}")
        if ready.predictor is None and settings.scoring.precision == EXACT:
            _write_winners(stored, finished, {})
    except Exception:  # a search that fails at once leaves its name free; scores do not depend on it
        if not begun:
            stored.forget()
        raise
    return finished


def finals(ready: ReadySearch, finished: Any, scorer: Any, progress: Progress = silent) -> History:
    """Score the finalists of a search in another precision again in fp32, and write the best of these.

    The finalists are the best ten, or the front. A search by latency has its winner from `choose_winner`, as always.

    Args:
        scorer: a scorer of this run in fp32, entered.

    Returns:
        The finalists with their scores in fp32, in place of the search for all that follows.

    Raises:
        UserError: every arch failed.
    """
    stored, made = ready.stored, History(finished.problem)
    archs, before = finished.finalists(FINALISTS), finished.best()
    rows = dict(zip(archs, scorer.score(archs, progress, f"{stored.name}, finalists"), strict=True))
    for known in finished.scored():
        if (row := rows.get(known.arch)) is not None:
            objectives, loss = made.objectives.read(row, known.costs), made.objectives.loss(row)
            made.history.append(replace(known, objectives=objectives, loss=loss))
    after = made.best()
    if isinstance(after, Arch):
        told = f"the winner is {after.id}"
        if isinstance(before, Arch):  # a user's own search may have several
            told += " as before" if after == before else f", not {before.id}"
    else:
        told = f"{len(after)} of them are on the front"
    precision = ready.settings.scoring.precision
    progress(f"{stored.name}: {len(archs)} finalists, found in {precision}, are scored again in {EXACT}: {told}")
    if ready.predictor is None:
        _write_winners(stored, made, {})
    return made


def choose_winner(ready: ReadySearch, finished: Any, progress: Progress = silent) -> None:
    """Time the candidates of a finished search by latency, and write the best one that keeps the limits when timed.

    Not to be called while a scorer's replicas use the device. Does nothing for a search by other costs.

    Raises:
        UserError: every arch failed, or the device is missing.
    """
    run, goal, predictor = ready.stored.run, ready.settings.search, ready.predictor
    if goal.latency is None or predictor is None:
        return
    attempt = partial(phase, run, "timing", cluster=goal.latency.resources is not None, progress=progress)
    with run.lock():
        timed = time_candidates(run.store, finished, goal.latency, predictor, goal.constraints, progress, attempt)
    chosen, line = choose_within_limits(timed, len(goal.objectives) > 1)
    kept = unbeaten(chosen, finished)
    if len(kept) < len(chosen):
        line += f"; {len(chosen) - len(kept)} of them are beaten by others when timed, and are left out"
    progress(f"{ready.stored.name}: {line}")
    by_arch = {one.arch: one for one in kept}
    winner = _write_winners(ready.stored, finished, by_arch)
    if winner in by_arch and len(goal.objectives) > 1:  # with one objective the line above is about it
        progress(f"{ready.stored.name}: the winner is {by_arch[winner]}")


def baseline(config: SearchConfig, evaluations: int) -> SearchConfig:
    """Return random search with the same objectives and constraints, at the budget that another search spent."""
    changes: dict[str, Any] = {"name": "random", "evaluations": evaluations, "generations": None, "options": {}}
    return SearchConfig.model_validate({**config.model_dump(), **changes})


def _write_winners(stored: StoredSearch, finished: Any, chosen: Mapping[Arch, Candidate]) -> Arch:
    """Write the winner and the front of a search, only archs in `chosen` unless that is empty; return the winner."""
    best, on = finished.best(), str(stored.settings.timed_on)
    front: list[Arch] = []
    if isinstance(best, Arch):
        winner = next(iter(chosen), best)
    else:
        # The winner is the front's best arch by accuracy, or by the first objective if accuracy is none.
        front, names = list(chosen or best), finished.objectives.names
        rows = [row for row in finished.history if row.arch in front]
        winner = finished.best_first(rows, "accuracy" if "accuracy" in names else names[0])[0].arch
    scored = stored.run.scores(stored.settings.scoring.images, EXACT).to_pylist()
    known = {row["arch"]: row for row in scored}
    text = {
        arch: arch_text(arch, **_found(known.get(arch.id)), **_measured(chosen.get(arch), on))
        for arch in {winner, *front}
    }
    stored.write(winner, front, text)
    return winner


def _found(row: dict[str, Any] | None) -> dict[str, Any]:
    """Return costs and accuracy for a winner's file, for information only."""
    names = ("macs", "params", "accuracy", "images")
    return {} if row is None else {"inherited weights": {name: row[name] for name in names}}


def _measured(candidate: Candidate | None, on: str) -> dict[str, Any]:
    """Return latency and device for a winner's file, for information only."""
    if candidate is None:
        return {}
    return {"latency": {**candidate.describe(), "timed_on": on}}

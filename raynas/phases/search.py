"""Searches of a run, carried out or gone on with: its space timed, its archs scored, its winner chosen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from raynas.latency.rows import on_of
from raynas.latency.stored import archs_to_time, stored_predictor
from raynas.phases.latency_winners import Candidate, choose_within_limits, time_candidates, unbeaten
from raynas.phases.phase import phase
from raynas.phases.timing import time_archs
from raynas.progress.reporter import Progress, silent
from raynas.runs.networks import arch_text
from raynas.runs.run import MAIN, Run
from raynas.runs.searches import Scoring, SearchSettings, StoredSearch, make_search, predictor_of
from raynas.search.config import SearchConfig
from raynas.search.loop import run_search
from raynas.space import Arch, Space

BASELINE = "random"
"""The search that follows the main one for comparison."""
_ROUGH = 0.1  # median error of a predictor of latency; on a quiet device it is a few hundredths


def search(
    run: Run,
    settings: SearchSettings,
    scorer: Any,
    name: str = MAIN,
    progress: Progress = silent,
) -> Any:
    """Carry out a search in a run directory, or go on with it.

    A search by latency has its winner from `choose_winner`, to be called when the scorer has ended.

    Args:
        run: holds a trained supernet.
        settings: the search and its budget; what the scores are measured on; what its timings hold for (`time_space`).
        scorer: a `ScorePool` or `LocalScorer` of this run, entered, made with `settings.scoring`.
        name: of the search; one run directory may hold several. The winner of the one called `search` is `best`.
        progress: called with progress lines.

    Returns:
        The search object. What it chooses is then `run.search(name).winner`, and its `front` where there are several
        objectives.

    Raises:
        RunDirError: a search of that name began with other settings.
        InfeasibleError: nothing in the space meets the constraints.
        UserError: every arch failed.
    """
    stored, space = run.search(name), run.space
    made = make_search(space, settings, predictor_of(space, settings, run.store))
    begun = stored.begin(settings, check=True)
    replicas: int = getattr(scorer, "replicas", 0)  # of a pool, in the cluster; all others score in this process

    def begin() -> None:
        if not (stored.begin(settings) and stored.has_ended()):
            attempt.enter_context(phase(run, "search", name, cluster=replicas > 0, progress=progress))

    try:
        with ExitStack() as attempt:
            finished = run_search(made, scorer, settings.search.batch, progress, name, begin)
        if (tie := finished.tie()) is not None:
            progress(f"{name}: {tie}")
        if settings.search.latency is None:
            _write_winners(stored, finished, {})
    except Exception:  # a refused search, such as a user's own, leaves its name free; scores do not depend on it
        if not begun:
            stored.forget()
        raise
    return finished


def choose_winner(
    run: Run,
    settings: SearchSettings,
    finished: Any,
    name: str = MAIN,
    progress: Progress = silent,
) -> None:
    """Time what a finished search by latency may choose, and write the best that truly keeps its limits.

    Not while a scorer's replicas may hold the device. For a search that goes by other costs nothing is left to do.

    Args:
        run: its run directory.
        settings: that it was carried out with.
        finished: what `search` returned.
        name: of the search.
        progress: called with progress lines, and one that says what was chosen.

    Raises:
        UserError: every arch failed, or the device is not there.
    """
    config, predictor = settings.search.latency, predictor_of(run.space, settings, run.store)
    if config is None or predictor is None:
        return
    timed = time_candidates(run, finished, config, predictor, settings.search.constraints, progress)
    chosen, line = choose_within_limits(timed, len(settings.search.objectives) > 1)
    kept = unbeaten(chosen, finished)
    if len(kept) < len(chosen):
        line += f"; {len(chosen) - len(kept)} of them are beaten by others when timed, and are left out"
    progress(f"{name}: {line}")
    _write_winners(run.search(name), finished, {one.arch: one for one in kept})


def time_space(
    run: Run,
    settings: SearchSettings,
    name: str = MAIN,
    progress: Progress = silent,
    space: Space | None = None,
) -> SearchSettings:
    """Time the subnets that a search by latency goes by; the settings with what these timings hold for.

    Nothing is timed twice, and nothing at all for a search that goes by other costs.

    Args:
        run: keeps the timings. It may be untrained: weights do not matter.
        settings: of the search.
        name: of the search; one that began on a device goes on there or not at all.
        progress: called with progress lines, and one about how good the predictor is.
        space: of a run that has none yet.

    Raises:
        UserError: there is no such device, it is not the one that the search began on, or no subnet can be timed.
    """
    config = settings.search.latency
    if config is None:
        return settings
    space = space or run.space
    before = None
    if (stored := run.search(name)).has_begun:
        recorded = stored.settings
        before = recorded.timed_on if recorded.search.latency == config else None
    archs = archs_to_time(space, config.timings)
    known = time_archs(run, archs, config, config.resources, before, progress=progress)
    on = on_of(known[0])
    predictor = stored_predictor(run.store, space, config.timings, on)
    if progress is not None:
        progress(f"{name}: {predictor.describe()}")
        if predictor.held_out.error > _ROUGH:
            again = f"remove {run.name}/tables/latencies to time them again"
            progress(f"{name}: this is a rough prediction. Was the device busy with something else? Then {again}")
    return settings.model_copy(update={"timed_on": on})


def make_scorer(run: Run, settings: SearchSettings, replicas: int = 2, gpus: float = 0) -> Any:
    """The scorer that a search needs; to be entered.

    Args:
        replicas: Ray actors; 0 scores in this process, without Ray.
        gpus: of one replica.

    Raises:
        UserError: nothing in the space meets the constraints, or the search cannot be built: before anything starts.
    """
    space = run.space
    make_search(space, settings, predictor_of(space, settings, run.store))
    on: dict[str, Any] = settings.scoring.model_dump()
    if replicas:
        from raynas.scoring.pool import ScorePool  # local: it imports Ray

        return ScorePool(run, replicas, gpus=gpus, **on)
    from raynas.scoring.local import LocalScorer

    return LocalScorer(run, **on)


def search_fully(
    run: Run,
    config: SearchConfig,
    scoring: Scoring | None = None,
    name: str = MAIN,
    replicas: int = 2,
    gpus: float = 0,
    random: bool = False,
    progress: Progress = silent,
) -> None:
    """Search a run from timing its space to writing the winner, with a scorer of its own, or go on with it.

    Args:
        run: holds a trained supernet, and is owned by this process.
        config: the search.
        scoring: what scores are measured on; left out: all images of the search split.
        name: of the search.
        replicas: Ray actors that score; 0 scores in this process, without Ray.
        gpus: of one replica.
        random: whether random search at the same budget follows.
        progress: called with progress lines.

    Raises:
        UserError: as `time_space`, `make_scorer`, `search` and `choose_winner`.
    """
    # Timed before there are replicas, which would disturb it.
    settings = time_space(run, SearchSettings(search=config, scoring=scoring or Scoring()), name, progress)
    with make_scorer(run, settings, replicas, gpus) as scorer:
        done = [(settings, search(run, settings, scorer, name, progress), name)]
        if random:
            beside = settings.model_copy(update={"search": baseline(config, done[0][1].evaluations)})
            its_name = BASELINE if name == MAIN else f"{name}-{BASELINE}"
            done.append((beside, search(run, beside, scorer, its_name, progress), its_name))
    for each in done:
        choose_winner(run, *each, progress)


def baseline(config: SearchConfig, evaluations: int) -> SearchConfig:
    """Random search for the same objectives and constraints, at the budget that another search spent."""
    changes: dict[str, Any] = {"name": "random", "evaluations": evaluations, "generations": None, "options": {}}
    return SearchConfig.model_validate({**config.model_dump(), **changes})


def _write_winners(stored: StoredSearch, finished: Any, chosen: Mapping[Arch, Candidate]) -> None:
    """Write what a search found best; of that only what is in `chosen`, if it has any."""
    best, on = finished.best(), str(stored.settings.timed_on)
    front: list[Arch] = []
    if isinstance(best, Arch):
        winner = next(iter(chosen), best)
    else:
        # Of the front, the one that is best by accuracy stands for the search; by the first objective if it has none.
        front, names = list(chosen or best), finished.objectives.names
        rows = [row for row in finished.history if row.arch in front]
        winner = finished.best_first(rows, "accuracy" if "accuracy" in names else names[0])[0].arch
    known = stored.scores()
    text = {
        arch: arch_text(arch, **_found(known.get(arch.id)), **_measured(chosen.get(arch), on))
        for arch in {winner, *front}
    }
    stored.write(winner, front, text)


def _found(row: dict[str, Any] | None) -> dict[str, Any]:
    """What a winner's file says of it, for information."""
    names = ("macs", "params", "accuracy", "images")
    return {} if row is None else {"inherited weights": {name: row[name] for name in names}}


def _measured(candidate: Candidate | None, on: str) -> dict[str, Any]:
    """What a winner's file says of its time, for information."""
    if candidate is None:
        return {}
    return {"latency": {**candidate.describe(), "timed_on": on}}

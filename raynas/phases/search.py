"""Searches of a run directory: carried out, resumed and read back.

A search leaves two things: its settings in `searches/<name>.yaml`, and the rows of its scores. That is enough: asked
and told again from the rows, it goes through the same archs, whether to go on where it was stopped or to be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from pydantic import Field

from raynas.config import Config, Document, validate
from raynas.costs import CostFunction
from raynas.errors import RunDirError, UserError
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.rows import on_of
from raynas.latency.stored import archs_to_time, stored_predictor
from raynas.latency.timing import TimedOn
from raynas.phases.latency_winners import Candidate, choose_within_limits, time_candidates, unbeaten
from raynas.phases.phase import phase
from raynas.phases.timing import time_archs
from raynas.results import RunDir
from raynas.results.scores import comparable_scores
from raynas.runs.network_folder import ARCH_FILE
from raynas.runs.networks import arch_text, read_space
from raynas.search.build import build_search
from raynas.search.config import SEARCHES, SearchConfig
from raynas.search.loop import run_search
from raynas.search.own import RecordedSearch
from raynas.search.problem import Problem
from raynas.space import Arch, Space

MAIN, BASELINE = "search", "random"
_BATCH = 256  # archs asked at a time when a search is read back
_ROUGH = 0.1  # median error of a predictor of latency; on a quiet device it is a few hundredths


class Scoring(Config):
    """What scores are measured on.

    Attributes:
        images: so many images of the search split; None for all.
        precision: `fp32`, or `bf16` or `fp16` by autocast.
    """

    images: int | None = Field(default=None, ge=1, le=10**7)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"


class SearchSettings(Config):
    """What `searches/<name>.yaml` records: the search, and what its scores and timings were measured on.

    `timed_on` is filled in by `time_space`, where the search goes by latency or throughput.
    """

    search: SearchConfig
    scoring: Scoring = Field(default_factory=Scoring)
    timed_on: TimedOn | None = None


def search(
    run: RunDir,
    settings: SearchSettings,
    scorer: Any,
    name: str = MAIN,
    progress: Callable[[str], None] | None = print,
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
        The search object. Its winner is written to `best/arch.yaml` (for other names to `searches/<name>/arch.yaml`),
        with all archs of the front beside it where there are several objectives.

    Raises:
        RunDirError: a search of that name began with other settings.
        InfeasibleError: nothing in the space meets the constraints.
        UserError: every arch failed.
    """
    made = build_run_search(run, settings)
    what, otherwise = f"searches/{name}", "give the same, or the search another name (--name)"
    begun = run.check_settings(what, settings, otherwise)
    replicas: int = getattr(scorer, "replicas", 0)  # of a pool, in the cluster; all others score in this process

    def begin() -> None:
        if not (run.begin(what, settings, otherwise) and has_ended(run, name)):
            attempt.enter_context(phase(run, "search", name, cluster=replicas > 0, say=progress))

    try:
        with ExitStack() as attempt:
            finished = run_search(made, scorer, settings.search.batch, progress, name, begin)
        if progress is not None and (tie := finished.tie()) is not None:
            progress(f"{name}: {tie}")
        if settings.search.latency is None:
            _write_winners(run, settings, finished, name, {})
    except Exception:  # a refused search, such as a user's own, leaves its name free; scores do not depend on it
        if not begun:
            run.delete(f"{what}.yaml")
        raise
    return finished


def choose_winner(
    run: RunDir,
    settings: SearchSettings,
    finished: Any,
    name: str = MAIN,
    progress: Callable[[str], None] | None = print,
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
    config, predictor = settings.search.latency, latency_predictor(run, settings, read_space(run))
    if config is None or predictor is None:
        return
    timed = time_candidates(run, finished, config, predictor, settings.search.constraints, progress)
    chosen, line = choose_within_limits(timed, len(settings.search.objectives) > 1)
    kept = unbeaten(chosen, finished)
    if len(kept) < len(chosen):
        line += f"; {len(chosen) - len(kept)} of them are beaten by others when timed, and are left out"
    if progress is not None:
        progress(f"{name}: {line}")
    _write_winners(run, settings, finished, name, {one.arch: one for one in kept})


def build_run_search(run: RunDir, settings: SearchSettings, space: Space | None = None) -> Any:
    """The search that settings describe, for the space of a run (or another); see `raynas.search.build_search`.

    One of the user's own is held to its contract and recorded: see `RecordedSearch`.

    Raises:
        UserError: it cannot be built, or it goes by latency and the settings do not come from `time_space`.
        RunDirError: the run lacks timings that it goes by.
        InfeasibleError: nothing in the space meets the constraints.
    """
    space = space or read_space(run)
    predictor = latency_predictor(run, settings, space)
    costs: dict[str, CostFunction] = {}
    if predictor is not None:
        costs = {"latency": predictor, "throughput": predictor.throughput}
    config = settings.search
    made = build_search(config, space, costs=costs)
    if config.name in SEARCHES:
        return made
    problem = Problem(space, config.objectives, config.constraints, costs)
    return RecordedSearch(made, problem, config.evaluations)


def time_space(
    run: RunDir,
    settings: SearchSettings,
    name: str = MAIN,
    progress: Callable[[str], None] | None = print,
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
    space = space or read_space(run)
    before = None
    if run.exists(f"searches/{name}.yaml"):
        recorded = settings_of(run, name)
        before = recorded.timed_on if recorded.search.latency == config else None
    archs = archs_to_time(space, config.timings)
    known = time_archs(run, archs, config, config.resources, before, progress=progress)
    on = on_of(known[0])
    predictor = stored_predictor(run, space, config.timings, on)
    if progress is not None:
        progress(f"{name}: {predictor.describe()}")
        if predictor.held_out.error > _ROUGH:
            again = f"remove {run.name}/tables/latencies to time them again"
            progress(f"{name}: this is a rough prediction. Was the device busy with something else? Then {again}")
    return settings.model_copy(update={"timed_on": on})


def latency_predictor(run: RunDir, settings: SearchSettings, space: Space) -> LatencyPredictor | None:
    """What a search by latency goes by; None for one that does not."""
    config = settings.search.latency
    if config is None:
        return None
    if settings.timed_on is None:
        raise UserError("the search goes by latency: time its space first, settings = time_space(run, settings)")
    return stored_predictor(run, space, config.timings, settings.timed_on)


def make_scorer(run: RunDir, settings: SearchSettings, replicas: int = 2, gpus: float = 0) -> Any:
    """The scorer that a search needs; to be entered.

    Args:
        replicas: Ray actors; 0 scores in this process, without Ray.
        gpus: of one replica.

    Raises:
        UserError: nothing in the space meets the constraints, or the search cannot be built: before anything starts.
    """
    build_run_search(run, settings)
    on: dict[str, Any] = settings.scoring.model_dump()
    if replicas:
        from raynas.scoring.pool import ScorePool  # local: it imports Ray

        return ScorePool(run, replicas, gpus=gpus, **on)
    from raynas.scoring.local import LocalScorer

    return LocalScorer(run, **on)


def search_fully(
    run: RunDir,
    config: SearchConfig,
    scoring: Scoring | None = None,
    name: str = MAIN,
    replicas: int = 2,
    gpus: float = 0,
    random: bool = False,
    progress: Callable[[str], None] | None = print,
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


def has_ended(run: RunDir, name: str) -> bool:
    """Whether a search of that name was carried out to its end."""
    return run.exists(f"searches/{name}.yaml") and read_back(run, name)[1]


def baseline(config: SearchConfig, evaluations: int) -> SearchConfig:
    """Random search for the same objectives and constraints, at the budget that another search spent."""
    changes: dict[str, Any] = {"name": "random", "evaluations": evaluations, "generations": None, "options": {}}
    return SearchConfig.model_validate({**config.model_dump(), **changes})


def read_back(run: RunDir, name: str) -> tuple[Any, bool]:
    """A search of a run as it stands: asked and told again from the rows of its scores, without scoring anything.

    Returns:
        The search object, and whether it has ended.

    Raises:
        RunDirError: the run has no search of that name.
    """
    settings = settings_of(run, name)
    made = build_run_search(run, settings)
    rows = comparable_scores(run, settings.scoring.images, settings.scoring.precision)
    while archs := made.ask(_BATCH):
        known = [rows[arch.id] for arch in _while_in(archs, rows)]
        made.tell(archs[: len(known)], known)
        if len(known) < len(archs):
            return made, False
    return made, True


def folder_of(name: str) -> str:
    """Where the winners of a search lie in its run directory."""
    return "best" if name == MAIN else f"searches/{name}"


def settings_of(run: RunDir, name: str) -> SearchSettings:
    """The settings that a search of a run began with.

    Raises:
        RunDirError: the run has no search of that name.
    """
    file = f"searches/{name}.yaml"
    if not run.exists(file):
        raise RunDirError(f"{run.name} has no search called {name!r}: run one first (raynas search)")
    return validate(SearchSettings, Document(run.read_yaml(file, "settings")["settings"], f"{run.name}/{file}"))


def _while_in(archs: Iterable[Arch], rows: dict[str, Any]) -> Iterator[Arch]:
    for arch in archs:
        if arch.id not in rows:
            return
        yield arch


def _write_winners(
    run: RunDir, settings: SearchSettings, finished: Any, name: str, chosen: Mapping[Arch, Candidate]
) -> None:
    rows = comparable_scores(run, settings.scoring.images, settings.scoring.precision)
    with run.folder(folder_of(name), last=ARCH_FILE) as folder:
        for place, arch in _winners(finished, chosen):
            measured = _measured(chosen.get(arch), str(settings.timed_on))
            (folder / place).parent.mkdir(exist_ok=True)
            (folder / place).write_text(arch_text(arch, **_found(rows.get(arch.id)), **measured))


def _winners(finished: Any, chosen: Collection[Arch]) -> Iterator[tuple[str, Arch]]:
    """Yield files in a search's folder with the archs it found best; of these only those in `chosen`, if it has any."""
    best = finished.best()
    if isinstance(best, Arch):
        yield ARCH_FILE, next(iter(chosen), best)
        return
    for arch in chosen or best:
        yield f"front/{arch.id}.yaml", arch
    # Of the front, the one that is best by accuracy stands for the search; by the first objective if it has none.
    names = finished.objectives.names
    front = [row for row in finished.history if row.arch in (chosen or best)]
    ordered = finished.best_first(front, "accuracy" if "accuracy" in names else names[0])
    yield ARCH_FILE, ordered[0].arch


def _found(row: dict[str, Any] | None) -> dict[str, Any]:
    """What a winner's file says of it, for information."""
    names = ("macs", "params", "accuracy", "images")
    return {} if row is None else {"inherited weights": {name: row[name] for name in names}}


def _measured(candidate: Candidate | None, on: str) -> dict[str, Any]:
    """What a winner's file says of its time, for information."""
    if candidate is None:
        return {}
    return {"latency": {**candidate.describe(), "timed_on": on}}

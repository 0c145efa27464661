"""Searches of a run directory: carried out, resumed and read back.

A search leaves two things: its settings in `searches/<name>.yaml`, and the rows of its scores. That is enough: asked
and told again from the rows, it goes through the same archs, whether to go on where it was stopped or to be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from pydantic import Field

from raynas.config import Config, Document, validate
from raynas.errors import RunDirError, UserError
from raynas.networks import read_space, write_arch
from raynas.reports.collect import Trace
from raynas.results import RunDir
from raynas.results.scores import comparable_scores
from raynas.search import SearchConfig
from raynas.search.build import build_search
from raynas.search.loop import run_search
from raynas.space import Arch
from raynas.timm_models import ARCH_FILE

MAIN, BASELINE = "search", "random"
_BATCH = 256  # archs asked at a time when a search is read back


class Scoring(Config):
    """What scores are measured on.

    Attributes:
        images: so many images of the search split; None for all.
        precision: `fp32`, or `bf16` or `fp16` by autocast.
    """

    images: int | None = Field(default=None, ge=1)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"


class Settings(Config):
    """What `searches/<name>.yaml` records: the search, and what its scores were measured on."""

    search: SearchConfig
    scoring: Scoring = Field(default_factory=Scoring)


def search(
    run: RunDir,
    settings: Settings,
    scorer: Any,
    name: str = MAIN,
    progress: Callable[[str], None] | None = print,
) -> Any:
    """Carry out a search in a run directory, or go on with it.

    Args:
        run: holds a trained supernet.
        settings: the search and its budget; what the scores are measured on.
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
    made = build_search(settings.search, read_space(run))
    try:
        run.begin(f"searches/{name}", settings)
    except RunDirError as error:
        raise RunDirError(str(error).replace("another run directory", "the search another name (--name)")) from None
    finished = run_search(made, scorer, settings.search.batch, progress, name)
    folder = "best" if name == MAIN else f"searches/{name}"
    rows = comparable_scores(run, settings.scoring.images, settings.scoring.precision)
    for place, arch in _winners(finished, folder):
        write_arch(run, place, arch, **_found(rows.get(arch.id)))
    return finished


def make_scorer(run: RunDir, settings: Settings, replicas: int = 2, gpus: float = 0) -> Any:
    """The scorer that a search needs; to be entered.

    Args:
        replicas: Ray actors; 0 scores in this process, without Ray.
        gpus: of one replica.

    Raises:
        UserError: nothing in the space meets the constraints, or the search cannot be built: before anything starts.
    """
    from raynas.scoring import LocalScorer, ScorePool

    build_search(settings.search, read_space(run))
    on: dict[str, Any] = settings.scoring.model_dump()
    return ScorePool(run, replicas, gpus=gpus, **on) if replicas else LocalScorer(run, **on)


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
    settings = _settings(run, name)
    made = build_search(settings.search, read_space(run))
    rows = comparable_scores(run, settings.scoring.images, settings.scoring.precision)
    while archs := made.ask(_BATCH):
        known = [rows[arch.id] for arch in _while_in(archs, rows)]
        made.tell(archs[: len(known)], known)
        if len(known) < len(archs):
            return made, False
    return made, True


def traces(run: RunDir) -> list[Trace]:
    """What each search of a run asked for, the main one first; for its report."""
    names = [name.removesuffix(".yaml") for name in run.list("searches") if name.endswith(".yaml")]
    found = []
    for name in sorted(names, key=lambda name: (name != MAIN, name)):
        config = _settings(run, name).search
        made, finished = read_back(run, name)
        history = getattr(made, "history", [])
        accuracy = [None if row.objectives is None else row.objectives.get("accuracy") for row in history]
        limits = config.constraints.get("macs", (None, None))
        label = {MAIN: config.name, BASELINE: "random search"}.get(name, name)
        found.append(Trace(label, [row.arch.id for row in history], accuracy, limits, finished))
    return found


def _settings(run: RunDir, name: str) -> Settings:
    file = f"searches/{name}.yaml"
    if not run.exists(file):
        raise RunDirError(f"{run.name} has no search called {name!r}: run one first (raynas search)")
    return validate(Settings, Document(run.read_yaml(file, "settings")["settings"], f"{run.name}/{file}"))


def _while_in(archs: Iterable[Arch], rows: dict[str, Any]) -> Iterator[Arch]:
    for arch in archs:
        if arch.id not in rows:
            return
        yield arch


def _winners(finished: Any, folder: str) -> Iterator[tuple[str, Arch]]:
    best = finished.best() if hasattr(finished, "best") else None
    if best is None:
        raise UserError("the search has no best(): its winner cannot be written; its scores are in the run directory")
    if isinstance(best, Arch):
        yield f"{folder}/{ARCH_FILE}", best
        return
    for arch in best:
        yield f"{folder}/front/{arch.id}.yaml", arch
    # Of the front, the one that is best by accuracy stands for the search; by the first objective if it has none.
    objectives = finished.objectives
    name = "accuracy" if "accuracy" in objectives.names else objectives.names[0]
    sign = 1 if objectives.directions[name] == "max" else -1
    yield f"{folder}/{ARCH_FILE}", max(finished.front(), key=lambda row: sign * row.objectives[name]).arch


def _found(row: dict[str, Any] | None) -> dict[str, Any]:
    """What a winner's file says of it, for information."""
    names = ("macs", "params", "accuracy", "images")
    return {} if row is None else {"inherited weights": {name: row[name] for name in names}}

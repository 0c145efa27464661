"""Optuna's pruners by name."""

from __future__ import annotations

from optuna import pruners

from raynas.errors import ConfigError, reason
from raynas.search.optuna_samplers import study_in_memory
from raynas.training.plan import Part
from raynas.user_code import bind_part, kind

PRUNERS = {
    "asha": pruners.SuccessiveHalvingPruner,
    "hyperband": pruners.HyperbandPruner,
    "median": pruners.MedianPruner,
    "none": pruners.NopPruner,
}


def build_pruner(part: Part) -> pruners.BasePruner:
    """Build a pruner: `asha`, `hyperband`, `median`, `none`, or one of the user's own as `module:Class`.

    Raises:
        ConfigError: there is none of the name, or an option is wrong.
    """
    make = bind_part(part.name, part.options, PRUNERS, "pruner", given=0)
    try:
        pruner = make()
        if isinstance(pruner, pruners.BasePruner):
            _try(make())
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ConfigError(f"pruner {part.name}: {reason(error)}") from error
    if not isinstance(pruner, pruners.BasePruner):
        raise ConfigError(f"pruner {part.name!r} must make a pruner of Optuna (BasePruner); it made {kind(pruner)}")
    return pruner


def _try(pruner: pruners.BasePruner) -> None:
    """Ask a pruner about trials of no study: Optuna's find some wrong options only then."""
    study = study_in_memory()
    study.pruner = pruner
    for _ in range(2):
        trial = study.ask()
        trial.report(0.0, 1)
        trial.should_prune()
        study.tell(trial, 0.0)

"""Optuna's pruners by name."""

from __future__ import annotations

from optuna import pruners

from raynas.errors import ConfigError, reason
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
    except (ValueError, TypeError) as error:
        raise ConfigError(f"pruner {part.name}: {reason(error)}") from error
    if not isinstance(pruner, pruners.BasePruner):
        raise ConfigError(f"pruner {part.name!r} must make a pruner of Optuna (BasePruner); it made {kind(pruner)}")
    return pruner

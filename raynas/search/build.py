"""Construction of a search from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raynas.costs import CostFunction
from raynas.errors import ConfigError, UserError
from raynas.search.base import AskTell
from raynas.search.config import SEARCHES, TIMED, SearchConfig
from raynas.search.halving import early_stops
from raynas.search.own import OwnSearch
from raynas.space import Space
from raynas.user_code import bind_part, kind, load_object, running, takes_option


def build_search(
    config: SearchConfig, space: Space, seed: int | None = None, costs: Mapping[str, CostFunction] | None = None
) -> Any:
    """Build the ask/tell object of a configuration.

    This is quick: build the search before a long training to detect impossible constraints or options early.

    A user's own `module:object` is called as `object(space, objectives=..., constraints=..., seed=..., **options)`,
    with `generations` and `costs` if they are given, and with `evaluations`, too, if it takes that option. A search of
    a run is held to that budget all the same; `run_search` knows of no budget but the search's own.

    Args:
        seed: replaces the configuration's seed.
        costs: custom costs as functions of codes: `latency` and `throughput`, if the search uses them.

    Raises:
        ConfigError: the search is unknown, cannot be imported, has no such option, or is not an ask/tell object.
        InfeasibleError: no arch of the space meets the constraints.
        UserError: an option is out of range, the search uses latency and `costs` does not have it, there are too few
            classes for top-5, or it cannot be raced, or have rungs.
    """
    for name in TIMED:
        if (name in config.objectives or name in config.constraints) and name not in (costs or {}):
            raise UserError(
                f"the search goes by {name}: give its predictor, build_search(..., costs={{{name!r}: ...}})"
            )
    if "top5" in config.objectives and space.classes <= 5:
        raise UserError(f"objectives: with {space.classes} classes there is no top5: search by accuracy or loss")
    what = f"search {config.name!r}"
    budget = {"evaluations": config.evaluations, "generations": config.generations}
    if config.name not in SEARCHES and not takes_option(load_object(config.name, SEARCHES, "search"), "evaluations"):
        del budget["evaluations"]  # `RecordedSearch` keeps to it
    options = {
        "objectives": dict(config.objectives),
        "constraints": dict(config.constraints),
        "seed": config.seed if seed is None else seed,
        **{name: value for name, value in budget.items() if value is not None},
        **({"costs": costs} if costs else {}),
        **config.options,
    }
    make = bind_part(config.name, options, SEARCHES, "search", given=1)
    if config.name in SEARCHES:
        made = make(space)
        early_stops(made, config.racing, config.rungs)  # refuses searches that do without it
        return made
    if config.racing != "off" or config.rungs:
        how = "rungs" if config.rungs else "racing"
        raise UserError(f"{how}: {what} is your own, and raynas does not know its cut: do without {how}")
    with running(f"{what}: making it"):
        search = make(space)
    if not isinstance(search, AskTell):
        raise ConfigError(f"{what} must make an object with ask(n) and tell(archs, scores); it made {kind(search)}")
    OwnSearch(search, space)  # refuses one whose methods cannot be called so
    return search

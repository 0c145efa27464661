"""Optuna's samplers by name, with checked options, for tuning and for searches."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, create_model

from raynas.config import Config, Natural, Positive, validate
from raynas.documents import Document
from raynas.errors import ConfigError, UserError
from raynas.text import nearest, one_line, shown
from raynas.user_code import bind_part, kind, load_object, running

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study

_Share = Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")]
_Population = Annotated[int, Field(ge=2, le=10**6, description="a whole number from 2")]
_GENETIC = {"population_size": _Population, "mutation_prob": _Share, "crossover_prob": _Share, "swapping_prob": _Share}


@dataclass(frozen=True)
class SamplerKind:
    """A sampler of Optuna, as it can be named.

    Attributes:
        text: its method and its limits, for people.
        options: types of its options by name; their meaning and defaults are Optuna's.
        package: the package that it needs besides Optuna's own dependencies.
        objectives: the most objectives; None for any number.
        learns: True if trials depend on the results of earlier ones.
        from_any: True if it learns from trials that it did not propose, such as those of another study.
    """

    text: str
    options: Mapping[str, Any]
    package: str | None = None
    objectives: int | None = None
    learns: bool = True
    from_any: bool = False

    @cached_property
    def model(self) -> type[Config]:
        """The options as a model, in which each may be left out."""
        fields: Any = {name: (values | None, None) for name, values in self.options.items()}
        return create_model("SamplerOptions", __base__=Config, **fields)


SAMPLERS: dict[str, SamplerKind] = {
    "tpe": SamplerKind(
        "tree-structured Parzen estimator; running trials count as bad ones (constant liar)",
        {
            "n_startup_trials": Natural,
            "n_ei_candidates": Positive,
            "multivariate": bool,
            "group": bool,
            "constant_liar": bool,
        },
        from_any=True,
    ),
    "gp": SamplerKind(
        "Gaussian process, whose expected improvement takes running trials into account; conditional parameters are "
        "drawn at random",
        {"n_startup_trials": Natural, "deterministic_objective": bool},
        package="torch",
        from_any=True,
    ),
    "cmaes": SamplerKind(
        "CMA-ES, for numbers; choices and conditional parameters are drawn at random",
        {
            "n_startup_trials": Natural,
            "popsize": _Population,
            "use_separable_cma": bool,
            "with_margin": bool,
            "lr_adapt": bool,
            "consider_pruned_trials": bool,
        },
        package="cmaes",
        objectives=1,
    ),
    "qmc": SamplerKind(
        "quasi-random points; conditional parameters are drawn at random",
        {"qmc_type": Literal["sobol", "halton"], "scramble": bool},
        learns=False,
    ),
    "nsgaii": SamplerKind("NSGA-II; conditional parameters are drawn at random", _GENETIC),
    "nsgaiii": SamplerKind(
        "NSGA-III; conditional parameters are drawn at random", {**_GENETIC, "dividing_parameter": Positive}
    ),
    "grid": SamplerKind("every combination once, in a shuffled order", {}, learns=False),
    "random": SamplerKind("independent random values", {}, learns=False),
}
"""The samplers that have a name; any other one of Optuna or of the user's own is named `module:Class`."""


def check_sampler(name: str, options: Mapping[str, Any] | None = None, objectives: int = 1) -> dict[str, Any]:
    """Check a sampler's name and options; quick, without loading Optuna for those in `SAMPLERS`.

    Returns:
        The options that are given.

    Raises:
        ConfigError: the name or an option is unknown, or an option has a wrong value; the message names the nearest.
        UserError: its package is missing, or there are too many objectives.
    """
    if ":" in name:
        load_object(name, SAMPLERS, "sampler")
        return dict(options or {})
    if (sampler := SAMPLERS.get(name)) is None:
        raise ConfigError(f"unknown sampler {shown(name)}{nearest(name, list(SAMPLERS))}; your own: 'module:Class'")
    given = validate(sampler.model, Document(dict(options or {}), f"sampler {name}"))
    if sampler.objectives is not None and objectives > sampler.objectives:
        raise UserError(f"sampler {name} has one objective, not {objectives}: take tpe, gp, nsgaii or nsgaiii")
    if sampler.package is not None and find_spec(sampler.package) is None:
        raise UserError(f"sampler {name} needs the package {sampler.package}: pip install {sampler.package}")
    return {key: value for key in given.model_fields_set if (value := getattr(given, key)) is not None}


def build_sampler(
    name: str,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    trial: int = 0,
    objectives: int = 1,
    grid: Sequence[Mapping[str, Any]] = (),
) -> BaseSampler:
    """Build the sampler of one trial.

    Each trial has a sampler of its own: `study.sampler = build_sampler(..., trial=number)` before each `study.ask()`.
    So a sampler has no state outside the study, and a study that is continued goes on as if it had never stopped. With
    trials side by side `tpe` and `gp` avoid what is running; `nsgaii`, `nsgaiii` and `cmaes` fill their generation.

    Infeasible trials are told by `Trial.set_constraint`, which `tpe`, `gp`, `nsgaii` and `nsgaiii` learn from.

    Args:
        name: a name of `SAMPLERS`, or a `BaseSampler` as `module:Class`, which gets `seed` if it takes one.
        options: keyword arguments of the sampler.
        seed: seed of the study.
        trial: number of the trial that the sampler is for.
        objectives: number of objectives of the study.
        grid: the combinations of sampler `grid`; see `GridSampler`.

    Raises:
        ConfigError: the name or an option is unknown, or an option has a wrong value.
        UserError: its package is missing, or there are too many objectives.
    """
    given = check_sampler(name, options, objectives)
    own_seed, study_seed = (
        int(np.random.SeedSequence(entropy).generate_state(1)[0]) for entropy in ((seed, trial), seed)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental options: the user has asked for them by name
        if ":" in name:
            return _own_sampler(name, given, own_seed)
        try:
            return _ours(name, given, own_seed, study_seed, grid)
        except ValueError as error:  # options that exclude each other
            raise ConfigError(one_line(f"sampler {name}: {error}")) from error


def study_in_memory(objectives: int = 1) -> Study:
    """Return an empty study that minimises, without Optuna's line about it."""
    import optuna  # slow import

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        return optuna.create_study(directions=["minimize"] * objectives)
    finally:
        optuna.logging.set_verbosity(level)


def _ours(
    name: str, options: dict[str, Any], seed: int, study_seed: int, grid: Sequence[Mapping[str, Any]]
) -> BaseSampler:
    from optuna import samplers  # slow import

    from raynas.search.replayed_samplers import GridSampler, ReplayedCmaEsSampler

    if name == "grid":  # one order for all trials
        return GridSampler(grid, study_seed)
    if name == "qmc":  # one sequence for all trials
        options = {"scramble": True, **options, "seed": study_seed}
    else:
        options["seed"] = seed
    if name in ("gp", "cmaes", "qmc"):  # what they cannot sample would repeat itself with the study's seed
        options |= {"independent_sampler": samplers.RandomSampler(seed), "warn_independent_sampling": False}
    kinds: dict[str, Callable[..., BaseSampler]] = {
        "tpe": samplers.TPESampler,
        "gp": samplers.GPSampler,
        "cmaes": ReplayedCmaEsSampler,
        "qmc": samplers.QMCSampler,
        "nsgaii": samplers.NSGAIISampler,
        "nsgaiii": samplers.NSGAIIISampler,
        "random": samplers.RandomSampler,
    }
    return kinds[name](**options)


def _own_sampler(name: str, options: Mapping[str, Any], seed: int) -> BaseSampler:
    from optuna.samplers import BaseSampler

    make = load_object(name, {}, "sampler")
    bound = bind_part(name, options, {}, "sampler", given=0)
    if "seed" in inspect.signature(make).parameters and "seed" not in options:
        bound = partial(bound, seed=seed)
    with running(f"sampler {name!r}: making it"):
        sampler = bound()
    if not isinstance(sampler, BaseSampler):
        raise ConfigError(f"sampler {name!r} must make a sampler of Optuna (BaseSampler); it made {kind(sampler)}")
    return sampler

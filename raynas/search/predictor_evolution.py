"""NASViT's search: evolution on a predictor fitted to random archs, whose best archs are then scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search.base import Search, SearchArguments, at_least, own_options
from raynas.search.candidates import logger
from raynas.search.pareto import ParetoEvolution
from raynas.search.predictors import PREDICTORS, Fit, Predict, PredictorQuality, assess, checked
from raynas.space import Arch, Codes, Space
from raynas.text import nearest, shown
from raynas.user_code import kind, load_object, running, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PredictorEvolution(Search):
    """Evolution on predicted scores, whose best archs are then scored (NASViT, Algorithm 2).

    1. `samples` random archs are scored.
    2. A predictor is fitted to the first of them and tested on the last `held_out`. If its Kendall's tau is below
       `least_tau`, it is not used, and `verify` random archs are scored instead.
    3. `ParetoEvolution` runs on predictions only: 11,264 archs in a few seconds.
    4. The best `verify` new archs are scored: whole fronts first, or by `buckets`.

    `history`, `front` and `best` hold scores only, no predictions. The paper ends here (without the last step: it does
    not score its results), and so does this search if no budget is given. With a larger budget it continues: the next
    predictor is fitted to all scores so far except the held-out ones, and proposes the next archs.

    Attributes:
        qualities: quality of each predictor so far: one for each scored objective in each generation after the first.
        predictions: predicted objectives of the proposed archs.
    """

    default_generations = 1

    def __init__(
        self,
        space: Space,
        *problem: Any,
        samples: int = 1024,
        held_out: int = 512,
        verify: int = 128,
        least_tau: float = 0.3,
        predictor: str | Fit = "forest",
        evolution: Mapping[str, Any] | None = None,
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
            samples: random archs scored first.
            held_out: number of them kept from the predictor's fit.
            verify: predicted archs scored in a generation.
            least_tau: least tau on the held-out archs. At 0.3 the predictor orders 65 of 100 pairs correctly; one that
                has learnt nothing stays within 0.1 of 0 (at 512 archs). -1 uses any predictor.
            predictor: `forest`, `boosting`, `gaussian_process`, `ranking`, or your own: a `Fit` function, or its name
                as `module:object`.
            evolution: keyword arguments of the evolution on predictions; see `ParetoEvolution`.

        Raises:
            UserError: an option is out of range, or no objective is scored.
        """
        at_least(1, held_out=held_out, verify=verify)
        at_least(2, samples=samples)
        if held_out >= samples:
            raise UserError(f"held_out must leave samples to learn from: give less than {samples}, not {held_out}")
        if isinstance(least_tau, bool) or not isinstance(least_tau, int | float) or not -1 <= least_tau <= 1:
            raise UserError(f"least_tau must be in [-1, 1], not {shown(least_tau)}")
        self.samples, self.held_out, self.verify, self.least_tau = samples, held_out, verify, least_tau
        super().__init__(space, *problem, **arguments)
        if not self.objectives.scored:
            raise UserError("all objectives are costs, which need no predictor: use NSGA2 or ParetoEvolution")
        self.predictor: Fit = _function(predictor)
        self.evolution = _checked_options(evolution)
        self.qualities: list[PredictorQuality] = []
        self.predictions: dict[Arch, dict[str, float]] = {}
        self._evolution({name: lambda codes: np.zeros(len(codes)) for name in self.objectives.scored}, 0)

    def _sizes(self) -> tuple[int, int]:
        return self.samples, self.verify

    def _next_generation(self) -> Codes:
        if not self.history:
            return self.candidates.random(self.samples)
        predictors = self._learn()
        found = self._predicted_best(predictors) if predictors else self.candidates.random(0)
        return found if len(found) else self.candidates.random(self.verify)

    def _learn(self) -> dict[str, Predict]:
        """Fit a predictor for each scored objective; return none if one of them is too poor."""
        rows = [row for row in self.history if row.objectives is not None]
        codes = self._scored()[0]
        held = np.array([self.samples - self.held_out <= row.order < self.samples for row in rows], dtype=bool)
        if not held.any() or held.all():
            self.notes.append("too few scores to learn from and to hold out: the next archs are random")
            return {}
        predictors, found = {}, []
        for name in self.objectives.scored:
            measured = np.array([row.objectives[name] for row in rows if row.objectives is not None])
            seed = int(self._rng.integers(2**32))
            with running("predictor"):
                predict = self.predictor(self.space, codes[~held], measured[~held], seed)
            if not callable(predict):
                raise UserError(f"predictor: it must return a function of codes; it returned {kind(predict)}")
            predict = checked(predict)
            macs = cost(self.space, codes[held])["macs"]
            largest = self.objectives.directions[name] == "max"
            numbers = measured[held], predict(codes[held]), macs
            found.append(assess(name, largest, int((~held).sum()), codes[held], *numbers))
            predictors[name] = predict
        self.qualities += found
        self.notes += [quality.describe() for quality in found]
        if all(quality.kendall >= self.least_tau for quality in found):
            return predictors
        told = all(quality.kendall == quality.kendall for quality in found)  # NaN for constant values
        below = f"{'is' if told else 'cannot be told, which counts as'} below {self.least_tau:g} (least_tau)"
        self.notes.append(
            f"tau {below}: the predictor is not used, and the next {self.verify} archs are random. Score more samples, "
            "or search without it (pareto)"
        )
        return {}

    def _predicted_best(self, predictors: Mapping[str, Predict]) -> Codes:
        """Take the best new archs of an evolution on predictions, at most [verify, dimensions]."""
        inner = self._evolution(predictors, int(self._rng.integers(2**63)))
        codes, values = inner.run_on_costs()  # predicted objectives are costs to it, like MACs
        new = self.candidates.untaken(codes)
        best = codes[new][inner.select(values[new], self.verify)]
        taken = self.candidates.take(best, self.verify)
        predicted = {name: predict(taken) for name, predict in predictors.items()} if len(taken) else {}
        for index, arch in enumerate(self.space.decode(taken)):
            self.predictions[arch] = {name: float(values[index]) for name, values in predicted.items()}
        return taken

    def _evolution(self, predictors: Mapping[str, Predict], seed: int) -> ParetoEvolution:
        bounds, costs = self.constraints.bounds, {**self.constraints.functions, **predictors}
        inner = ParetoEvolution(self.space, self.objectives.directions, bounds, seed, costs=costs, **self.evolution)
        inner.warn = logger.debug  # its early end does not concern the user
        return inner


def _function(predictor: str | Fit) -> Fit:
    fit: Fit = load_object(predictor, PREDICTORS, "predictor") if isinstance(predictor, str) else predictor
    if not callable(fit) or not takes(fit, 4):
        wanted = "called with (space, codes, values, seed)"
        raise UserError(
            f"the predictor must be one of {', '.join(PREDICTORS)}, 'module:object' or a function, not "
            f"{shown(predictor)}: {wanted}"
        )
    return fit


def _checked_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of the evolution on predictions, after rejecting unknown ones and this search's own."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UserError(f"evolution must be a mapping of options, not {shown(options)}")
    known = ["evaluations", "generations", *own_options(ParetoEvolution)]
    for name in options:
        if name not in known:
            raise UserError(f"evolution: has no option {shown(name)}{nearest(str(name), known)}")
    return dict(options)

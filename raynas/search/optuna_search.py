"""Optuna's samplers as searches of archs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.errors import UserError
from raynas.search.base import Search, SearchArguments, at_least
from raynas.search.optuna_samplers import build_sampler, check_sampler, study_in_memory
from raynas.space import INACTIVE, Arch, Codes, Space
from raynas.text import shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial
    from typing_extensions import Unpack


class OptunaSearch(Search):
    """A search whose archs are proposed by a sampler of Optuna; by default 1,050, as many as `Evolution` scores.

    The study is in memory, and holds what the search was told. Its parameters are the genes, as whole numbers: choices
    are ascending. An inactive gene keeps the value that was proposed for it.

    A sampler knows no hard constraints and proposes archs twice. In place of a proposal that breaks a bound, or that
    was handed out before, the nearest of `tries` mutants that fits is scored and told to the sampler; in the first
    generation, and if there is none, a random arch within the bounds. `tally` counts them.

    Attributes:
        tally: numbers of proposals: `proposed`, and of these `taken` as they were, `infeasible`, `repeated`; of the
            replaced ones those replaced by a `mutant` and by a `random` arch.
    """

    default_evaluations = 1050

    def __init__(
        self,
        space: Space,
        *problem: Any,
        sampler: str | Mapping[str, Any] = "tpe",
        side_by_side: int = 10,
        tries: int = 100,
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
            sampler: name of a sampler (see `raynas.search.optuna_samplers`), or a mapping of its `name` and options.
            side_by_side: archs proposed before the next scores are told; the fewer, the better each one is informed.
            tries: mutants drawn for a proposal that does not fit.

        Raises:
            UserError: an option is out of range or unknown.
        """
        at_least(1, side_by_side=side_by_side, tries=tries)
        options = {"name": sampler} if isinstance(sampler, str) else sampler
        if not isinstance(options, Mapping) or not isinstance(options.get("name"), str):
            raise UserError(f"sampler is a name, or a mapping of name and options, not {shown(sampler)}")
        self.sampler = options["name"]
        self.options = {key: value for key, value in options.items() if key != "name"}
        if self.sampler == "grid":
            raise UserError("sampler grid would go through the space in a random order: use the search random")
        self.side_by_side, self.tries = side_by_side, tries
        super().__init__(space, *problem, **arguments)
        check_sampler(self.sampler, self.options, len(self.objectives.names))
        self.tally: Counter[str] = Counter()
        self._seed = int(self._rng.integers(2**31))
        self._asked: list[tuple[Trial, np.ndarray, bool]] = []  # proposal, genes as told, True if they were replaced
        self._told = 0  # archs of the history that the study knows

    def _sizes(self) -> tuple[int, int]:
        return self.side_by_side, self.side_by_side

    def ask(self, n: int) -> list[Arch]:
        """See `Search.ask`; when the search is over, a note says how many proposals did not fit."""
        archs = super().ask(n)
        if not archs and self.tally and not self.notes:
            self.notes.append(self._account())
        return archs

    def _account(self) -> str:
        count = self.tally
        return (
            f"{self.sampler} proposed {count['proposed']:,} archs: {count['infeasible']:,} broke a bound and "
            f"{count['repeated']:,} were repeated; {count['mutant']:,} mutants and {count['random']:,} random archs "
            "took their place"
        )

    def _next_generation(self) -> Codes:
        self._tell_study()
        found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
        for _ in range(self.side_by_side):
            trial, genes = self._propose()
            code = self.space.canonical(genes[None])
            if not len(taken := self.candidates.take(code, 1, self.tally)):
                taken = self._instead_of(code)
            if not len(taken):
                break
            found.append(taken)
            told = np.where(taken[0] == INACTIVE, genes, taken[0])
            self._asked.append((trial, told, not np.array_equal(taken, code)))
        return np.concatenate(found)

    def _propose(self) -> tuple[Trial, np.ndarray]:
        """Return a trial and its genes, int16 [dimensions]."""
        study, distributions = self._study
        number = len(study.get_trials(deepcopy=False))
        study.sampler = build_sampler(self.sampler, self.options, self._seed, number, len(self.objectives.names))
        trial = study.ask(distributions)
        self.tally["proposed"] += 1
        genes = [trial.params[dimension.name] for dimension in self.space.dimensions]
        return trial, np.array(genes, dtype=np.int16)

    def _instead_of(self, code: Codes) -> Codes:
        """Take a new arch within the bounds in place of a proposal [1, dimensions]; none if there are no more."""
        if self.history:
            mutants = self.space.mutate_codes(
                code.repeat(self.tries, axis=0), self._rng, 2 / code.shape[1], change=True
            )
            nearest = np.argsort((mutants != code).sum(axis=1), kind="stable")
            taken = self.candidates.take(mutants[nearest], 1)
            if not len(taken):
                taken = self.candidates.mutants(code, 2 / code.shape[1], True, self.tries, Counter())
            if len(taken):
                self.tally["mutant"] += 1
                return taken
        taken = self.candidates.random(1)
        self.tally["random"] += len(taken)
        return taken

    def _tell_study(self) -> None:
        """Tell the study the last generation's scores; failed archs are failed trials, which samplers ignore."""
        from optuna.trial import TrialState, create_trial

        study, distributions = self._study
        for row in self.history[self._told :]:
            trial, genes, replaced = self._asked[row.order]
            values = None if row.objectives is None else self.objectives.minimised([row.objectives])[0].tolist()
            if values is None or replaced:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, values)
            if values is not None and replaced:  # of the same generation, for samplers that have some
                proposal = study.get_trials(deepcopy=False)[trial.number]
                attributes = {key: value for key, value in proposal.system_attrs.items() if key != "x_for_tell"}
                params = dict(zip(distributions, genes.tolist(), strict=True))
                study.add_trial(
                    create_trial(values=values, params=params, distributions=distributions, system_attrs=attributes)
                )
        self._told = len(self.history)

    @cached_property
    def _study(self) -> tuple[Study, dict[str, BaseDistribution]]:
        """The study, and its parameters: for each dimension the index of its choice."""
        from optuna.distributions import IntDistribution  # slow import

        return study_in_memory(len(self.objectives.names)), {
            dimension.name: IntDistribution(0, len(dimension.choices) - 1) for dimension in self.space.dimensions
        }

"""Rates at which archs are drawn, named, costed and varied, and at which a search by a predictor looks at them."""

from __future__ import annotations

from itertools import count

import numpy as np

from raynas.bench.measured import Measured, a_second, in_turns
from raynas.costs import cost
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent
from raynas.search import Evolution, ParetoEvolution
from raynas.search.candidates import logger
from raynas.search.predictors import fit_forest
from raynas.space import Space, load_space

MOST = 10**7
"""The most archs of a search by a predictor, of which each takes about 200 bytes."""

_ONE_BY_ONE, _MANY, _CODES = 5_000, 50_000, 200_000
_GENERATION = 4_000
_FITTED = 512


def bench_archs(
    space: Space | str = "autoformer/small", candidates: int = 100_000, rounds: int = 5, progress: Progress = silent
) -> list[Measured]:
    """Measure how many archs are handled a second on one core: in seconds of this process's processor time.

    Limits are the median MACs of random archs. The search by a predictor evolves `candidates` archs towards a front of
    predicted accuracy and MACs; the predictor is a forest fitted to 512 made-up accuracies.

    Raises:
        UserError: there are too few or too many candidates.
    """
    if not _GENERATION <= candidates <= MOST:
        raise UserError(f"candidates must be at least {_GENERATION:,} and at most {MOST:,}, not {candidates:,}")
    space = load_space(space) if isinstance(space, str) else space
    rng, seeds = np.random.default_rng(0), count()
    codes = space.sample_codes(rng, _CODES)
    macs = cost(space, codes)["macs"]
    limits = {"macs": (None, float(np.median(macs)))}
    accuracies = macs[:_FITTED] / macs.max() + 0.1 * rng.random(_FITTED)
    predict = fit_forest(space, codes[:_FITTED], accuracies, 0)

    def children() -> float:
        half = _GENERATION // 2
        search = Evolution(
            space, None, limits, next(seeds), population=1, initial=50, mutations=half, crossovers=half, any_pair=True
        )
        search.warn = logger.debug  # small spaces have fewer archs
        first = search.ask(50)
        search.tell(first, [float(place) for place in range(len(first))])
        return a_second(lambda: len(search.ask(_GENERATION)))()

    def predicted() -> int:
        each = min(candidates // 20, 5_000)
        search = ParetoEvolution(
            space,
            {"accuracy": "max", "macs": "min"},
            limits,
            next(seeds),
            candidates,
            costs={"accuracy": predict},
            initial=candidates // 10,
            mutations=each,
            crossovers=each,
        )
        search.warn = logger.debug
        return len(search.run_on_costs()[0])

    kinds = {
        "archs sampled one by one": a_second(lambda: len([space.sample(rng) for _ in range(_ONE_BY_ONE)])),
        "archs sampled": a_second(lambda: len(space.decode(space.sample_codes(rng, _MANY)))),
        "ids of sampled archs": a_second(lambda: len({arch.id for arch in space.decode(codes[:_MANY])})),
        "encoded archs costed": a_second(lambda: len(cost(space, codes)["macs"])),
        "mutants and crosses within a limit": children,
        "candidates of a search by a predictor": a_second(predicted),
    }
    return [Measured(name, "/s", values) for name, values in in_turns(kinds, rounds, progress).items()]

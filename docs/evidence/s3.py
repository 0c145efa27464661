"""S3's claims at the size of small images: trains and scores everything that docs/space_evolution.md reports.

    python docs/evidence/s3.py --out results --processes 8 [evolved evolved36 quality quality36 alone distance]

Stop it at any time, run it again. docs/evidence/s3_tables.py reads the rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tasks import RECIPE, SEEDS, Row, Task, load, run_tasks, sampled, score, train

import raynas

SANDWICH = {"sampler": {"name": "sandwich", "random": 2}}
SUPERNET = {**RECIPE, "epochs": 12, "lr": 3e-3, "warmup_epochs": 2, "health": {"probe_every": 1000}}
"""The recipe of spaces/digits/preset_evolution.yaml, shorter."""

SHORT = {**SUPERNET, "epochs": 8}
LONG = 36
"""Epochs of the supernets of evolved36 and quality36: two of the experiments, with supernets that have learnt more."""

ALONE = {**SUPERNET, "epochs": 40, "warmup_epochs": 4}
ARCHS = 200
"""Subnets that a space is measured by, and that a search in it scores."""

TOP = 0.05
"""The best of them are the top tier."""

LIMITS = {"vit": 400_000, "s3": 80_000}
"""MACs that nine tenths of the poor space of a family keep."""

LONGER = "A, all of the compute"
NETWORKS = 8
"""Of each hand-made space, trained alone."""

HAND_MADE: dict[str, dict[str, Any]] = {
    "narrow": {"width": [8, 16, 24], "depth": [3, 4, 5], "heads": [1, 2, 3], "mlp_ratio": [0.5, 1.0, 1.5]},
    "slim": {"width": [16, 24, 32], "depth": [2, 3, 4], "heads": [1, 2], "mlp_ratio": [0.5, 1.0]},
    "middling": {"width": [24, 32, 40], "depth": [2, 3, 4], "heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
    "wide": {"width": [40, 48, 56], "depth": [2, 3], "heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0]},
    "shallow": {"width": [64, 72, 80], "depth": [1, 2], "heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0]},
    "mostly MLP": {"width": [16, 24, 32], "depth": [2, 3, 4], "heads": [1, 2], "mlp_ratio": [4.0, 5.0]},
    "four tokens": {
        "patch_size": [4],
        "width": [40, 48, 56],
        "depth": [3, 4, 5],
        "heads": [2, 3],
        "mlp_ratio": [1.0, 2.0],
    },
    "one block": {"width": [24, 32, 40], "depth": [1], "heads": [1, 2, 3], "mlp_ratio": [0.5, 1.0, 2.0]},
}
"""Spaces of plain transformers, from poor to good."""


def hand_made(name: str) -> Any:
    """One of these spaces, for the digits."""
    from raynas.space import Space

    given = {"patch_size": [2], **HAND_MADE[name]}
    blocks = {leaf: given.pop(leaf) for leaf in ("heads", "mlp_ratio")}
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 16, "class_token": True, "pool": "token"},
            "dimensions": {**given, "blocks": blocks},
        }
    )


# -- what the experiments share ------------------------------------------------------------------------------------


def accuracies(supernet: Any, archs: Sequence[Any]) -> list[float | None]:
    """Of subnets on the search split, with inherited weights."""
    return [row["accuracy"] for row in score(supernet, archs, "digits")]


def e_t_error(found: Sequence[float | None]) -> Row:
    """The E-T error of what has these accuracies, and the two errors that it is the mean of."""
    from raynas.outer.evolution.quality import resamples, space_quality

    errors = 1 - np.array(found, dtype=float)
    whole, _ = space_quality(errors, resamples(np.random.default_rng(0), len(errors)), TOP)
    return {"error": whole.error, "mean": whole.mean, "top": whole.top}


def on_test(network: Any) -> float:
    """The error of a network of one arch on the test split."""
    from raynas.data.config import DataConfig
    from raynas.data.images import decode
    from raynas.data.load import load_test
    from raynas.scoring.score_arch import score_arch

    space, data = network.space, load("digits")
    images, labels = decode(load_test(DataConfig(name="digits")).at(space.input_size, space.channels))
    result = score_arch(network, space.smallest(), images, labels, data.normalisation)
    return 1 - float(result.top1.mean())


# -- experiment 14 -------------------------------------------------------------------------------------------------


def evolved(family: str, seed: int, supernet: dict[str, Any] = SUPERNET) -> list[Row]:
    """Figure 6 and Table 5: spaces A, B and C, and A with all that the three have cost.

    That A's supernet is trained by as many multiply-accumulates as the three together, and its search scores as many
    subnets as were scored of them, C's search included. The best subnet of each is also trained alone, and tested.
    """
    from raynas.outer.evolution.loop import evolve_space
    from raynas.presets.space_evolution import SpaceEvolutionConfig
    from raynas.runs.run import Run
    from raynas.space import load_space

    space = hand_made("narrow") if family == "vit" else load_space("digits/s3_to_evolve")
    limit, measured = LIMITS[family], []

    def measure(index: int, here: Any, archs: Sequence[Any]) -> list[float | None]:
        trained, _ = train(here, "digits", supernet, seed, SANDWICH)
        measured.append((trained, archs))
        return accuracies(trained, archs)

    config = SpaceEvolutionConfig(iterations=3, archs=ARCHS, top=TOP, most_steps=2, fewest=20, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder, create=True)
        evolve_space(run, space, config, measure, {"macs": (None, limit)})
    rows = [
        {"space": letter, "epochs": supernet["epochs"], **found(*each, limit, ARCHS, seed)}
        for letter, each in zip("ABC", measured, strict=False)  # it may end earlier
    ]
    steps = [step_macs(each.space) for each, _ in measured]
    epochs = round(supernet["epochs"] * sum(steps) / steps[0])
    longer, _ = train(space, "digits", {**supernet, "epochs": epochs}, seed, SANDWICH)
    budget = ARCHS * (len(measured) + 1)
    return [*rows, {"space": LONGER, "epochs": epochs, **found(longer, measured[0][1], limit, budget, seed)}]


def step_macs(space: Any) -> float:
    """Multiply-accumulates of the four passes of a training step, for one image."""
    from raynas.costs import cost

    drawn = cost(space, space.sample_codes(np.random.default_rng(0), 2000))["macs"].mean()
    ends = cost(space, [space.smallest(), space.largest()])["macs"].sum()
    return float(ends + 2 * drawn)


def found(supernet: Any, archs: Sequence[Any], limit: int, evaluations: int, seed: int) -> Row:
    """The E-T error of a space, and the best subnet that S3's search finds in it, inherited and trained alone."""
    from raynas.costs import cost
    from raynas.search import Evolution

    space = supernet.space
    search = Evolution(
        space, constraints={"macs": (None, limit)}, seed=seed, evaluations=evaluations,
        mutation={"*": 0.4}, crossover="block",
    )  # fmt: skip
    while asked := search.ask(50):
        search.tell(asked, accuracies(supernet, asked))
    best: Any = search.best()  # of one objective
    (inherited,) = score(supernet, [best], "digits")
    network, _ = train(space.fix(best), "digits", ALONE, seed)
    (alone,) = score(network, [network.space.smallest()], "digits")
    return {
        **e_t_error(accuracies(supernet, archs)),
        "archs_in_it": float(space.cardinality()),
        "mean_macs": float(cost(space, archs)["macs"].mean()),
        "best_macs": inherited["macs"],
        "inherited_error": 1 - inherited["accuracy"],
        "alone_error": 1 - alone["accuracy"],
        "test_error": on_test(network),
        "best": json.dumps(best.to_dict()),
        "definition": json.dumps(space.to_dict()),
    }


# -- experiment 15 -------------------------------------------------------------------------------------------------


def networks_of(space: Any) -> list[Any]:
    """Random networks of a space, all different: fewer where it holds fewer."""
    return list(dict.fromkeys(sampled(space, ARCHS)))


def quality(space: str, seed: int, supernet: dict[str, Any] = SHORT) -> list[Row]:
    """A space's E-T error by a supernet of a few epochs."""
    made = hand_made(space)
    trained, _ = train(made, "digits", supernet, seed, SANDWICH)
    return [e_t_error(accuracies(trained, networks_of(made)))]


def alone(space: str, seed: int) -> list[Row]:
    """Networks of a space, the first that its E-T error is of, trained from scratch."""
    made, rows = hand_made(space), []
    for arch in networks_of(made)[:NETWORKS]:
        network, _ = train(made.fix(arch), "digits", ALONE, seed)
        rows += score(network, [network.space.smallest()], "digits")
    return rows


# -- experiment 12 -------------------------------------------------------------------------------------------------


def distance(family: str, seed: int) -> list[Row]:
    """Figures 4 and 8: how far the largest subnet's queries look, by block, before training and after."""
    from raynas.nets import build_supernet
    from raynas.space import load_space

    space = load_space(f"digits/{family}")
    trained, _ = train(space, "digits", {**SUPERNET, "epochs": 20}, seed, SANDWICH)
    torch.manual_seed(seed)
    kinds = {"trained": distances(trained), "untrained": distances(build_supernet(space).eval())}
    kinds["anywhere"] = distances(trained, even=True)
    return [
        {"kind": kind, "block": block, "pixels": pixels}
        for kind, values in kinds.items()
        for block, pixels in enumerate(values)
    ]


def distances(supernet: Any, even: bool = False) -> list[float]:
    """The mean distance between a query and what it attends to, in pixels, for each block of the largest subnet.

    Args:
        supernet: the classes' token of a plain transformer is left out, on both sides.
        even: as if a query attended alike to all that it may attend to.
    """
    from raynas.data.images import decode
    from raynas.data.pixels import normalise

    space, data = supernet.space, load("digits")
    images, _ = decode(data.search.at(space.input_size, space.channels))
    found = raynas.attention_maps(supernet.extract(space.largest()), normalise(images, data.normalisation))
    if even:
        found = [replace(maps, weights=(maps.weights > 0).float()) for maps in found]
    return [float(maps.distance().mean()) for maps in found]


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment."""
    families = [{"family": family} for family in LIMITS]
    spaces = [{"space": name} for name in HAND_MADE]
    cells: dict[str, tuple[Callable[..., list[Row]], list[dict[str, Any]], range]] = {
        "evolved": (evolved, families, SEEDS),
        "evolved36": (partial(evolved, supernet={**SUPERNET, "epochs": LONG}), families, SEEDS),
        "quality": (quality, spaces, range(3)),
        "quality36": (partial(quality, supernet={**SUPERNET, "epochs": LONG}), spaces, range(3)),
        "alone": (alone, spaces, range(1)),
        "distance": (distance, families, SEEDS),
    }
    run, options, seeds = cells[experiment]
    yield from (Task(experiment, run, each, seed) for seed in seeds for each in options)


EXPERIMENTS = ("evolved", "alone", "quality", "distance", "evolved36", "quality36")

if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

"""How training-free scores and predictors rank networks: what docs/ranking.md reports.

    python docs/evidence/proxies.py --out results --processes 2 [truths proxies predictors]

Stop it at any time, run it again. `proxies` and `predictors` read the packed tables of networks trained alone, `truths`
among them, in docs/evidence/results. docs/evidence/proxies_tables.py reads the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from s3 import HAND_MADE, NETWORKS, hand_made, networks_of
from tables import read
from tasks import RECIPE, SEEDS, Row, Task, load, run_tasks, sampled, score, train
from vitas import BASE, PER_BUCKET, by_budget, digits_space

RESULTS = Path(__file__).with_name("results")
TRUTHS = 40
SPACES = {"twins": "digits/twins", "s3": "digits/s3", "vit_res": "digits/vit_resnas", "hybrid": "digits/nasvit"}
"""Of the families that have no truth table; of vit there are vitas.py and s3.py."""

IMAGES = 64
PROXIES = ("params", "macs", "synflow", "naswot", "dss", "az_nas")
PREDICTORS = ("forest", "boosting", "gaussian_process", "ranking")
SPLITS = range(20)
FITTED = {"inherited": (64, 512), "alone": (25, 50, 75)}


# -- networks trained alone ----------------------------------------------------------------------------------------


def truths(family: str, index: int, seed: int) -> list[Row]:
    """A random network of a family, trained from scratch."""
    from raynas.space import load_space

    space = load_space(SPACES[family])
    arch = sampled(space, TRUTHS)[index]
    network, _ = train(space.fix(arch), "digits", RECIPE, seed)
    (row,) = score(network, [network.space.smallest()], "digits")
    return [{**row, "arch": arch.id, "values": json.dumps(arch.to_dict())}]


def known(table: str) -> tuple[Any, list[Any], list[Row]]:
    """The space, the archs, and their accuracy and loss (means over seeds) of a table of networks trained alone.

    Args:
        table: `vit` (vitas.py's truths), `vit, 8 spaces` (s3.py's), or a family of `SPACES`.
    """
    from raynas.space import Space, load_space

    if table == "vit":
        rows, space = read(RESULTS, "truth"), digits_space(BASE, sharing="cyclic")
    elif table == "vit, 8 spaces":
        rows = read(RESULTS, "alone")
        archs = {arch.id: arch for name in HAND_MADE for arch in networks_of(hand_made(name))[:NETWORKS]}
        rows = [{**row, "values": json.dumps(archs[row["arch"]].to_dict())} for row in rows]
        space = Space.from_dict(union_of_spaces())
    else:
        rows, space = [row for row in read(RESULTS, "truths") if row["family"] == table], load_space(SPACES[table])
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["values"], []).append(row)
    archs = [space.arch(json.loads(values)) for values in found]
    means = [
        {name: float(np.mean([row[name] for row in group])) for name in ("accuracy", "loss")}
        for group in found.values()
    ]
    return space, archs, means


def union_of_spaces() -> dict[str, Any]:
    """One space that holds the networks of all hand-made ones."""
    given = hand_made("four tokens").to_dict()
    every = [{"patch_size": [2], **space} for space in HAND_MADE.values()]
    choices = {name: sorted({choice for space in every for choice in space[name]}) for name in every[0]}
    blocks = {leaf: choices.pop(leaf) for leaf in ("heads", "mlp_ratio")}
    return {**given, "dimensions": {**choices, "patch_size": choices["patch_size"][::-1], "blocks": blocks}}


TABLES = ("vit", "vit, 8 spaces", *SPACES)


# -- experiments ---------------------------------------------------------------------------------------------------


def proxies(table: str, proxy: str, seed: int) -> list[Row]:
    """A training-free score of the networks of a table, on 64 images of the search split."""
    from raynas.data.images import decode
    from raynas.data.pixels import normalise
    from raynas.proxies.scorer import ProxyScorer
    from raynas.scoring.scored_supernet import choose_images

    data, (space, archs, rows) = load("digits"), known(table)
    chosen = data.search.take(choose_images(len(data.search), IMAGES))
    pixels, _ = decode(chosen, space.input_size, space.channels)
    values = ProxyScorer(space, proxy, normalise(pixels, data.normalisation), seed).score(archs)
    return [{**row, "network": arch.id, "value": value} for arch, row, value in zip(archs, rows, values, strict=True)]


def predictors(predictor: str, of: str, seed: int) -> list[Row]:
    """A predictor fitted to some accuracies and tested on others, by sharing and by networks trained alone.

    Args:
        of: `inherited`, of one supernet for each seed (2,000 subnets, tested on 512); or `alone` (100 networks, tested
            on all others).
    """
    from raynas.costs import cost
    from raynas.search.predictors import PREDICTORS as FITS
    from raynas.search.predictors import assess

    if of == "alone":
        space, archs, rows = known("vit")
    else:
        space = digits_space(BASE, sharing="cyclic")
        archs = by_budget(space, PER_BUCKET)
        rows = [row for row in read(RESULTS, "patterns") if row["sharing"] == "cyclic" and row["seed"] == seed]
        by_network = {row["network"]: row for row in rows}
        rows = [by_network[arch.network_id] for arch in archs]
    codes, values = space.encode(archs), np.array([row["accuracy"] for row in rows])
    order, found = np.random.default_rng(seed).permutation(len(archs)), []
    for fitted in FITTED[of]:
        learnt = order[:fitted]
        tested = order[-512:] if of == "inherited" else order[fitted:]
        predict = FITS[predictor](space, codes[learnt], values[learnt], seed)
        macs = cost(space, codes[tested])["macs"]
        quality = assess("accuracy", True, fitted, codes[tested], values[tested], predict(codes[tested]), macs)
        numbers = {name: getattr(quality, name) for name in ("kendall", "by_macs", "rmse", "regret")}
        found.append({"fitted": fitted, **numbers})
    return found


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment."""
    if experiment == "truths":
        # The same number of each family at any time.
        yield from (Task("truths", truths, {"family": f, "index": i}, 0) for i in range(TRUTHS) for f in SPACES)
    elif experiment == "proxies":
        for table in TABLES:
            yield from (Task("proxies", proxies, {"table": table, "proxy": p}, s) for p in PROXIES for s in range(3))
    elif experiment == "predictors":
        for of, seeds in (("inherited", SEEDS), ("alone", SPLITS)):
            yield from (
                Task("predictors", predictors, {"predictor": p, "of": of}, s) for p in PREDICTORS for s in seeds
            )
    else:
        raise AssertionError(experiment)


EXPERIMENTS = ("truths", "proxies", "predictors")


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

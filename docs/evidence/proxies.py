"""How training-free scores and predictors rank networks: what docs/ranking.md reports.

    python docs/evidence/proxies.py --out results --processes 2 [proxies predictors]

Stop it at any time, run it again. The accuracies are those in docs/evidence/results. docs/evidence/proxies_tables.py
reads the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nasvit import SUBNETS, supernet_space
from s3 import HAND_MADE, NETWORKS, hand_made, networks_of
from tables import read
from tasks import SEEDS, Row, Task, load, run_tasks, sampled
from vitas import BASE, PER_BUCKET, by_budget, digits_space

RESULTS = Path(__file__).with_name("results")
ALONE = ("vit", "vit, 8 spaces")
INHERITED = ("s3", "hybrid", "cnn")
"""Tables of accuracies by family: of networks trained alone, and of subnets. `cnn` is of family hybrid, as `hybrid`."""

IMAGES = 64
PROXIES = ("params", "macs", "synflow", "naswot", "dss", "az_nas")
PREDICTORS = ("forest", "boosting", "gaussian_process", "ranking")
SPLITS = range(20)
FITTED = {"inherited": (64, 512), "alone": (25, 50, 75)}


# -- accuracies ----------------------------------------------------------------------------------------------------


def known(table: str) -> tuple[Any, list[Any], list[Row]]:
    """The space, the archs, and their accuracy and loss (means over seeds) in a table.

    Args:
        table: of `ALONE` (vitas.py's truths, and s3.py's), or of `INHERITED` (nasvit.py's supernets).
    """
    from raynas.space import Space

    if table == "vit":
        space, rows = digits_space(BASE, sharing="cyclic"), read(RESULTS, "truth")
        by_id = {row["arch"]: space.arch(json.loads(row["values"])) for row in rows}
    elif table == "vit, 8 spaces":
        space, rows = Space.from_dict(union_of_spaces()), read(RESULTS, "alone")
        every = [arch for name in HAND_MADE for arch in networks_of(hand_made(name))[:NETWORKS]]
        by_id = {arch.id: space.arch(arch.to_dict()) for arch in every}
    else:
        space = supernet_space(table)
        wanted = {"kind": table, "objective": "alpha", "gradients": "sum", "role": "random"}
        rows = [row for row in read(RESULTS, "supernets") if wanted.items() <= row.items()]
        by_id = {arch.id: arch for arch in sampled(space, SUBNETS)}
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["arch"], []).append(row)
    archs = [by_id[name] for name in found]
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


# -- experiments ---------------------------------------------------------------------------------------------------


def proxies(table: str, proxy: str, seed: int) -> list[Row]:
    """A training-free score of the networks of a table, on 64 images of the search split."""
    from raynas.data.images import choose_images, decode
    from raynas.data.pixels import normalise
    from raynas.proxies.scorer import ProxyScorer

    data, (space, archs, rows) = load("digits"), known(table)
    chosen = data.search.take(choose_images(len(data.search), IMAGES))
    pixels, _ = decode(chosen.at(space.input_size, space.channels))
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
    if experiment == "proxies":
        for table, seeds in [*((table, range(3)) for table in ALONE), *((table, range(2)) for table in INHERITED)]:
            yield from (Task("proxies", proxies, {"table": table, "proxy": p}, s) for p in PROXIES for s in seeds)
    elif experiment == "predictors":
        for of, seeds in (("inherited", SEEDS), ("alone", SPLITS)):
            yield from (
                Task("predictors", predictors, {"predictor": p, "of": of}, s) for p in PREDICTORS for s in seeds
            )
    else:
        raise AssertionError(experiment)


EXPERIMENTS = ("proxies", "predictors")


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

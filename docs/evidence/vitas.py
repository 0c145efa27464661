"""ViTAS's claims at the size of digits: trains and scores everything that docs/vitas.md reports.

    python docs/evidence/vitas.py --out results --processes 8 [patterns truth identity ...]

Stop it at any time, run it again. docs/evidence/vitas_tables.py reads the rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from tasks import SEEDS, SUPERNET, Row, Task, curve, run_tasks, sampled, score, train

BUCKETS, PER_BUCKET = 8, 250  # ViTAS v2, section 6.4
GROUPS = 10

FREE = {
    "heads": [1, 2, 3, 4],
    "query_width": [12 * i for i in range(1, 11)],
    "mlp_width": [12 * i for i in range(1, 11)],
}
WIDTHS = [6 * i for i in range(1, 11)]
ALONE = {**SUPERNET, "epochs": 80, "weight_decay": 0.05, "smoothing": 0.1, "health": {"probe_every": 80}}


# -- spaces --------------------------------------------------------------------------------------------------------


def digits_space(blocks: dict[str, Any], **constants: Any) -> Any:
    """A space of 8x8 digits, 16 patch tokens, in ten groups of widths."""
    return _space(8, [2], blocks, constants)


def mnist_space(patches: list[int], blocks: dict[str, Any], **constants: Any) -> Any:
    """A space of 28x28 MNIST images."""
    return _space(28, patches, blocks, constants)


def _space(size: int, patches: list[int], blocks: dict[str, Any], constants: dict[str, Any]) -> Any:
    from raynas.space import Space

    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": size, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": None, **constants},
            "dimensions": {"patch_size": patches, "width": WIDTHS, **blocks},
        }
    )


def shifting(blocks: int) -> dict[str, Any]:
    """Up to so many blocks, the first ones."""
    return {"depth": list(range(1, blocks + 1)), "blocks": FREE}


def anywhere(blocks: int) -> dict[str, Any]:
    """Each of so many blocks kept or not."""
    return {"blocks": {"repeat": blocks, "kept": [False, True], **FREE}}


# -- training and scoring ------------------------------------------------------------------------------------------


@lru_cache
def by_budget(space: Any, per_bucket: int) -> list[Any]:
    """So many different archs from each of eight equal ranges of MACs, the lowest first (v2, section 6.4)."""
    from raynas.costs import sample_within, span

    edges = np.linspace(*span(space)["macs"], BUCKETS + 1)
    archs: list[Any] = []
    for bucket, window in enumerate(itertools.pairwise(edges)):
        drawn = sample_within(space, {"macs": window}, np.random.default_rng(bucket), 2 * per_bucket)
        archs += list(dict.fromkeys(space.decode(drawn)))[:per_bucket]
    assert len(archs) == BUCKETS * per_bucket
    return archs


# -- experiments ---------------------------------------------------------------------------------------------------

BASE = shifting(5)


def truth_archs() -> list[Any]:
    """The hundred archs that are trained alone: a quarter of an eighth from each budget."""
    archs = by_budget(digits_space(BASE, sharing="cyclic"), PER_BUCKET)
    chosen = [archs[bucket * PER_BUCKET + i] for i in range(13) for bucket in range(BUCKETS)]
    return chosen[:100]


def patterns(sharing: str, seed: int) -> list[Row]:
    """Experiments 2 and 3: one supernet by each pattern; 2,000 paths scored, and those of the truth table."""
    space = digits_space(BASE, sharing=sharing)
    supernet, history = train(space, "digits", SUPERNET, seed)
    paths = [space.arch(arch) for arch in by_budget(digits_space(BASE, sharing="cyclic"), PER_BUCKET)]
    rows = score(supernet, paths, "digits")
    return [{**row, "bucket": i // PER_BUCKET, "curve": curve(history)} for i, row in enumerate(rows)]


def truth(index: int, seed: int) -> list[Row]:
    """An arch trained alone from scratch."""
    arch = truth_archs()[index]
    network, history = train(arch.space.fix(arch), "digits", ALONE, seed)
    return [{**score(network, [network.space.smallest()], "digits")[0], **_values(arch), "curve": curve(history)}]


def finetuned(index: int, seed: int) -> list[Row]:
    """Experiment 13: an arch fine-tuned from what it inherits from a cyclic supernet, and that without."""
    supernet, _ = train(digits_space(BASE, sharing="cyclic"), "digits", SUPERNET, seed)
    rows = []
    for arch in truth_archs()[index : index + 10]:
        arch = supernet.space.arch(arch)
        inherited = score(supernet, [arch], "digits")[0]
        settings = {**ALONE, "epochs": 20, "lr": 5e-4, "warmup_epochs": 0}
        start = supernet.extract(arch).state_dict()
        network, _ = train(arch.space.fix(arch), "digits", settings, seed, init=start)
        tuned = score(network, [network.space.smallest()], "digits")[0]
        rows.append({**inherited, "finetuned_accuracy": tuned["accuracy"], "finetuned_loss": tuned["loss"]})
    return rows


def identity(kind: str, seed: int) -> list[Row]:
    """Experiment 5: eight blocks, shifted or dropped anywhere; the same 300 networks scored, the best trained alone."""
    shift = digits_space(shifting(8), sharing="cyclic")
    space = shift if kind == "shift" else digits_space(anywhere(8), sharing="cyclic")
    supernet, history = train(space, "digits", SUPERNET, seed)
    networks = sampled(shift, 300)
    rows = score(supernet, [_in(space, arch) for arch in networks], "digits")
    best = min(range(len(rows)), key=lambda i: (-rows[i]["accuracy"], rows[i]["loss"]))
    alone, _ = train(shift.fix(networks[best]), "digits", ALONE, seed)
    retrained = score(alone, [alone.space.smallest()], "digits")[0]
    return [
        {
            **row,
            "network": networks[i].network_id,
            "best": i == best,
            "retrained_accuracy": retrained["accuracy"] if i == best else None,
            "retrained_loss": retrained["loss"] if i == best else None,
            "curve": curve(history),
        }
        for i, row in enumerate(rows)
    ]


def _in(space: Any, arch: Any) -> Any:
    """A network of a depth as a path of a space whose blocks are kept or not: the first ones."""
    if space.has("depth"):
        return arch
    values = dict(arch)
    depth = values.pop("depth")
    kept = sum(dimension.name.endswith(".kept") for dimension in space.dimensions)
    return space.arch({**values, **{f"blocks.{i}.kept": i < depth for i in range(kept)}})


MNIST = {**SUPERNET, "epochs": 40, "health": {"probe_every": 40}}


def tokens(token: str, seed: int) -> list[Row]:
    """Experiment 7: three patch sizes with one class token between them, or one each."""
    space = mnist_space([14, 7, 4], shifting(4), sharing="cyclic", private_class_token=token == "private")
    supernet, history = train(space, "mnist5k", MNIST, seed)
    rows = score(supernet, sampled(space, 200), "mnist5k")
    patches = [arch["patch_size"] for arch in sampled(space, 200)]
    return [{**row, "patch": patch, "curve": curve(history)} for row, patch in zip(rows, patches, strict=True)]


def heads(private: str, seed: int) -> list[Row]:
    """Experiment 8: which of query, key and value each head count has of its own (v1, Table 2)."""
    blocks = {"depth": [1, 2, 3, 4], "blocks": {**FREE, "heads": [1, 2, 3, 6]}}
    space = mnist_space([7], blocks, sharing="cyclic", private_heads=private)
    supernet, history = train(space, "mnist5k", MNIST, seed)
    return [{**row, "curve": curve(history)} for row in score(supernet, sampled(space, 200), "mnist5k")]


def alignment(kind: str, seed: int, above: float = 0.0) -> list[Row]:
    """Experiment 9: the budget is a tenth of all archs; blocks dropped evenly, or as often as the budget wants.

    Args:
        above: the share of archs with fewer MACs than the budget's least; 0 is the lowest tenth, 0.45 the middle one.
    """
    from raynas.costs import cost, sample_within, span

    space = digits_space(anywhere(5), sharing="cyclic")
    everything = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))["macs"]
    least, most = np.quantile(everything, [above, above + 0.1])
    window = (float(least if above else span(space)["macs"][0]), float(most))
    sampler = {"name": "single_path", **({"align": {"macs": list(window)}} if kind == "solved" else {})}
    supernet, history = train(space, "digits", SUPERNET, seed, {"sampler": sampler})
    codes = sample_within(space, {"macs": window}, np.random.default_rng(1), 300)
    return [{**row, "curve": curve(history)} for row in score(supernet, space.decode(codes), "digits")]


def block(seed: int) -> list[Row]:
    """Experiment 10: one block stacked; all 4,000 archs scored."""
    from raynas.space import load_space

    space = load_space("digits/vitas_block")
    supernet, history = train(space, "digits", SUPERNET, seed)
    archs = list(space.enumerate())
    rows = score(supernet, archs, "digits")
    return [{**row, **_values(arch), "curve": curve(history)} for row, arch in zip(rows, archs, strict=True)]


def _values(arch: Any) -> Row:
    return {"values": json.dumps(arch.to_dict())}


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment, the longest first."""
    cells: dict[str, list[tuple[Callable[..., list[Row]], dict[str, Any]]]] = {
        "patterns": [(patterns, {"sharing": name}) for name in ("bilateral", "cyclic", "ordinal")],
        "identity": [(identity, {"kind": name}) for name in ("shift", "anywhere")],
        "tokens": [(tokens, {"token": name}) for name in ("shared", "private")],
        "heads": [(heads, {"private": name}) for name in ("none", "v", "qk", "qkv")],
        "alignment": [(alignment, {"kind": name}) for name in ("even", "solved")],
        "budgets": [(alignment, {"kind": name, "above": at}) for at in (0.45, 0.75) for name in ("even", "solved")],
    }
    if experiment in cells:
        yield from (Task(experiment, run, options, seed) for run, options in cells[experiment] for seed in SEEDS)
    elif experiment == "truth":
        yield from (Task("truth", truth, {"index": index}, 0) for index in range(100))
        yield from (Task("truth", truth, {"index": index}, seed) for seed in (1, 2) for index in range(20))
    elif experiment == "finetuned":
        yield Task("finetuned", finetuned, {"index": 0}, 0)
    elif experiment == "block":
        yield from (Task("block", block, {}, seed) for seed in SEEDS)
    else:
        raise AssertionError(experiment)


EXPERIMENTS = ("patterns", "truth", "identity", "alignment", "budgets", "finetuned", "block", "tokens", "heads")


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

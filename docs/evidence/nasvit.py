"""NASViT's claims at the size of small images: trains, scores and times everything that docs/nasvit.md reports.

    python docs/evidence/nasvit.py --out results --processes 8 [supernets recipes scratch]
    python docs/evidence/nasvit.py --out results --processes 1 search       # times subnets: on a quiet machine

Stop it at any time, run it again. docs/evidence/nasvit_tables.py reads the rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks import RECIPE, SEEDS, Row, Task, curve, run_tasks, sampled, score, train

CALIBRATION = 256
SUBNETS = 50
SAMPLES, HELD_OUT, VERIFIED = 1024, 512, 64
TIMINGS = 100

TRAINING = {**RECIPE, "epochs": 24, "lr": 3e-3, "health": {"probe_every": 24, "conflict": {"steps": 2}}}
OBJECTIVES = {"labels": "labels", "kl": "inplace_distillation", "alpha": "alpha_divergence"}
GRADIENTS = {
    "sum": {"name": "sum"},
    "subnets": {"name": "project", "priority": "subnets"},
    "largest": {"name": "project", "priority": "largest"},
}


# -- spaces --------------------------------------------------------------------------------------------------------


def hybrid(size: int, strides: list[int], stages: list[dict[str, Any]], dims: dict[str, Any], **constants: Any) -> Any:
    """A space of family hybrid in the paper's form; stages with an MLP ratio are transformers."""
    from raynas.space import Space

    return Space.from_dict(
        {
            "family": "hybrid",
            "input": {"size": size, "channels": 1},
            "classes": 10,
            "constants": {
                "kinds": ["transformer" if "mlp_ratio" in stage else "conv" for stage in stages],
                "strides": strides,
                "squeeze": [False] * len(stages),
                "divisor": 4,
                "norm": "token",
                "scaling": "width",
                "head_expansion": 2,
                **constants,
            },
            "dimensions": {"stages": stages, **dims},
        }
    )


def supernet_space(kind: str) -> Any:
    """Of the digits: a hybrid (also without factors), a CNN of as many MACs, and two families of layer norms alone."""
    from raynas.space import load_space

    if kind in ("vit", "s3"):
        return load_space(f"digits/{kind}")
    first = {"width": [8, 12, 16, 20, 24], "depth": [1, 2], "kernel": [3], "expansion": [1, 2]}
    attention = {"expansion": [2], "mlp_ratio": [0.5, 1.0, 2.0], "windows": [4, 1]}
    last = {"depth": [2, 3], "kernel": [3], "width": [16, 24, 32], **attention}
    if kind == "cnn":
        last = {"depth": [2, 3], "kernel": [3], "width": [20, 32, 44], "expansion": [3, 4]}
    dims = {"stem": {"width": [8, 12]}, "head": {"width": [32, 48, 64]}}
    constants = {"scaling": "none"} if kind == "unscaled" else {}
    return hybrid(8, [2, 1], [first, last], dims, stem_stride=1, **constants)


def train_supernet(
    kind: str, objective: str, gradients: str, seed: int, changes: dict[str, Any] | None = None
) -> tuple[Any, list[Row]]:
    """A sandwich of three subnets a step, by the recipe with these changes; and its history."""
    plan = {
        "sampler": {"name": "sandwich", "random": 1},
        "objective": OBJECTIVES[objective],
        "gradients": GRADIENTS[gradients],
    }
    return train(supernet_space(kind), "digits", {**TRAINING, **(changes or {})}, seed, plan)


# -- experiments ---------------------------------------------------------------------------------------------------


def supernets(kind: str, objective: str, gradients: str, seed: int, changes: dict[str, Any] | None = None) -> list[Row]:
    """Experiments 16, 22, 23 and 24: the smallest, the largest and 50 random subnets; conflicts in every epoch."""
    from raynas.errors import TrainingCollapsed

    try:
        supernet, history = train_supernet(kind, objective, gradients, seed, changes)
    except TrainingCollapsed:
        return [{"role": "collapsed"}]
    space = supernet.space
    archs = [space.smallest(), space.largest(), *sampled(space, SUBNETS)]
    rows = score(supernet, archs, "digits", CALIBRATION if space.family == "hybrid" else None)
    conflicts = json.dumps([round(entry["conflict"], 4) for entry in history if "conflict" in entry])
    about = {"curve": curve(history), "conflicts": conflicts}
    roles = ["smallest", "largest", *["random"] * SUBNETS]
    return [{**row, "role": role, **about} for row, role in zip(rows, roles, strict=True)]


RECIPES: dict[str, dict[str, Any]] = {
    "shifted": {"augment": {"shift": 1}},
    "augmented and regularised": {
        "augment": {"shift": 1, "reprob": 0.25, "remode": "pixel"},
        "mixup": 0.8,
        "cutmix": 1.0,
        "drop_path": 0.1,
    },
    "taught": {},
}
"""Augmentation from a little to a transformer's usual recipe (DeiT's, less what digits do not bear), and a teacher."""


def recipes(recipe: str, seed: int) -> list[Row]:
    """Experiment 23, the rest of Table 7: NASViT's supernet with other recipes."""
    with tempfile.TemporaryDirectory() as folder:
        taught = {"teachers": {"models": [{"run": teacher(Path(folder), seed)}]}} if recipe == "taught" else {}
        return supernets("hybrid", "alpha", "subnets", seed, {**RECIPES[recipe], **taught})


def teacher(folder: Path, seed: int) -> str:
    """The CNN's largest network, trained alone for twice as long, as a run directory."""
    from safetensors.torch import save_file

    from raynas.runs.run import Run

    space = supernet_space("cnn")
    space = space.fix(space.largest())
    network, _ = train(space, "digits", {**TRAINING, "epochs": 48}, seed)
    run = Run(folder, create=True)
    run.write_yaml("space.yaml", space.to_dict())
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}})
    save_file(network.state_dict(), folder / "supernet.safetensors")
    return str(folder)


SCRATCH: dict[str, tuple[int, list[int], int, float]] = {
    "heads of 4": (3, [16, 32, 48, 64], 4, 1.6875),
    "heads of 8": (3, [16, 32, 48, 64], 8, 2.0),
    "heads of 16": (3, [16, 32, 48, 64], 16, 2.0625),
    "from stage 2": (2, [16, 32, 40, 64], 8, 2.0),
    "from stage 4": (4, [16, 32, 64, 80], 8, 2.0),
}
"""The first transformer stage of four, the stages' widths, the heads' and the MLP ratio: 1.81 to 1.84 M MACs."""


def scratch(arm: str, seed: int) -> list[Row]:
    """Experiment 25, Tables 10 and 11: networks of equal MACs trained alone, on MNIST at 16 pixels."""
    start, widths, head_dim, ratio = SCRATCH[arm]
    stages: list[dict[str, Any]] = []
    for number, width in enumerate(widths, 1):
        stage = {"width": [width], "depth": [2], "kernel": [3], "expansion": [2 if number == 1 else 3]}
        stages.append(stage if number < start else {**stage, "mlp_ratio": [ratio], "windows": [1]})
    dims = {"stem": {"width": [16]}, "head": {"width": [128]}}
    space = hybrid(16, [1, 2, 1, 2], stages, dims, stem_stride=2, head_dim=head_dim)
    network, history = train(space, "mnist5k@16", {**RECIPE, "epochs": 6, "lr": 3e-3, "warmup_epochs": 1}, seed)
    return [{**score(network, [space.smallest()], "mnist5k@16")[0], "curve": curve(history)}]


def search(seed: int) -> list[Row]:
    """Experiments 26 and 27, Table 12: NASViT's search by its predictor, for a front by MACs and for one by latency.

    Both learn from the same 1,024 scores, half of which are held out, and time here, at batch 1, what they find.
    """
    from raynas.costs import cost
    from raynas.latency.measured import time_archs
    from raynas.latency.stored import archs_to_time, fit_predictor
    from raynas.latency.timing import Conditions
    from raynas.search import PredictorEvolution

    supernet, _ = train_supernet("hybrid", "alpha", "subnets", seed)
    space, known, rows = supernet.space, dict[Any, Row](), list[Row]()
    timings = time_archs(None, archs_to_time(space, TIMINGS), Conditions())
    latency = fit_predictor(space, timings)
    fronts: dict[str, Any] = {}
    for goal in ("macs", "latency"):
        found = PredictorEvolution(
            space,
            {"accuracy": "max", goal: "min"},
            seed=seed,
            samples=SAMPLES,
            held_out=HELD_OUT,
            verify=VERIFIED,
            least_tau=-1,
            costs={"latency": latency},
        )
        while archs := found.ask(VERIFIED):
            new = [arch for arch in archs if arch not in known]
            known.update(zip(new, score(supernet, new, "digits", CALIBRATION), strict=True))
            found.tell(archs, [known[arch] for arch in archs])
        fronts[goal] = found.best()
        quality = found.qualities[0]  # the same in both
    macs = cost(space, quality.codes)["macs"]
    held_out = {"part": "held out", "latency_error": latency.held_out.error, "latency_rank": latency.held_out.rank}
    for count, measured, predicted in zip(macs, quality.measured, quality.predicted, strict=True):
        rows.append({**held_out, "macs": int(count), "accuracy": float(measured), "predicted": float(predicted)})
    both = list(dict.fromkeys([*fronts["macs"], *fronts["latency"]]))
    times = time_archs(None, both, Conditions())
    ms = {arch: row["ms"] for arch, row in zip(both, times, strict=True)}
    for goal, front in fronts.items():
        rows += [{"part": "front", "goal": goal, **known[arch], "ms": ms[arch]} for arch in front]
    return rows


ARMS = [
    ("hybrid", "alpha", "sum"),
    ("hybrid", "alpha", "subnets"),
    ("hybrid", "alpha", "largest"),
    ("unscaled", "alpha", "sum"),
    ("unscaled", "alpha", "subnets"),
    ("hybrid", "labels", "sum"),
    ("vit", "labels", "sum"),
    ("vit", "alpha", "sum"),
    ("s3", "labels", "sum"),
    ("s3", "alpha", "sum"),
]
CNN_ARMS = [("cnn", objective, gradients) for objective in ("kl", "alpha") for gradients in ("sum", "subnets")]


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment."""

    def named(arms: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
        return [dict(zip(("kind", "objective", "gradients"), arm, strict=True)) for arm in arms]

    cells: dict[str, list[tuple[Callable[..., list[Row]], list[dict[str, Any]], range]]] = {
        "supernets": [(supernets, named(ARMS), SEEDS), (supernets, named(CNN_ARMS), range(3))],
        "recipes": [(recipes, [{"recipe": recipe} for recipe in RECIPES], SEEDS)],
        "scratch": [(scratch, [{"arm": arm} for arm in SCRATCH], SEEDS)],
        "search": [(search, [{}], range(3))],
    }
    for run, options, seeds in cells[experiment]:
        yield from (Task(experiment, run, each, seed) for seed in seeds for each in options)


EXPERIMENTS = ("supernets", "recipes", "scratch", "search")

if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

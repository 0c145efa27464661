"""How supernets by different recipes rank the networks of docs/truths.md: the accuracies that their subnets inherit.

    python docs/evidence/truths_supernets.py --out results --processes 2

Stop it at any time, run it again. docs/evidence/truths_supernets_tables.py reads the rows.

`ranking`: the 100 networks of `truths/vit` as subnets of a supernet by the preset `truths`, with changes (`RECIPES`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tasks import Row, Task, run_tasks
from truths import PRESET, SCORED_AT_ONCE, archs_of, images

EXPERIMENTS = ("ranking",)
FAMILY = "vit"
SANDWICH = {"name": "sandwich", "random": 2}
SINGLE, MIXED = {"name": "single_path"}, {"name": "mixed", "archs": 4}
WORST = {"bucket": {"macs": 2.0e5}, "candidates": 3, "choose": "worst"}

RECIPES: dict[str, dict[str, Any]] = {
    "sandwich": {},
    "sandwich, 4 times the epochs": {"epochs": 48},
    "sandwich, in-place distillation": {"objective": "inplace_distillation"},
    "sandwich, alpha-divergence": {"objective": "alpha_divergence"},
    "sandwich, projection": {"gradients": {"name": "project"}},
    "sandwich, attentive": {"sampler": {**SANDWICH, "attentive": WORST}},
    "sandwich, widening": {"widening": 0.25},
    "sandwich, bilateral sharing": {"sharing": "bilateral"},
    "sandwich, cyclic sharing": {"sharing": "cyclic"},
    "single path": {"sampler": SINGLE},
    "single path, 4 times the epochs": {"sampler": SINGLE, "epochs": 48},
    "mixed": {"sampler": MIXED},
    "mixed, 4 times the epochs": {"sampler": MIXED, "epochs": 48},
}
"""Changes to the preset's plan, its epochs and the space's sharing. A step of a sandwich has four passes."""


def inherited(recipe: str, seed: int) -> list[Row]:
    """A row for each network, with what it gets right of the search split by inherited weights."""
    from raynas.costs import cost
    from raynas.data.images import decode
    from raynas.nets.weights import load_supernet
    from raynas.presets.preset import load_preset
    from raynas.scoring.score_arch import score_arch
    from raynas.space import Space
    from raynas.training.loop import train_loop
    from raynas.training.plan import Plan

    preset, changes, (data, _) = load_preset(PRESET), dict(RECIPES[recipe]), images()
    archs = archs_of(FAMILY)
    given, epochs = archs[0].space.to_dict(), changes.pop("epochs", preset.recipe.epochs)
    if (sharing := changes.pop("sharing", None)) is not None:
        given["constants"] = {**given["constants"], "sharing": sharing}
    space, plan = Space.from_dict(given), Plan.model_validate({**preset.plan.model_dump(), **changes})
    began = time.process_time()
    trained = train_loop(space, data, plan, preset.recipe.model_copy(update={"epochs": epochs, "seed": seed}))
    seconds = time.process_time() - began
    supernet, (pixels, labels) = load_supernet(space, trained.weights).eval(), decode(data.search)
    rows = []
    for arch, macs in zip(archs, cost(archs[0].space, archs)["macs"].tolist(), strict=True):
        score = score_arch(supernet, space.arch(dict(arch)), pixels, labels, data.normalisation, SCORED_AT_ONCE)
        about = {"network": arch.network_id, "macs": macs, "cpu_seconds": seconds}
        rows.append({**about, "accuracy": float(score.top1.mean()), "loss": score.loss})
    return rows


def tasks(experiment: str) -> Iterator[Task]:
    for seed in range(3):
        for recipe in sorted(RECIPES, key=lambda name: RECIPES[name].get("epochs", 0)):
            yield Task(experiment, inherited, {"recipe": recipe}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

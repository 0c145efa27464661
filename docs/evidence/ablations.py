"""The twins of four published ablations on 5,000 images of MNIST: what docs/ablation.md reports of them.

    python docs/evidence/ablations.py --out results --processes 2

Stop it at any time, run it again: an ablation goes on where it was. docs/evidence/ablations_tables.py reads the rows.

`ablations`: a shipped ablation of `digits/` with other images and epochs (`CHANGES`), one seed in a task; winners are
retrained and tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import FOLDER, SEEDS, Row, Task, run_tasks

EXPERIMENTS = ("ablations",)

IMAGES = {"data.name": "mnist5k", "data.size": 8}
"""4,000 for training, of which 800 are the search split; 1,000 for testing."""

RETRAINED = {"epochs": 24, "warmup_epochs": 2, "weight_decay": 0.05, "smoothing": 0.1}
PLAIN = {"mixup": 0, "cutmix": 0, "drop_path": 0, "augment": {"reprob": 0, "shift": 0}}
"""The retraining of every row, whatever the supernet's."""

CHANGES: dict[str, dict[str, Any]] = {
    "vitas_v2_recipe": {"recipe.epochs": 24, "retrain.recipe": {**RETRAINED, **PLAIN, "lr": 2e-3}},
    "vitas_v2_sharing": {"recipe.epochs": 48, "retrain.recipe": {**RETRAINED, **PLAIN}},
    "vit_resnas_archs": {"recipe.epochs": 16, "retrain.recipe": {**RETRAINED, "lr": 2e-3}},
    "nasvit_gradients": {"recipe.epochs": 8, "retrain.recipe": {**RETRAINED, **PLAIN, "lr": 2e-3}},
}
"""Changes for all rows of an ablation."""


def ablated(table: str, seed: int) -> list[Row]:
    """A line for each row and each measure of the table."""
    import raynas
    from raynas.presets.ablation import load_ablation

    config = load_ablation(f"digits/ablation_{table}").config
    accuracy = [name for name in config.measure if name not in ("conflict", "seconds")]
    changes = {**config.set, **IMAGES, "recipe.warmup_epochs": 1, "retrain.train_on": "train", **CHANGES[table]}
    measure = dict.fromkeys([*accuracy, "retrained", "inherited", "tested"])
    given = {**config.model_dump(exclude_unset=True), "set": changes, "measure": list(measure)}
    where = Path(os.environ[FOLDER]) / f"{table}-{seed}"
    found = raynas.ablate(given, where, seeds=[seed], at_a_time=1)
    if any(row["failed"] for row in found):
        raise RuntimeError(f"a trial failed: see {where}/ablation.md")
    return [{"row": row["row"], "measure": row["measure"], "value": row["mean"]} for row in found]


def tasks(experiment: str) -> Iterator[Task]:
    for table in CHANGES:
        for seed in SEEDS:
            yield Task(experiment, ablated, {"table": table}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

"""The twins of four published ablations on MNIST and on clutter: what docs/ablation.md reports of them.

    python docs/evidence/ablations.py --out results --processes 2

Stop it at any time, run it again: an ablation goes on where it was. docs/evidence/ablations_tables.py reads the rows.

A shipped ablation of `digits/` with other images and epochs, one seed in a task; winners are retrained and tested.

* `ablations`: on 5,000 images of MNIST (`MNIST`).
* `twins_on_clutter`: on clutter of 24 pixels (`CLUTTER`), in the same spaces with patches of three times the pixels, so
  that networks have the tokens that they have on the digits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import FOLDER, SEEDS, Row, Task, run_tasks

EXPERIMENTS = ("ablations", "twins_on_clutter")

RETRAINED = {"epochs": 24, "warmup_epochs": 2, "weight_decay": 0.05, "smoothing": 0.1}
PLAIN = {"mixup": 0, "cutmix": 0, "drop_path": 0, "augment": {"reprob": 0, "shift": 0}}
"""The retraining of every row, whatever the supernet's."""

MNIST: dict[str, dict[str, Any]] = {
    "vitas_v2_recipe": {"recipe.epochs": 24, "retrain.recipe": {**RETRAINED, **PLAIN, "lr": 2e-3}},
    "vitas_v2_sharing": {"recipe.epochs": 48, "retrain.recipe": {**RETRAINED, **PLAIN}},
    "vit_resnas_archs": {"recipe.epochs": 16, "retrain.recipe": {**RETRAINED, "lr": 2e-3}},
    "nasvit_gradients": {"recipe.epochs": 8, "retrain.recipe": {**RETRAINED, **PLAIN, "lr": 2e-3}},
}
"""Changes for all rows of an ablation: 3,200 images for training, 800 in the search split; 1,000 for testing."""

CLUTTER: dict[str, dict[str, Any]] = {
    "vitas_v2_recipe": {"recipe.epochs": 8, "plan.sampler": {"name": "sandwich", "random": 1}},
    "vitas_v2_sharing": {"recipe.epochs": 20},
    "vit_resnas_archs": {"recipe.epochs": 8},
    "nasvit_gradients": {"recipe.epochs": 5},
}
"""The same, retrained for 12 epochs: 5,000 images for training, 1,000 in the search split; 2,000 for testing.

In clutter's space of ViTs single paths learn too slowly (docs/data.md), hence the sandwich.
"""


def ablated(table: str, seed: int) -> list[Row]:
    """A line for each row and each measure of the table, on MNIST."""
    data = {"data.name": "mnist5k", "data.size": 8}
    return rows_of(Path(os.environ[FOLDER]) / f"{table}-{seed}", given(table, {**data, **MNIST[table]}), seed)


def ablated_on_clutter(table: str, seed: int) -> list[Row]:
    """The same on clutter."""
    import raynas
    from raynas.presets.preset import load_preset

    folder = Path(os.environ[FOLDER]) / f"twins-{table}-{seed}"
    folder.mkdir(exist_ok=True)
    data = {"name": "clutter", "search_fraction": 1 / 6, "clutter": {"train": 6000}}
    retrained = {**MNIST[table]["retrain.recipe"], "epochs": 12}
    ablation = given(table, {"data": data, "retrain.recipe": retrained, **CLUTTER[table]})
    ablation["set"].setdefault("space", load_preset(ablation["preset"]).space)
    for changes in [ablation["set"], *ablation.get("toggles", {}).values()]:
        if "space" in changes:
            path = folder / f"{changes['space'].replace('/', '_')}.yaml"
            tripled(raynas.load_space(changes["space"])).save(path)
            changes["space"] = str(path)
    return rows_of(folder / "run", ablation, seed)


def tripled(space: Any) -> Any:
    """The digits' space for images and patches of three times the pixels."""
    from raynas.space import Space

    found = space.to_dict()
    found["input"]["size"] = 24
    dimensions, constants = found["dimensions"], found["constants"]
    if found["family"] == "vit":
        dimensions["patch_size"] = [3 * side for side in dimensions["patch_size"]]
    elif found["family"] == "vit_res":
        constants |= {"patch_size": 3, "stem_stride": 3}
    else:
        constants["stem_stride"] = 2  # grids of 8 and 12
        dimensions["resolution"] = [16, 24]
    return Space.from_dict(found)


def given(table: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The shipped ablation with these changes for all rows, whose winners are retrained and tested."""
    from raynas.presets.ablation import load_ablation

    config = load_ablation(f"digits/ablation_{table}").config
    common = {**config.set, "recipe.warmup_epochs": 1, "retrain.train_on": "train", **changes}
    accuracy = [name for name in config.measure if name not in ("conflict", "seconds")]
    measure = dict.fromkeys([*accuracy, "retrained", "inherited", "tested"])
    return {**config.model_dump(exclude_unset=True), "set": common, "measure": list(measure)}


def rows_of(run: Path, ablation: dict[str, Any], seed: int) -> list[Row]:
    import raynas

    found = raynas.ablate(ablation, run, seeds=[seed], at_a_time=1)
    if any(row["failed"] for row in found):
        raise RuntimeError(f"a trial failed: see {run}/ablation.md")
    return [{"row": row["row"], "measure": row["measure"], "value": row["mean"]} for row in found]


def tasks(experiment: str) -> Iterator[Task]:
    run = ablated if experiment == "ablations" else ablated_on_clutter
    for table in MNIST:
        for seed in SEEDS:
            yield Task(experiment, run, {"table": table}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

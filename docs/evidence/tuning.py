"""Does tuning pay? The digits' tuning beside supernets that are trained longer, or larger, for as much computing.

    python docs/evidence/tuning.py --out results --processes 2

Stop it at any time, run it again: a tuning goes on where it was. docs/evidence/tuning_tables.py reads the rows.

`tuning`: `digits/preset_tune` on 5,000 images of MNIST at 8 pixels. The winner of each arm's search is trained alone by
one recipe and tested. Computing is counted, not timed: three MACs of training for each of a forward pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks import FOLDER, SEEDS, Row, Task, run_tasks, sampled

EXPERIMENTS = ("tuning",)
PRESET = "digits/preset_tune"
TRAIN, SEARCH = 3200, 800  # images of the splits

COMMON: dict[str, Any] = {
    "data.name": "mnist5k",
    "data.size": 8,
    "retrain.train_on": "train",
    "retrain.recipe": {"epochs": 30, "lr": 2e-3, "mixup": 0.0},
}
LARGER = {
    "width": [32, 48, 64, 96],
    "depth": [3, 4, 5, 6],
    "blocks": {"heads": [2, 3, 4, 6], "mlp_ratio": [1.0, 2.0, 4.0]},
}
"""Dimensions of the larger space; the limit of MACs is that of the others."""


def computing(space: Any, preset: Any, epochs: int, evaluations: int) -> float:
    """MACs of a supernet's training and of its search, by the mean of random archs."""
    import raynas

    macs = raynas.cost(space, sampled(space, 500))["macs"].mean()
    extremes = raynas.cost(space, [space.smallest(), space.largest()])["macs"].sum()
    sampler = preset.plan.sampler
    step = extremes + sampler.options["random"] * macs if sampler.name == "sandwich" else macs
    return float(3 * epochs * TRAIN * step + evaluations * SEARCH * macs)


def arms(seed: int) -> list[Row]:
    """A row for each arm: the accuracy of its winner, inherited and retrained, and the computing that it took."""
    import yaml

    import raynas
    from raynas.cluster.resources import Resources
    from raynas.outer.measures import carry_out
    from raynas.presets.preset import load_preset, override
    from raynas.runs.run import open_run

    where = Path(os.environ[FOLDER]) / f"tuning-{seed}"
    changes = {**COMMON, "recipe.seed": seed, "search.seed": seed, "retrain.seeds": [seed]}
    preset = override(load_preset(PRESET), changes)
    evaluations, measures = preset.search.evaluations or 0, ["searched", "retrained", "tested"]

    def row(arm: str, preset: Any, folder: Path, macs: float, **about: Any) -> Row:
        found = carry_out(preset, folder, measures, Resources(0, 0))
        run = open_run(folder)
        winner = run.arch("best")
        return {
            **{"arm": arm, "macs_spent": macs, "epochs": run.preset.recipe.epochs, "arch": winner.id},
            **{name: found[name] for name in measures},
            **{"macs": int(raynas.cost(winner.space, [winner])["macs"][0]), "values": None, **about},
        }

    tuned = raynas.tune(preset, where / "tuned", seed=seed, at_a_time=1)
    steps = open_run(where / "tuned").store.read("trial_steps").to_pylist()
    spent = 0.0
    for trial in tuned.trials:
        if trial.state == "failed":
            raise RuntimeError(f"trial {trial.number} failed: {trial.reason}")
        run = open_run(where / "tuned" / trial.run)
        epochs = max(step["step"] for step in steps if step["number"] == trial.number)
        spent += computing(run.space, run.preset, epochs, evaluations if trial.state == "finished" else 0)

    def epochs_for(space: Any) -> int:
        search = computing(space, preset, 0, evaluations)
        return round((spent - search) / (computing(space, preset, 1, evaluations) - search))

    space, best = raynas.load_space(str(preset.space)), tuned.best
    assert best is not None
    larger = where / "larger.yaml"
    larger.write_text(yaml.safe_dump({**space.to_dict(), "dimensions": {**space.to_dict()["dimensions"], **LARGER}}))
    spaces = {"as it is": (space, None), "longer": (space, None), "larger": (raynas.load_space(larger), str(larger))}
    rows = [
        row(
            "tuned",
            open_run(where / "tuned" / best.run).preset,
            where / "tuned" / best.run,
            spent,
            values=str(best.values),
        )
    ]
    for arm, (of, path) in spaces.items():
        epochs = preset.recipe.epochs if arm == "as it is" else epochs_for(of)
        given = override(preset, {"recipe.epochs": epochs, **({} if path is None else {"space": path})})
        rows.append(row(arm, given, where / arm.replace(" ", "_"), computing(of, preset, epochs, evaluations)))
    return rows


def tasks(experiment: str) -> Iterator[Task]:
    for seed in SEEDS:
        yield Task(experiment, arms, {}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

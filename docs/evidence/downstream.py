"""The experiment behind docs/downstream.md: found and hand-designed backbones, at equal cost, on scenes.

python docs/evidence/downstream.py --out OUT      about 40 minutes on one core; again, it goes on

Images of digits are 24 pixels large, as digits in scenes are; scenes are 48 pixels large. For every seed a supernet of
small Swins is trained on the digits, and the best of 200 subnets is searched, all of which cost 95 to 100 % of the
hand-designed network's MACs on a scene. It, the hand-designed network and a random one of that cost are then trained
alone on the digits, and with a head on scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks import RECIPE, Row, Task, run_tasks, score, train

DATA = "digits@24"
BLOCK = {"window": [2, 3, 6], "heads": [2, 4, 8], "mlp_ratio": [1.0, 2.0, 3.0]}
SPACE = {
    "family": "s3",
    "input": {"size": 24, "channels": 1},
    "classes": 10,
    "constants": {"patch_size": 4, "head_dim": 8},
    "dimensions": {
        "stages": [
            {"width": [16, 24, 32, 48], "depth": [1, 2, 3], "blocks": BLOCK},
            {"width": [32, 48, 64, 96], "depth": [1, 2, 3], "blocks": BLOCK},
            {"width": [64, 96, 128, 160], "depth": [1, 2, 3], "blocks": BLOCK},
        ]
    },
}
HAND_MADE = {
    f"stages.{stage}.{leaf}": value
    for stage, width in enumerate((32, 64, 128))
    for leaf, value in {
        "width": width,
        "depth": 2,
        **{
            f"blocks.{place}.{gene}": chosen
            for place in range(2)
            for gene, chosen in {"window": 6, "heads": min(8, width // 8), "mlp_ratio": 2.0}.items()
        },
    }.items()
}
"""Swin's rules: widths that double, two blocks a stage, one window and ratio for all."""

ARMS = ("hand-designed", "found", "random")
LEAST = 0.95
"""Share of the hand-designed network's MACs that the others have at least."""

SUPERNET = {**RECIPE, "epochs": 20, "lr": 3e-3, "warmup_epochs": 4, "health": {"probe_every": 1000}}
ALONE = {**RECIPE, "epochs": 25, "lr": 3e-3, "warmup_epochs": 4, "health": {"probe_every": 1000}}
SCENES = {"size": (48, 48), "side": (16, 24), "objects": (1, 3), "pieces": 3, "noise": 20, "train": 640, "test": 300}
DENSE = {"epochs": 8, "batch_size": 8, "lr": 6e-3}
HEADS = {"segment": "semantic_fpn", "detect": "fcos"}
SEEDS = range(3)


def dense(arm: str, seed: int) -> list[Row]:
    """One backbone, trained on digits and on scenes."""
    from raynas.data.scenes import ScenesConfig
    from raynas.downstream.on_scenes import train_on_scenes
    from raynas.downstream.train import DenseRecipe
    from raynas.space import Space

    space = Space.from_dict(SPACE)
    arch = chosen(space, arm, seed)
    network, _ = train(space.fix(arch), DATA, ALONE, seed)
    (alone,) = score(network, [network.space.smallest()], DATA)
    rows = []
    for task, head in HEADS.items():
        recipe = DenseRecipe(**DENSE, seed=seed)
        results = train_on_scenes(
            task,  # type: ignore[arg-type]
            network.extract(network.space.smallest()),
            head=head,
            width=32,
            scenes=ScenesConfig(**SCENES),
            recipe=recipe,
        )
        measured = {name: value for name, value in results.items() if name != "losses"}
        on_digits = {"arch": str(arch.to_dict()), "accuracy": alone["accuracy"], "digits_macs": alone["macs"]}
        rows.append({"task": task, **on_digits, **measured})
    return rows


def chosen(space: Any, arm: str, seed: int) -> Any:
    """The arch of an arm."""
    import raynas

    by_hand = space.arch(HAND_MADE)
    if arm == "hand-designed":
        return by_hand
    on_scenes = space.with_input(size=SCENES["size"])
    (most,) = raynas.cost(on_scenes, [on_scenes.arch(HAND_MADE)])["macs"].tolist()
    limits = {"macs": (LEAST * most, most)}
    if arm == "random":
        return space.arch(raynas.RandomSearch(on_scenes, constraints=limits, seed=seed).ask(1)[0])
    supernet, _ = train(space, DATA, SUPERNET, seed, {"sampler": {"name": "sandwich", "random": 2}})
    search = raynas.Evolution(on_scenes, constraints=limits, seed=seed, evaluations=200)
    while asked := search.ask(50):
        rows = score(supernet, [space.arch(arch) for arch in asked], DATA)
        search.tell(asked, [row["accuracy"] for row in rows])
    return space.arch(search.best())


def tasks(experiment: str) -> Iterator[Task]:
    """Arm by arm."""
    yield from (Task(experiment, dense, {"arm": arm}, seed) for arm in ARMS for seed in SEEDS)


EXPERIMENTS = ("downstream",)

if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

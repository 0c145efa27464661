"""ViT-ResNAS's claims at the size of small images: trains and scores everything that docs/vit_resnas.md reports.

    python docs/evidence/resnas.py --out results --processes 8 [reduction divergence archs norm resolution]

Stop it at any time, run it again. docs/evidence/resnas_tables.py reads the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tasks import RECIPE, SEEDS, SUPERNET, Row, Task, curve, load, run_tasks, sampled, score, train
from torch import Tensor
from vitas import BASE, digits_space, truth_archs

MNIST = "mnist5k@32"  # grids of 8, 4 and 2


def network(size: int, blocks: int, patch: int, stride: int, widths: tuple[int, int, int], **constants: Any) -> Any:
    """The one-point space of a ViT-Res: heads of 16 channels, MLPs three times as wide as the stage."""
    from raynas.space import Space

    stages = [
        {"width": [width], "depth": [blocks], "blocks": {"heads": [width // 16], "mlp_width": [3 * width]}}
        for width in widths
    ]
    return Space.from_dict(
        {
            "family": "vit_res",
            "input": {"size": size, "channels": 1},
            "classes": 10,
            "constants": {
                "patch_size": patch,
                "stem_stride": stride,
                "stem_channels": 12,
                "head_dims": [16, 16, 16],
                **constants,
            },
            "dimensions": {"stages": stages},
        }
    )


def reduction(arm: str, seed: int) -> list[Row]:
    """Experiment 17, Table 1: spatial reduction, with its residual, with labels of patches."""
    mixing = {
        "plain": None,
        "residual": None,
        "cutmix": {"mixing": "switch", "switch_prob": 1.0},
        "released": {"mixing": "released"},
    }[arm]
    kind = "plain" if arm == "plain" else "residual"
    space = network(32, 2, 4, 2, (32, 64, 128), reduction=kind, token_head=mixing is not None)
    trained, history = train(space, MNIST, {**RECIPE, "epochs": 10, "token_labels": mixing}, seed)
    return [{**score(trained, [space.smallest()], MNIST)[0], "curve": curve(history)}]


def resolution(seed: int) -> list[Row]:
    """Experiment 21: trained at 32 pixels, then at 48 with its positions resized, or as long again at 32."""
    from raynas.nets import build_supernet

    larger = "mnist5k@48"
    tuning = {**RECIPE, "epochs": 10, "lr": 1e-4, "warmup_epochs": 1, "min_lr": 1e-6}
    space = network(32, 2, 4, 2, (32, 64, 128))
    trained, _ = train(space, MNIST, RECIPE, seed)
    resized = trained.resized(48)
    arms = {"32": (trained, MNIST), "resized": (resized, larger)}
    arms["tuned at 32"] = (train(space, MNIST, tuning, seed, init=trained.state_dict())[0], MNIST)
    arms["tuned at 48"] = (train(resized.space, larger, tuning, seed, init=resized.state_dict())[0], larger)
    random = build_supernet(resized.space).state_dict()
    positions = {name: random[name] for name in resized.position_grids()}
    without = {**resized.state_dict(), **positions}
    arms["positions forgotten"] = (train(resized.space, larger, tuning, seed, init=without)[0], larger)
    return [{"arm": arm, **score(net, [net.space.smallest()], data)[0]} for arm, (net, data) in arms.items()]


def divergence(arm: str, lr: float, seed: int) -> list[Row]:
    """Experiment 18: 24 blocks at ever larger learning rates, with and without the main branch of the reductions."""
    from raynas.errors import TrainingCollapsed

    space = network(8, 8, 1, 1, (16, 32, 64), reduction=arm)
    settings = {**RECIPE, "epochs": 12, "lr": lr, "warmup_epochs": 0, "health": {"probe_every": 12}}
    try:
        _, history = train(space, "digits", settings, seed)
    except TrainingCollapsed:
        return [{"collapsed": True, "curve": "[]"}]
    return [{"collapsed": False, "curve": curve(history)}]


def archs(count: int, seed: int) -> list[Row]:
    """Experiment 19, Table 2: how many subnets share a batch, for the same number of images.

    The space and the networks trained alone are those of ViTAS's experiments.
    """
    space = digits_space(BASE)
    plan = {"sampler": {"name": "mixed", "archs": count}, "widening": 0.25}
    supernet, history = train(space, "digits", {**SUPERNET, "epochs": 40, "health": {"probe_every": 40}}, seed, plan)
    known = [space.arch(arch) for arch in truth_archs()]
    rows = score(supernet, [*known, *sampled(space, 300)], "digits")
    return [{**row, "known": i < len(known), "curve": curve(history)} for i, row in enumerate(rows)]


def norm(kind: str, seed: int) -> list[Row]:
    """Experiment 20, Figure 6: training with masks and a layer norm that does not know of them, or ours.

    Each of 50 subnets is scored inside the supernet as it is trained, and extracted.
    """
    from raynas.nets import layers
    from raynas.space import load_space

    exact, layers.masked_norm = layers.masked_norm, layers.masked_norm if kind == "masked" else unaware_norm
    try:
        space = load_space("digits/vit_resnas")
        plan = {"sampler": {"name": "mixed", "archs": 8}, "widening": 0.25}
        supernet, history = train(
            space, "digits", {**SUPERNET, "epochs": 60, "health": {"probe_every": 60}}, seed, plan
        )
        inside = [accuracy_within(supernet, arch) for arch in sampled(space, 50)]
    finally:
        layers.masked_norm = exact
    extracted = score(supernet, sampled(space, 50), "digits")
    rows = zip(extracted, inside, strict=True)
    return [{**row, "inside": accuracy, "curve": curve(history)} for row, accuracy in rows]


def unaware_norm(x: Tensor, width: Any, eps: float, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer normalisation over all channels, those that do not act included, then the mask."""
    return width.mask(torch.nn.functional.layer_norm(x, (width.count,), weight, bias, eps))


@torch.inference_mode()
def accuracy_within(supernet: Any, arch: Any) -> float:
    """The accuracy on the search split of a subnet that shares its batches with the largest, by masks."""
    from raynas.data.images import decode
    from raynas.data.pixels import normalise

    loaded = load("digits")
    images, labels = decode(loaded.search.at(supernet.space.input_size, supernet.space.channels))
    images = normalise(images, loaded.normalisation)
    rows = torch.zeros(len(images) + 1, dtype=torch.int64)
    rows[-1] = 1  # one row of the largest
    both = [arch, supernet.space.largest()]
    logits = supernet(torch.cat([images, images[:1]]), both, rows, execution="masks")[:-1]
    return float((logits.argmax(1) == labels).float().mean())


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment."""
    cells: dict[str, tuple[Callable[..., list[Row]], list[dict[str, Any]], range]] = {
        "reduction": (reduction, [{"arm": arm} for arm in ("plain", "residual", "cutmix", "released")], SEEDS),
        "divergence": (
            divergence,
            [{"arm": arm, "lr": lr} for lr in (3e-3, 1e-2, 3e-2) for arm in ("plain", "residual")],
            SEEDS,
        ),
        "archs": (archs, [{"count": count} for count in (1, 8, 16, 32)], SEEDS),
        "norm": (norm, [{"kind": kind} for kind in ("unaware", "masked")], SEEDS),
        "resolution": (resolution, [{}], range(3)),
    }
    run, options, seeds = cells[experiment]
    yield from (Task(experiment, run, each, seed) for seed in seeds for each in options)


EXPERIMENTS = ("norm", "archs", "reduction", "divergence", "resolution")

if __name__ == "__main__":
    run_tasks(__doc__ or "", EXPERIMENTS, tasks)

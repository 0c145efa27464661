"""How well clutter tells networks apart: trains and tests everything that the datasheet in docs/data.md reports.

    python docs/evidence/clutter.py --out results --processes 1

Stop it at any time, run it again. docs/evidence/clutter_tables.py reads the rows.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from tasks import RECIPE, SEEDS, Row, Task, curve, load, run_tasks, train
from torch import Tensor, nn

DATA = "clutter"
ALONE = {**RECIPE, "epochs": 20, "lr": 4e-3, "warmup_epochs": 2, "smoothing": 0.0, "health": {"probe_every": 1000}}

SIZES = {"0.5 x": (16, 3), "1 x": (24, 3), "2 x": (32, 4), "4 x": (40, 5)}
"""Hand-designed by DeiT's rules: channels and blocks; patches of 4 pixels, heads of 8 channels, MLPs of 4 widths.

In multiply-accumulates 0.49, 1, 2.24 and 4.22 times `1 x`.
"""

SHAPES = {
    "4 pixels, deep": (4, 16, 7, 3),
    "4 pixels, wide": (4, 48, 1, 3),
    "3 pixels": (3, 16, 3, 4),
    "8 pixels": (8, 64, 2, 4),
}
"""Networks of as many MACs as `1 x`, to 5 %: patch size, width, blocks and MLP ratio."""

NETWORKS = ("linear", "1 x", *SHAPES, "CNN", "0.5 x", "2 x", "4 x")


def network(network: str, seed: int) -> list[Row]:
    """One network, trained on all training images but those of the search split, and tested."""
    if network == "linear":
        return [linear()]
    if network == "CNN":
        return [cnn(seed)]
    if network in SIZES:
        width, blocks = SIZES[network]
        return [vit(4, width, blocks, 4, seed)]
    return [vit(*SHAPES[network], seed)]


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images, normalised [n, 1, height, width], with their labels [n]."""
    from raynas.data.images import decode
    from raynas.data.load import load_test
    from raynas.data.pixels import normalise

    data = load(DATA)
    found = [decode(each) for each in (data.train, load_test(data.config))]
    train, test = ((normalise(pixels, data.normalisation), labels) for pixels, labels in found)
    return train, test


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def linear() -> Row:
    """Logistic regression on pixels, at the better of three strengths on the search split's images."""
    from sklearn.linear_model import LogisticRegression

    from raynas.data.images import decode
    from raynas.data.pixels import normalise

    (pixels, labels), test = images()
    data = load(DATA)
    held = decode(data.search)
    began = cpu_seconds()
    fitted = [LogisticRegression(C=c, max_iter=300).fit(pixels.flatten(1).numpy(), labels) for c in (1e-4, 1e-3, 1e-2)]
    best = max(
        fitted, key=lambda model: model.score(normalise(held[0], data.normalisation).flatten(1).numpy(), held[1])
    )
    count = pixels[0].numel() * data.classes
    return {
        "macs": count,
        "params": count + data.classes,
        "accuracy": best.score(test[0].flatten(1).numpy(), test[1]),
        "train_accuracy": best.score(pixels.flatten(1).numpy(), labels),
        "curve": "[]",
        "cpu_s": cpu_seconds() - began,
    }


def cnn(seed: int) -> Row:
    """Three convolutions of 3 x 3 with batch norm, each before a pooling, and a classifier on the mean."""
    torch.manual_seed(seed)
    widths = (1, 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
    train, test = images()
    side, epochs, batch = train[0].shape[-1], ALONE["epochs"], ALONE["batch_size"]
    macs = sum((side >> k) ** 2 * 9 * widths[k] * widths[k + 1] for k in range(3)) + widths[-1] * 10
    steps = len(train[0]) // batch
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=epochs * steps)
    losses, began = [], cpu_seconds()
    for _ in range(epochs):
        of_epoch = []
        for places in torch.randperm(len(train[0]))[: steps * batch].view(steps, batch):
            loss = nn.functional.cross_entropy(model(train[0][places]), train[1][places])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            of_epoch.append(loss.item())
        losses.append(round(float(np.mean(of_epoch)), 5))
    spent = cpu_seconds() - began
    model.eval()
    with torch.inference_mode():
        right = [float((model(pixels).argmax(1) == labels).float().mean()) for pixels, labels in (test, train)]
    return {
        "macs": macs,
        "params": sum(each.numel() for each in model.parameters()),
        "accuracy": right[0],
        "train_accuracy": right[1],
        "curve": json.dumps(losses),
        "cpu_s": spent,
    }


def vit(patch: int, width: int, blocks: int, ratio: float, seed: int) -> Row:
    """A plain transformer with mean pooling."""
    import raynas
    from raynas.space import Space

    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": load(DATA).size[0], "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 8, "class_token": False, "pool": "mean"},
            "dimensions": {
                "patch_size": [patch],
                "width": [width],
                "depth": [blocks],
                "blocks": {"heads": [width // 8], "mlp_ratio": [float(ratio)]},
            },
        }
    )
    began = cpu_seconds()
    trained, history = train(space, DATA, ALONE, seed)
    spent = cpu_seconds() - began
    (of_train, of_test), only = images(), space.smallest()
    with torch.inference_mode():
        right = [
            float((trained(pixels, only).argmax(1) == labels).float().mean()) for pixels, labels in (of_test, of_train)
        ]
    costs = raynas.cost(space, [only])
    return {
        "macs": int(costs["macs"][0]),
        "params": int(costs["params"][0]),
        "accuracy": right[0],
        "train_accuracy": right[1],
        "curve": curve(history),
        "cpu_s": spent,
    }


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of the experiment: seed by seed, so that what is there when it is stopped can be compared."""
    for seed in SEEDS:
        for each in NETWORKS:
            if each != "linear" or seed == 0:  # it has one optimum
                yield Task(experiment, network, {"network": each}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", ["clutter"], tasks)

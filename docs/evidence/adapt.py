"""One adaptation against cuts trained for each budget: everything that docs/adapt.md reports of other ways to shrink.

    pip install torch-pruning==1.6.1
    python docs/evidence/adapt.py --out results --processes 8 [shrinking long]

The models are a ViT and a Swin of timm's, trained here first and kept in WEIGHTS. Stop it at any time, run it
again. docs/evidence/adapt_tables.py reads the rows.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tasks import SEEDS, Row, Task, load, run_tasks
from timm.models.swin_transformer import PatchMerging, SwinTransformer, WindowAttention
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

WEIGHTS = Path(tempfile.gettempdir()) / "raynas_evidence_adapt"
DATA = "mnist5k@32"
READING = {"mean": (0.5,), "std": (0.5,), "input_size": (1, 32, 32), "num_classes": 10}
BATCH = 128
SHIFT = 3
"""Pixels that training images are shifted by."""

WARM_UP = 0.1
"""Part of a training in which the learning rate rises."""

BUDGETS = tuple(round(0.25 + 0.05 * step, 2) for step in range(10))
"""Parts of the model's MACs."""

THREE = (0.6, 0.4, 0.25)
IMAGES = 512
"""Training images that importance is measured on."""

PRETRAINING = 60
PASSES = 32
"""Epochs of the supernet; four random networks share each batch."""

TUNING = 4
"""Epochs of a winner's fine-tuning."""

EPOCHS = {
    "as it is": 0,
    "a tenth of the adaptation's passes": PASSES // 10,
    "a third of them, and the winner's": PASSES // 3 + TUNING,
    "all of them for each budget, and the winner's": PASSES + TUNING,
}
"""Training of one cut, by its share of the passes of the adaptation: for ten budgets, for three, for each."""

NO_TRAINING = 100
"""Subnets that are scored for each budget when nothing is trained."""

MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit_evidence": lambda: VisionTransformer(
        img_size=32, patch_size=8, in_chans=1, num_classes=10, embed_dim=64, depth=6, num_heads=4
    ),
    "swin_evidence": lambda: SwinTransformer(
        img_size=32, patch_size=4, in_chans=1, num_classes=10, embed_dim=32, depths=(2, 4), num_heads=(2, 4),
        window_size=4, drop_path_rate=0,
    ),
}  # fmt: skip


# -- training and scoring of one network -------------------------------------------------------------------------------


@lru_cache
def data() -> Any:
    """Training, search and test images; all are normalised as timm's models say."""
    loaded = load(DATA)
    return loaded.__class__(
        loaded.config.model_copy(update=_reading()), loaded.class_names, loaded.train, loaded.search
    )


def _reading() -> dict[str, Any]:
    return {name: READING[name] for name in ("mean", "std")}


@lru_cache
def test_images() -> tuple[Tensor, Tensor]:
    from raynas.data.images import decode
    from raynas.data.load import load_test
    from raynas.data.pixels import normalise

    pixels, labels = decode(load_test(data().config).at((32, 32), 1))
    return normalise(pixels, data().normalisation), labels


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    images, labels = test_images()
    model.eval()
    return float(torch.cat([model(part).argmax(-1) for part in images.split(250)]).eq(labels).float().mean())


def fit(model: nn.Module, epochs: int, lr: float, seed: int, teacher: nn.Module | None = None) -> nn.Module:
    """Train a network with AdamW and a cosine; with a teacher half of the targets are its probabilities."""
    from raynas.data.augment import AugmentConfig
    from raynas.data.loader import TrainLoader

    if not epochs:
        return model
    loader = TrainLoader(data(), AugmentConfig(shift=SHIFT), batch_size=BATCH, seed=seed)
    optimizer = create_optimizer_v2(model, "adamw", lr=lr, weight_decay=0.05)
    steps = epochs * len(loader)
    rise = max(1, int(WARM_UP * steps))
    rates = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=rise),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps - rise, 1), eta_min=1e-5),
        ],
        [rise],
    )
    model.train()
    for epoch in range(epochs):
        for images, labels in loader.epoch(epoch):
            targets = torch.full((len(labels), 10), 0.01).scatter_(1, labels[:, None], 0.91)
            if teacher is not None:
                with torch.no_grad():
                    targets = (targets + teacher(images).softmax(-1)) / 2
            optimizer.zero_grad()
            F.cross_entropy(model(images), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            rates.step()
    return model.eval()


def macs(model: nn.Module) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, 32, 32))
    return counter.get_total_flops() // 2


def weights_of(name: str, seed: int) -> Path:
    return WEIGHTS / f"{name}-{seed}.safetensors"


def pretrained(name: str, seed: int) -> nn.Module:
    """One of the models, trained to the end."""
    path = weights_of(name, seed)
    torch.manual_seed(seed)
    model = MODELS[name]()
    if not path.exists():
        fit(model, PRETRAINING, 2e-3, seed)
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_suffix(f".{os.getpid()}")
        save_file(model.state_dict(), hidden)
        hidden.rename(path)
    model.load_state_dict(load_file(path))
    modules: Any = model.modules()
    for part in modules:
        if hasattr(part, "fused_attn"):  # so that both of its products are counted
            part.fused_attn = False
    return model.eval()


# -- the ways to shrink a model ----------------------------------------------------------------------------------------


def adapted(model: str, seed: int) -> list[Row]:
    """Adapt the model once, and take the best network within each budget."""
    import raynas

    whole = pretrained(model, seed)
    register(model)
    full, weights = macs(whole), weights_of(model, seed)
    recipe = {
        "epochs": PASSES,
        "warmup_epochs": 1,
        "seed": seed,
        "augment.shift": SHIFT,
        "mixup": 0.0,
        "batch_size": BATCH,
        "lr": 1e-3,
        "lr_base_batch": BATCH,
    }
    tuning = {"epochs": TUNING, "warmup_epochs": 1, "lr": 1e-3}
    settings = {
        "data": {"name": "mnist5k", "size": 32},
        **{f"recipe.{name}": value for name, value in recipe.items()},
        **{f"retrain.recipe.{name}": value for name, value in tuning.items()},
        "search.constraints.macs": [None, BUDGETS[-1] * full],
        "search.evaluations": 300,
        "search.options.population": 30,
        "adapt.elastic": {"width": [0.625, 0.75, 0.875], "heads": [0.5, 0.75], "dropped": 0.34},
        "adapt.elastic.mlp": [0.5, 0.625, 0.75],
        "adapt.untrained": 0,
    }
    rows: list[Row] = [{"way": "the model", "budget": 1.0, "accuracy": accuracy(whole), "macs": full}]
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        began = time.monotonic()
        none = raynas.Resources(workers=0, replicas=0)
        raynas.adapt(model, run, overrides=settings, preset="digits/preset_adapt", weights=weights, resources=none)
        seconds = time.monotonic() - began
        opened = raynas.open_run(run)
        rows += untrained(opened, full, seed)
        scored = opened.table("scores").to_pylist()
        for budget in BUDGETS:
            within = [row for row in scored if row["macs"] <= budget * full]
            arch = max(within, key=lambda row: (row["accuracy"], -row["loss"]))["arch"]
            found = _evaluated(opened, arch, "inherited")
            rows.append({"way": "adapted", "budget": budget, **_about(found), "seconds": seconds})
            if budget in THREE:
                raynas.retrain(opened, [arch], start="inherited", train_on="train", seeds=[seed], resources=none)
                found = _evaluated(opened, None, "finetuned", arch, seed)
                rows.append({"way": "adapted, fine-tuned", "budget": budget, **_about(found)})
    return rows


def _evaluated(run: Any, which: str | None, how: str, arch: str | None = None, seed: int | None = None) -> Row:
    """The row of a network on the test split; the winner of the adaptation was fine-tuned with another seed, too."""
    import raynas

    rows = raynas.evaluate(run, which, resources=raynas.Resources(workers=0, replicas=0))
    of_arch = [row for row in rows if row["arch"] == (arch or which) and row["how"] == how]
    (found,) = [row for row in of_arch if seed is None or row["seed"] == seed]
    return found


def _about(row: Row) -> Row:
    return {name: row[name] for name in ("accuracy", "macs", "params")}


def untrained(run: Any, full: int, seed: int) -> list[Row]:
    """The best of some subnets within three budgets without any training, with units in two orders."""
    import raynas
    from raynas.costs import cost
    from raynas.nets.ordering import order_units
    from raynas.nets.weights import load_supernet, parse_weights
    from raynas.runs.files import START_WEIGHTS
    from raynas.scoring.scored_supernet import make_scored_supernet

    rows = []
    for order in ("by importance", "random"):
        supernet = load_supernet(run.space, parse_weights(run.read_bytes(START_WEIGHTS), START_WEIGHTS)).eval()
        if order == "random":
            order_units(supernet, "random", rng=np.random.default_rng(seed))
        with raynas.LocalScorer(None, scored=make_scored_supernet(run.space, supernet, data())) as scorer:
            for budget in THREE:
                limits = {"macs": (0.8 * budget * full, budget * full)}
                search = raynas.Evolution(
                    run.space, constraints=limits, evaluations=NO_TRAINING, population=30, seed=seed
                )
                found: list[tuple[float, Any]] = []
                while archs := search.ask(30):
                    scores = scorer.score(archs)
                    search.tell(archs, scores)
                    found += [(score["accuracy"], arch) for arch, score in zip(archs, scores, strict=True)]
                arch = max(found, key=lambda pair: pair[0])[1]
                network = supernet.extract(arch).eval()
                rows.append(
                    {
                        "way": f"no training, order {order}",
                        "budget": budget,
                        "accuracy": accuracy(network),
                        "macs": int(cost(run.space, [arch])["macs"][0]),
                    }
                )
    return rows


def register(name: str) -> None:
    """Make the model one of timm's, by name."""

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        model: Any = MODELS[name]()
        model.pretrained_cfg = model.default_cfg = READING
        return model

    entry.__name__ = name
    entry.__module__ = __name__
    timm.models.register_model(entry)


def pruned(model: str, seed: int) -> list[Row]:
    """Prune by Torch-Pruning, then fine-tune, for each budget."""
    whole = pretrained(model, seed)
    none, tenth, third, _ = EPOCHS
    return list(trained_alone(whole, partial(_prune, whole), "Torch-Pruning", seed, [none, tenth, third]))


def long(model: str, seed: int) -> list[Row]:
    """Prune likewise, with all of the passes for each budget."""
    whole = pretrained(model, seed)
    return list(trained_alone(whole, partial(_prune, whole), "Torch-Pruning", seed, [list(EPOCHS)[-1]]))


def uniform(model: str, seed: int) -> list[Row]:
    """Cut all widths alike, in the order of importance, then fine-tune, for each budget."""
    from raynas.families.s3.checkpoint import read_timm as read_swin
    from raynas.families.vit.checkpoint import read_timm as read_vit
    from raynas.nets.ordering import order_units
    from raynas.nets.weights import load_supernet
    from raynas.space.elastic import Elastic, elastic_space

    whole = pretrained(model, seed)
    space, weights = (read_vit if model.startswith("vit") else read_swin)(whole, model)
    fine = tuple(round(0.05 * step, 2) for step in range(3, 20))
    elastic = elastic_space(space, Elastic(width=fine, heads=fine, mlp=fine, dropped=0, divisor=1))
    supernet = load_supernet(elastic, weights).eval()
    images, labels = _importance_images()
    order_units(supernet, "taylor", images, labels)

    def cut(target: float) -> nn.Module:
        return supernet.extract(_uniform_arch(elastic, target))

    none, _, third, _ = EPOCHS
    return list(trained_alone(whole, cut, "uniform", seed, [none, third]))


def _uniform_arch(space: Any, target: float) -> Any:
    """The arch of which every number is nearest to the same share of the largest, within so many MACs."""
    from raynas.costs import cost

    largest = space.largest()

    def at(share: float) -> Any:
        values = {}
        for name, value in largest.items():
            choices = space[name].choices
            numbers = isinstance(value, int | float) and not isinstance(value, bool)
            kept = 1.0 if name.endswith("mlp_ratio") or not numbers else share  # a ratio shrinks with the width
            values[name] = min(choices, key=lambda choice: abs(choice - kept * value)) if numbers else value
        return space.arch(values)

    for share in np.linspace(1, 0.1, 181):
        arch = at(float(share))
        if cost(space, [arch])["macs"][0] <= target:
            return arch
    raise ValueError(f"nothing within {target}")


def scratch(model: str, seed: int) -> list[Row]:
    """Train uniformly smaller networks from random weights, with all of the passes for each budget."""
    whole = pretrained(model, seed)

    def fresh(target: float) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Module.apply(_prune(whole, target), _forget)

    return list(trained_alone(whole, fresh, "from scratch", seed, [list(EPOCHS)[-1]], lr=2e-3))


def _forget(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.trunc_normal_(part.weight, std=0.02)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
    elif isinstance(part, nn.LayerNorm | nn.Conv2d):
        part.reset_parameters()
    for name, parameter in part.named_parameters(recurse=False):
        if name in ("pos_embed", "cls_token", "relative_position_bias_table"):
            nn.init.trunc_normal_(parameter, std=0.02)


def trained_alone(
    whole: nn.Module,
    cut: Callable[[float], nn.Module],
    way: str,
    seed: int,
    shares: Sequence[str],
    lr: float = 1e-3,
) -> Iterator[Row]:
    """Each cut of the model, trained for each share of the passes, with the model as teacher."""
    full = macs(whole)
    for budget in THREE:
        smaller = cut(budget * full)
        count, params = macs(smaller), sum(parameter.numel() for parameter in smaller.parameters())
        assert count <= budget * full, (count, budget * full)
        for share in shares:
            began = time.monotonic()
            trained = fit(copy.deepcopy(smaller), EPOCHS[share], lr, seed, whole)
            yield {
                "way": f"{way}, {share}",
                "budget": budget,
                "accuracy": accuracy(trained),
                "macs": count,
                "params": params,
                "seconds": time.monotonic() - began,
            }


def _importance_images() -> tuple[Tensor, Tensor]:
    """The training images that importance is measured on."""
    from raynas.data.images import choose_images, decode
    from raynas.data.pixels import normalise

    train = data().train
    pixels, labels = decode(train.take(choose_images(len(train), IMAGES)).at((32, 32), 1))
    return normalise(pixels, data().normalisation), labels


def _prune(whole: nn.Module, target: float) -> nn.Module:
    """Prune widths, head channels and hidden units alike by group Taylor, as little as keeps so many MACs."""
    low, high = 0.0, 0.95
    best: nn.Module | None = None
    for _ in range(9):
        ratio = (low + high) / 2
        smaller = _pruned_by(whole, ratio)
        if macs(smaller) <= target:
            best, high = smaller, ratio
        else:
            low = ratio
    assert best is not None
    return best


def _pruned_by(whole: nn.Module, ratio: float) -> nn.Module:
    import torch_pruning as tp

    model: Any = copy.deepcopy(whole)
    images, labels = _importance_images()
    for part, those in zip(images.split(64), labels.split(64), strict=True):
        F.cross_entropy(model(part), those).backward()
    heads = {part.qkv: part.num_heads for part in model.modules() if hasattr(part, "qkv")}
    biases = [value for name, value in model.named_parameters() if name.endswith("relative_position_bias_table")]
    modules: list[Any] = list(model.modules())
    for part in modules:
        if isinstance(part, PatchMerging):  # in steps that the dependency graph can follow
            part.forward = partial(_merge, part)  # type: ignore[method-assign]
    pruner = tp.pruner.BasePruner(
        model,
        torch.zeros(1, 1, 32, 32),
        importance=tp.importance.GroupTaylorImportance(),
        pruning_ratio=ratio,
        ignored_layers=[model.head.fc if isinstance(model, SwinTransformer) else model.head, *biases],
        num_heads=heads,
    )
    pruner.step()
    for part in model.modules():
        if hasattr(part, "qkv"):
            part.num_heads = pruner.num_heads[part.qkv]
            width = part.qkv.out_features // 3
            if isinstance(part, WindowAttention):
                continue
            part.head_dim, part.attn_dim = width // part.num_heads, width
    model.zero_grad()
    return model


def _merge(part: Any, x: Tensor) -> Tensor:
    first, second = (torch.arange(start, x.shape[1], 2) for start in (0, 1))
    corners = [
        x.index_select(1, rows).index_select(2, columns) for columns in (first, second) for rows in (first, second)
    ]
    return part.reduction(part.norm(torch.cat(corners, -1)))


def tasks(experiment: str) -> Iterator[Task]:
    ways = {"adapted": adapted, "pruned": pruned, "uniform": uniform}
    if experiment == "long":
        ways = {"pruned": long, "scratch": scratch}
    for seed in SEEDS:
        for way, run in ways.items():
            yield from (Task(f"{experiment}_{way}", run, {"model": model}, seed) for model in MODELS)


if __name__ == "__main__":
    run_tasks(__doc__, ("shrinking", "long"), tasks)

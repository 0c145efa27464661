"""Released code beside ours, in turns: code that the user has cloned, imported from its folder."""

from __future__ import annotations

import collections.abc
import contextlib
import importlib
import io
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import Measured, a_second, in_turns
from raynas.bench.passes import training_seconds
from raynas.costs import cost
from raynas.data.pixels import IMAGENET, normalise
from raynas.errors import UserError
from raynas.families.hybrid.checkpoint import read_released as read_nasvit
from raynas.families.vit.checkpoint import read_released as read_autoformer
from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.scoring.score_arch import score_arch
from raynas.space import load_space

_ARCHS = 20
_TOLERANCE = 1e-3

Kinds = Mapping[str, tuple[str, Callable[[], float], Callable[[], float]]]
"""Comparisons by name: the unit, a measurement of our code, and one of the released code."""


def bench_peers(
    autoformer: str | Path | None = None,
    nasvit: str | Path | None = None,
    rounds: int = 5,
    batch_size: int = 8,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Measured]:
    """Time released supernets and ours with the same weights, arch and images, after comparing their logits.

    Of AutoFormer-T the released `evaluate` is compared with a score, forward and backward, and `sample_configs` and
    `get_sampled_params_numel` with sampled and costed archs. (The released training loop needs a GPU.) Of NASViT, whose
    released supernet only runs in training, forward passes and steps there are compared.

    Args:
        autoformer: the folder `AutoFormer` of a clone of github.com/microsoft/Cream.
        nasvit: a clone of github.com/facebookresearch/NASViT.

    Raises:
        UserError: a folder does not hold the released code, none is given, or logits differ.
    """
    if autoformer is None and nasvit is None:
        raise UserError("nothing to compare with: give a folder of released code, autoformer or nasvit")
    rows = []
    with on_device(device, threads) as place:
        for name, folder, file, compared in (
            ("AutoFormer-T", autoformer, "supernet_engine.py", _autoformer),
            ("NASViT", nasvit, "models/attentive_nas_dynamic_model.py", _nasvit),
        ):
            if folder is not None:
                with importable(Path(folder), file):
                    rows += _compare(name, compared(batch_size, place), rounds, progress)
    return rows


def _compare(name: str, kinds: Kinds, rounds: int, progress: Progress) -> list[Measured]:
    turns = {
        f"{who}: {what}": measure
        for what, (_, mine, released) in kinds.items()
        for who, measure in (("ours", mine), ("released", released))
    }
    values = in_turns(turns, rounds, progress)
    return [
        Measured(f"{name}, {what} / released", unit, values[f"ours: {what}"], values[f"released: {what}"])
        for what, (unit, _, _) in kinds.items()
    ]


def _autoformer(batch_size: int, device: torch.device) -> Kinds:
    engine = importlib.import_module("supernet_engine")
    theirs = importlib.import_module("model.supernet_transformer").Vision_TransformerSuper(
        embed_dim=256, depth=14, num_heads=4, qkv_bias=True, gp=True, relative_position=True, change_qkv=True
    )
    space, weights = read_autoformer({"model": theirs.state_dict()}, load_space("autoformer/tiny"))
    ours = build_supernet(space)
    ours.load_state_dict(weights)
    ours, theirs = ours.to(device), theirs.to(device)
    pixels, images, labels = _batch(batch_size, device)
    rng = np.random.default_rng(0)
    arch = space.sample(rng)
    values = arch.to_dict()
    config = {
        "layer_num": values["depth"],
        "embed_dim": [values["width"]] * values["depth"],
        "num_heads": values["blocks"]["heads"],
        "mlp_ratio": values["blocks"]["mlp_ratio"],
    }
    choices = {"depth": [12, 13, 14], "embed_dim": [192, 216, 240], "num_heads": [3, 4], "mlp_ratio": [3.5, 4.0]}
    theirs.eval().set_sample_config(config)
    ours.eval()
    _check_equal(lambda: ours(images, arch), lambda: theirs(images))

    def their_score() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            engine.evaluate([(images, labels)], theirs, device, amp=False, mode="retrain", retrain_config=config)

    def our_score() -> None:
        score_arch(ours.eval(), arch, pixels, labels, IMAGENET, batch_size)

    def their_logits() -> Tensor:
        theirs.set_sample_config(config)
        found: Tensor = theirs(images)
        return found

    def their_archs() -> int:
        return sum(theirs.get_sampled_params_numel(engine.sample_configs(choices)) > 0 for _ in range(_ARCHS))

    def our_archs() -> int:
        return len(cost(space, [space.sample(rng) for _ in range(50 * _ARCHS)])["params"])

    return {
        "score of a subnet": ("s", partial(seconds, device, our_score), partial(seconds, device, their_score)),
        "forward and backward of a subnet": (
            "s",
            partial(training_seconds, ours, lambda: ours(images, arch), labels),
            partial(training_seconds, theirs, their_logits, labels),
        ),
        "archs sampled, and their parameters counted": ("/s", a_second(our_archs), a_second(their_archs)),
    }


def _nasvit(batch_size: int, device: torch.device) -> Kinds:
    space = load_space("nasvit/released")

    def layer(prefix: str, **more: Any) -> SimpleNamespace:
        leaves = {"c": "width", "d": "depth", "k": "kernel", "t": "expansion"}
        names = {theirs: f"{prefix}.{leaf}" for theirs, leaf in leaves.items()}
        listed = {theirs: list(space[name].choices) for theirs, name in names.items() if space.has(name)}
        return SimpleNamespace(**listed, act_func="swish", **more)

    strides = zip(space.constants.strides, space.constants.squeeze, strict=True)
    config = {f"mb{i + 1}": layer(f"stages.{i}", s=stride, se=se) for i, (stride, se) in enumerate(strides)}
    config |= {"first_conv": layer("stem", s=2), "last_conv": layer("head")}
    resolutions = list(space["resolution"].choices)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = importlib.import_module("models.attentive_nas_dynamic_model").AttentiveNasDynamicModel(
            SimpleNamespace(use_v3_head=True, resolutions=resolutions, **config)
        )
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d) and module.weight is not None:
            nn.init.ones_(module.weight)  # some start at 0, and their branches would not show in the logits
    space, weights = read_nasvit({"model": theirs.state_dict()}, space)
    ours = build_supernet(space)
    ours.load_state_dict(weights)
    ours, theirs = ours.to(device).train(), theirs.to(device).train()
    _, images, labels = _batch(batch_size, device)
    arch = space.sample(np.random.default_rng(0))
    values = arch.to_dict()
    stages = values["stages"]
    theirs.set_active_subnet(
        values["resolution"],
        [values["stem"]["width"], *(stage["width"] for stage in stages), values["head"]["width"]],
        [stage["depth"] for stage in stages],
        [stage["kernel"] for stage in stages],
        [stage["expansion"] for stage in stages],
    )
    mine, released = partial(ours, images, arch), lambda: theirs(images)[0]
    _check_equal(mine, released)

    def forward(logits: Callable[[], Tensor]) -> Callable[[], float]:
        return partial(seconds, device, torch.no_grad()(logits))

    return {
        "forward of a subnet in training": ("s", forward(mine), forward(released)),
        "forward and backward of a subnet": (
            "s",
            partial(training_seconds, ours, mine, labels),
            partial(training_seconds, theirs, released, labels),
        ),
    }


def _batch(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return random pixels uint8 [size, 3, 224, 224], the same normalised, and labels int64 [size]."""
    rng = np.random.default_rng(1)
    pixels = torch.from_numpy(rng.integers(0, 256, (size, 3, 224, 224), dtype=np.uint8)).to(device)
    return pixels, normalise(pixels, IMAGENET), torch.from_numpy(rng.integers(0, 1000, size)).to(device)


def _check_equal(ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> None:
    with torch.no_grad():
        found, expected = ours(), theirs()
    if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * float(expected.std())):
        raise UserError("the released network and ours give different logits for the same weights: another version?")


@contextlib.contextmanager
def importable(folder: Path, file: str) -> Iterator[None]:
    """Make the modules of a folder importable while the block runs, also those for torch 1 (`torch._six`).

    Raises:
        UserError: the folder lacks a file.
    """
    if not os.path.isfile(folder / file):  # False for a name that is too long, too
        raise UserError(f"{folder}: there is no {file}: give the folder of the clone that holds it")
    before = set(sys.modules)
    six = ModuleType("torch._six")
    vars(six).update(container_abcs=collections.abc, inf=math.inf, string_classes=(str, bytes))
    sys.modules.setdefault("torch._six", six)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)) or name == "torch._six":
                del sys.modules[name]

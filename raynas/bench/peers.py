"""Released code beside ours, in turns: code that the user has cloned, imported from its folder."""

from __future__ import annotations

import collections.abc
import contextlib
import importlib
import io
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import Measured, a_second, in_turns
from raynas.costs import cost
from raynas.data.pixels import IMAGENET, normalise
from raynas.errors import UserError
from raynas.families.vit.checkpoint import read_released
from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.scoring.score_arch import score_arch
from raynas.space import load_space

_ARCHS = 20
_TOLERANCE = 1e-3


def bench_peers(
    autoformer: str | Path,
    rounds: int = 5,
    batch_size: int = 8,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Measured]:
    """Time the released AutoFormer-T and ours with the same weights, arch and images, after comparing their logits.

    Compared are the released `evaluate` with a score, forward and backward, and `sample_configs` and
    `get_sampled_params_numel` with sampled and costed archs. (The released training loop needs a GPU.)

    Args:
        autoformer: the folder `AutoFormer` of a clone of github.com/microsoft/Cream.
        rounds: measurements of each kind.
        batch_size: images of a pass.
        threads: threads of torch during the benchmark.
        device: a torch device.
        progress: called with a line after each round.

    Raises:
        UserError: the folder does not hold the released code, there is no such device, or the logits differ.
    """
    with on_device(device, threads) as place, importable(Path(autoformer), "supernet_engine.py"):
        network = importlib.import_module("model.supernet_transformer")
        engine = importlib.import_module("supernet_engine")
        theirs = network.Vision_TransformerSuper(
            embed_dim=256,
            depth=14,
            num_heads=4,
            qkv_bias=True,
            gp=True,
            relative_position=True,
            change_qkv=True,
        ).to(place)
        space, weights = read_released({"model": theirs.state_dict()}, load_space("autoformer/tiny"))
        ours = build_supernet(space)
        ours.load_state_dict(weights)
        ours.to(place)
        rng = np.random.default_rng(0)
        arch = space.sample(rng)
        pixels = torch.from_numpy(rng.integers(0, 256, (batch_size, 3, 224, 224), dtype=np.uint8)).to(place)
        labels = torch.from_numpy(rng.integers(0, 1000, batch_size)).to(place)
        images = normalise(pixels, IMAGENET)
        values = arch.to_dict()
        config = {
            "layer_num": values["depth"],
            "embed_dim": [values["width"]] * values["depth"],
            "num_heads": values["blocks"]["heads"],
            "mlp_ratio": values["blocks"]["mlp_ratio"],
        }
        choices = {"depth": [12, 13, 14], "embed_dim": [192, 216, 240], "num_heads": [3, 4], "mlp_ratio": [3.5, 4.0]}

        theirs.eval().set_sample_config(config)
        with torch.inference_mode():
            expected, found = theirs(images), ours.eval()(images, arch)
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * float(expected.std())):
            raise UserError(f"{autoformer}: the released network and ours give different logits: another version?")

        def their_score() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                options = {"amp": False, "mode": "retrain", "retrain_config": config}
                engine.evaluate([(images, labels)], theirs, place, **options)

        def our_score() -> None:
            score_arch(ours.eval(), arch, pixels, labels, IMAGENET, batch_size)

        def their_step() -> None:
            theirs.train().zero_grad(set_to_none=True)
            theirs.set_sample_config(config)
            F.cross_entropy(theirs(images), labels).backward()

        def our_step() -> None:
            ours.train().zero_grad(set_to_none=True)
            F.cross_entropy(ours(images, arch), labels).backward()

        def their_archs() -> int:
            return sum(theirs.get_sampled_params_numel(engine.sample_configs(choices)) > 0 for _ in range(_ARCHS))

        def our_archs() -> int:
            return len(cost(space, [space.sample(rng) for _ in range(50 * _ARCHS)])["params"])

        kinds: dict[str, tuple[str, Callable[[], float], Callable[[], float]]] = {
            "score of a subnet": ("s", partial(seconds, place, our_score), partial(seconds, place, their_score)),
            "forward and backward of a subnet": (
                "s",
                partial(seconds, place, our_step),
                partial(seconds, place, their_step),
            ),
            "archs sampled, and their parameters counted": ("/s", a_second(our_archs), a_second(their_archs)),
        }
        turns = {
            f"{who}: {what}": measure
            for what, (_, mine, released) in kinds.items()
            for who, measure in (("ours", mine), ("released", released))
        }
        measured = in_turns(turns, rounds, progress)
    return [
        Measured(f"AutoFormer-T, {what} / released", unit, measured[f"ours: {what}"], measured[f"released: {what}"])
        for what, (unit, _, _) in kinds.items()
    ]


@contextlib.contextmanager
def importable(folder: Path, file: str) -> Iterator[None]:
    """Make the modules of a folder importable while the block runs, also those for torch 1 (`torch._six`).

    Raises:
        UserError: the folder lacks a file.
    """
    if not (folder / file).is_file():
        raise UserError(f"{folder}: there is no {file}: give the folder AutoFormer of a clone of microsoft/Cream")
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

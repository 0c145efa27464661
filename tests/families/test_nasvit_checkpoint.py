"""Checkpoints in NASViT's released layout: recognised by their shapes, read whole, and refused with a reason."""

from __future__ import annotations

import sys
import types
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from raynas.commands.main import main
from raynas.errors import UserError
from raynas.families.hybrid.checkpoint import SPACES, Layout, read_released
from raynas.nets.weights import load_supernet
from raynas.runs.run import Run
from raynas.space import Space, load_space
from tests.families.nasvit_golden import golden, golden_space

ABOUT, _, WEIGHTS = golden()
SPACE = golden_space(ABOUT)


def released_shapes(space: Space, classes: int) -> dict[str, Tensor]:
    """A checkpoint of a supernet's shapes without memory, with all that nothing reads."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, outputs: int, inputs: int, side: int = 1) -> None:
        shapes[f"{name}.conv.conv.weight"] = (outputs, inputs, side, side)

    def norm(name: str, width: int) -> None:
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.bn.bn.{leaf}"] = (width,)
        shapes[f"{name}.bn.bn.num_batches_tracked"] = ()
        for copy in range(2):
            for leaf in ("running_mean", "running_var"):
                shapes[f"{name}.bn.bn_tracking.{copy}.{leaf}"] = (width,)

    def affine(name: str, *shape: int) -> None:
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    def most(name: str) -> int:
        return int(space[name].choices[-1])

    before, number = most("stem.width"), 0
    conv("first_conv", before, space.channels, 3)
    norm("first_conv", before)
    for stage, kind in enumerate(space.constants.kinds):
        here = f"stages.{stage}"
        width, kernel, expansion = (most(f"{here}.{leaf}") for leaf in ("width", "kernel", "expansion"))
        for layer in range(most(f"{here}.depth")):
            name = f"blocks.{number}"
            number += 1
            if layer and kind == "transformer":
                shapes |= {f"{name}.rescale_{which}": (10, 8, width) for which in ("attn", "mlp")}
                heads = width // 8
                shapes[f"{name}.attn.relative_position_bias_table"] = (35 * 35, heads)
                shapes[f"{name}.attn.relative_position_index"] = (324, 324)
                shapes[f"{name}.attn.vconv.weight"] = (4 * width, 1, 3, 3)
                for part, outputs, inputs in (
                    ("attn.q", width, width), ("attn.k", width, width), ("attn.v", 4 * width, width),
                    ("attn.proj", width, 4 * width), ("attn.proj_l", heads, heads), ("attn.proj_w", heads, heads),
                    *((f"mlp{i}.linear{j}", width, width) for i in (1, 2) for j in (1, 2)),
                ):  # fmt: skip
                    affine(f"{name}.{part}.linear", outputs, inputs)
                for index in (1, 2, 3):
                    affine(f"{name}.norm{index}", width)
                continue
            inside = f"{name}.mobile_inverted_conv"
            hidden = before * expansion
            shapes[f"{inside}.rescale"] = (width,)
            if expansion > 1:
                conv(f"{inside}.inverted_bottleneck", hidden, before)
                norm(f"{inside}.inverted_bottleneck", hidden)
            conv(f"{inside}.depth_conv", hidden, 1, kernel)
            norm(f"{inside}.depth_conv", hidden)
            if space.constants.squeeze[stage]:
                squeezed = (hidden // 4 + 4) // 8 * 8
                affine(f"{inside}.depth_conv.se.fc.reduce", squeezed, hidden, 1, 1)
                affine(f"{inside}.depth_conv.se.fc.expand", hidden, squeezed, 1, 1)
            conv(f"{inside}.point_linear", width, hidden)
            norm(f"{inside}.point_linear", width)
            conv(f"{name}.shortcut", width, before)
            before = width
    mixed = most("head.width")
    conv("last_conv.final_expand_layer", 6 * before, before)
    norm("last_conv.final_expand_layer", 6 * before)
    conv("last_conv.feature_mix_layer", mixed, 6 * before)
    affine("classifier.linear.linear", classes, mixed)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


@pytest.mark.parametrize("name", SPACES)
def test_a_released_supernet_is_recognised_and_every_tensor_accounted_for(name: str) -> None:
    """17,725,838 parameters, as the release counts NASViT's: ours, and what nothing can read."""
    space = load_space(name)
    released = released_shapes(space, 10)
    found, read = read_released({"model": released, "epoch": 399})
    assert found == space.with_input(classes=10) and found.name == name
    layout = Layout(found)
    dropped = {key for key in released if layout.unused(key)}
    assert set(layout.sources.values()) | dropped == set(released)
    assert not set(layout.sources.values()) & dropped
    assert {key: tuple(value.shape) for key, value in read.items()} == layout.shapes
    if name == "nasvit/released":
        idle = [released[key] for key in layout.idle]
        assert len(idle) == 10 and sum(tensor.numel() for tensor in idle) == 12_672
        learnt = [key for key in released if not any(part in key for part in ("bn_tracking", "running_", "_index"))]
        assert sum(released[key].numel() for key in learnt if "batches" not in key) == 17_725_838 - 990 * 1985


def test_tables_keep_what_some_arch_reads() -> None:
    _, read = read_released(WEIGHTS, SPACE)
    table = WEIGHTS["blocks.7.attn.relative_position_bias_table"].view(35, 35, 3)
    # Images of 96 pixels have 6 x 6 tokens there, which need offsets from -5 to 5.
    assert torch.equal(read["stages.3.layers.1.attention.relative.table"], table[12:23, 12:23].reshape(1, 121, 3))
    factors = WEIGHTS["blocks.7.rescale_mlp"]
    # Depths 2 and 3; 16, 25 and 36 tokens.
    assert torch.equal(read["stages.3.layers.1.mlp_scaling.weight"], factors[[2, 3]][:, [0, 1, 4]])
    factors = WEIGHTS["blocks.8.rescale_attn"]
    assert torch.equal(read["stages.3.layers.2.attention_scaling.weight"], factors[[3]][:, [0, 1, 4]])
    assert torch.equal(read["stages.3.layers.1.mlp1.fc1.bias"], WEIGHTS["blocks.7.mlp2.linear1.linear.bias"])


def test_a_file_with_settings_is_read_and_nothing_in_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release saves its settings beside the weights, as a class of a package that need not be installed."""
    package: Any = types.ModuleType("yacs.config")

    class CfgNode(dict):
        """As the package's: a dictionary with attributes."""

        def __init__(self, *content: Any):
            super().__init__(*content)
            self.__dict__["__immutable__"] = True

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    package.CfgNode = CfgNode
    with monkeypatch.context() as installed:
        installed.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
        installed.setitem(sys.modules, "yacs.config", package)
        settings = CfgNode({"AMP_OPT_LEVEL": "O0", "MODEL": CfgNode({"NAME": "nasvit"})})
        wrapped = {f"module.{name}": tensor for name, tensor in WEIGHTS.items()}
        torch.save({"model": wrapped, "config": settings, "epoch": 399}, tmp_path / "ckpt.pth")
    space, read = read_released(tmp_path / "ckpt.pth", SPACE)
    assert torch.equal(load_supernet(space, read).state_dict()["head.bias"], WEIGHTS["classifier.linear.linear.bias"])
    torch.save({"model": WEIGHTS, "config": released_shapes}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="not a checkpoint of tensors alone"):
        read_released(tmp_path / "evil.pth", SPACE)


def test_what_does_not_fit_is_named() -> None:
    table = "blocks.7.attn.relative_position_bias_table"
    changes: list[tuple[dict[str, Tensor | None], Space | None, str]] = [
        ({"blocks.7.norm3.bias": None}, SPACE, "not of space golden: it lacks 'blocks.7.norm3.bias'"),
        ({"extra": torch.zeros(1)}, SPACE, "there is no use for its 'extra'"),
        ({"blocks.7.norm3.bias": torch.zeros(3)}, SPACE, r"its blocks.7.norm3.bias gives \[3\] instead of \[24\]"),
        ({table: torch.zeros(81, 3)}, SPACE, r"its table of offsets is \[81, 3\], the space needs 11 x 11"),
        ({table: torch.zeros(1200, 3)}, SPACE, r"its table of offsets is \[1200, 3\]"),
        ({"blocks.7.rescale_mlp": torch.zeros(3, 8, 24)}, SPACE, r"factors for keys below 3, the space for \[2, 3\]"),
        ({}, None, "none of nasvit/released, alphanet/cnn; say which space it is of"),
        ({"classifier.linear.linear.weight": None}, None, "not a NASViT checkpoint: it lacks"),
        ({}, load_space("digits/vit"), "needs a space of family hybrid"),
        ({}, load_space("nasvit/paper"), "the release has no convolutions in MLPs: constants.mlp_conv must be false"),
    ]
    for change, space, message in changes:
        broken = {name: value for name, value in (WEIGHTS | change).items() if value is not None}
        with pytest.raises(UserError, match=message):
            read_released(broken, space)


def test_the_command_makes_a_run_of_it(tmp_path: Path) -> None:
    torch.save({"model": WEIGHTS, "epoch": 399}, tmp_path / "ckpt.pth")
    SPACE.save(tmp_path / "space.yaml")
    rng = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 1)):
        for name in range(ABOUT["n_classes"]):
            folder = tmp_path / "images" / split / f"{name:02}"
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    options = {"--space": f"{tmp_path}/space.yaml", "--run": f"{tmp_path}/run", "--data": f"{tmp_path}/images"}
    assert main(["import", "nasvit", f"{tmp_path}/ckpt.pth", *chain(*options.items())]) == 0
    run = Run(tmp_path / "run")
    _, expected = read_released(WEIGHTS, SPACE)
    written = load_supernet(run.space, tmp_path / "run" / "supernet.safetensors").state_dict()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
    assert run.read_yaml("preset.yaml")["space"] == "nasvit/released"

"""Whatever file is given as a checkpoint: one line that names it, and nothing of it is run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raynas.commands.main import main
from raynas.errors import UserError
from raynas.nets.timm_weights import load_timm
from raynas.phases.import_ import SYSTEMS, _read
from tests.families.released import released_state

READERS = [system for system in SYSTEMS if system != "timm"]
RAN: list[str] = []


class Runs:
    """What would be run, if it were unpickled."""

    def __reduce__(self) -> Any:
        return RAN.append, ("it ran",)


def state() -> dict[str, Tensor]:
    return released_state(24, 3, 3, 8, 48, 4, 5, 6, 2)


def no_checkpoints() -> Iterator[tuple[str, Any]]:
    yield "text", b"root:x:0:0:root:/root:/bin/bash\n"
    yield "empty", b""
    yield "noise", np.random.default_rng(0).bytes(5000)
    yield "zip", b"PK\x03\x04" + bytes(200)
    yield "pickle", pickle.dumps({"model": [1, 2]})
    yield "foreign pickle", pickle.dumps(Runs())
    for protocol in range(5):
        yield f"bad pickle {protocol}", pickle.dumps([("a", 1)] * 3, protocol)[:-4] + b"eR."
    yield "foreign classes", {"model": Runs()}
    yield "numbers as names", {1: torch.zeros(2)}
    yield "numbers as names inside", {"model": {1: torch.zeros(2), "a": torch.zeros(2)}}
    yield "a tensor", torch.zeros(3)
    yield "a list", [torch.zeros(3)]
    yield "a tensor for a model", {"model": torch.zeros(3), "state_dict": torch.zeros(3), "model_ema": torch.zeros(2)}
    yield "texts", {"model": {"head.weight": "x"}}
    yield "none", None
    yield "nothing", {}
    yield "other names", {"head.bias": torch.zeros(10)}
    for name, value in {
        "complex": torch.zeros(2, dtype=torch.complex64),
        "whole": torch.zeros(2, dtype=torch.int64),
        "true": torch.zeros(2, dtype=torch.bool),
        "sparse": torch.zeros(2, 2).to_sparse(),
        "quantised": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
        "infinite": torch.full((2,), torch.inf),
    }.items():
        yield name, {"model": {**state(), "norm.bias": value}}


def write(content: Any, path: Path) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    return path


def refused(path: Path, system: str) -> str:
    with pytest.raises(UserError) as raised:
        if system == "timm":
            load_timm("vit_tiny_patch16_224", path, instead="--weights FILE")
        else:
            _read(system, path, None)
    text = str(raised.value)
    assert path.name in text and "\n" not in text and not RAN
    return text


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.filterwarnings("ignore")  # torch's own, of quantised tensors
def test_no_checkpoints(system: str, tmp_path: Path) -> None:
    for name, content in no_checkpoints():
        refused(write(content, tmp_path / f"{name}.pth"), system)
    whole = write({"model": state()}, tmp_path / "whole.pth").read_bytes()
    for size in (1, 100, len(whole) // 2, len(whole) - 1):
        refused(write(whole[:size], tmp_path / "truncated.pth"), system)
    refused(tmp_path / "missing.pth", system)
    refused(tmp_path, system)
    os.mkfifo(tmp_path / "pipe")
    assert "not a file" in refused(tmp_path / "pipe", system)


SHAPES = [(), (0,), (1,), (7,), (2, 0), (1, 1, 1), (2, 3, 4, 5, 6)]


@pytest.mark.parametrize("system", READERS)
def test_tensors_of_other_shapes(system: str, tmp_path: Path) -> None:
    """The names of each release's own recognition, with shapes that no network has."""
    names = {
        "autoformer": [
            name for name in state() if not name.startswith("blocks.") or name.startswith("blocks.0.attn.q")
        ],
        "nasvit": ["first_conv.conv.conv.weight", "classifier.linear.linear.weight"],
        "s3": [
            *("patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table", "head.weight"),
            *("layers.0.blocks.0.attn.qkv.weight", "layers.0.blocks.0.mlp.fc1.weight", "norm.weight"),
        ],
        "vit-resnas": ["pos_embed", "patch_embed.conv1.conv.weight", "cls_head.weight", "blocks.1.patch_reduce.weight"],
    }[system]
    good = state() if system == "autoformer" else {name: torch.zeros(4, 4, 4, 4) for name in names}
    for name in names:
        for shape in SHAPES:
            refused(write({"model": {**good, name: torch.zeros(shape)}}, tmp_path / "shapes.pth"), system)
    for shape in SHAPES:
        refused(write({"model": {name: torch.zeros(shape) for name in names}}, tmp_path / "shapes.pth"), system)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for system in READERS:
        assert main(["import", system, "/etc/passwd", "--run", f"{tmp_path}/run", "--data", "digits"]) == 2
        assert "/etc/passwd: not a checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

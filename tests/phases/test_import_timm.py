"""`raynas import timm`: a model with its weights becomes a run that is evaluated as timm evaluates it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from huggingface_hub.utils import logging as hub_logging
from PIL import Image
from safetensors.torch import save_file
from timm.models import build_model_with_cfg, register_model
from timm.models.swin_transformer import SwinTransformer
from timm.models.twins import Twins
from torch import nn

from raynas.commands.main import main
from raynas.data.images import decode
from raynas.data.load import load_data, load_test
from raynas.data.pixels import normalise
from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.runs.run import Run

CLASSES = 4


@register_model
def twins_of_this_test(pretrained: bool = False, **options: Any) -> nn.Module:
    """A model of timm's that is small enough, for which there is nothing to download."""
    widths: dict[str, Any] = {"embed_dims": (8, 12), "num_heads": (2, 3), "mlp_ratios": (2, 2)}
    rest: dict[str, Any] = {"img_size": 32, "depths": (2, 2), "wss": (3, 3), "sr_ratios": (4, 2)}
    return build_model_with_cfg(Twins, "twins_svt_small", pretrained, **widths, **rest, **options)


@register_model
def swin_of_this_test(pretrained: bool = False, **options: Any) -> nn.Module:
    """A small Swin whose last windows are the whole grid."""
    shape: dict[str, Any] = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": ((4, 4), (8, 8))}
    rest: dict[str, Any] = {"img_size": 32, "patch_size": 4, "mlp_ratio": 2}
    return build_model_with_cfg(SwinTransformer, "swin_tiny_patch4_window7_224", pretrained, **shape, **rest, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in both formats, and a folder of images."""
    root = tmp_path_factory.mktemp("timm")
    torch.manual_seed(0)
    model = timm.create_model("twins_of_this_test", num_classes=CLASSES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    torch.save({"model": model.state_dict()}, root / "model.pth")
    save_file(model.state_dict(), root / "model.safetensors")
    torch.save([1, 2], root / "list.pth")
    (root / "text.pth").write_text("not weights")
    with torch.no_grad():
        model.get_parameter("blocks.0.1.mlp.fc1.bias")[3] = torch.nan
    torch.save(model.state_dict(), root / "nan.pth")
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 5)):
        for name in "abcd":
            folder = root / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(rng.integers(0, 256, (80, 70, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return root


def command(files: Path, run: str, weights: str | None, *more: str, name: str = "twins_of_this_test") -> list[str]:
    given = ["--weights", f"{files}/{weights}"] if weights else []
    return ["import", "timm", name, "--run", f"{files}/{run}", "--data", f"{files}/images", *given, *more]


@pytest.mark.parametrize("weights", ["model.pth", "model.safetensors"])
def test_the_run_evaluates_as_timms_model(files: Path, weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(files, f"run of {weights}", weights)) == 0
    assert "are read as 32 x 32 RGB: the model is of such images" in capsys.readouterr().out
    run = Run(files / f"run of {weights}")
    model: Any = timm.create_model("twins_of_this_test", num_classes=CLASSES).eval()
    model.load_state_dict(torch.load(files / "model.pth", weights_only=True)["model"])
    data = load_data(run.read_yaml("preset.yaml")["data"])
    assert data.size == (32, 32) and data.config.crop_pct == model.pretrained_cfg["crop_pct"] == 0.9
    pixels, labels = decode(load_test(data.config))
    images = normalise(pixels, data.normalisation)
    (network,) = networks_to_evaluate(run)
    with torch.no_grad():
        logits = model(images)
        torch.testing.assert_close(run.supernet().subnet(network.arch).eval()(images), logits, rtol=0, atol=1e-5)
    (row,) = evaluate(run, [network])
    assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


def test_a_swin_of_timms_or_as_released(files: Path) -> None:
    """The same network in both layouts: a released merging stands at the end of the stage before."""
    torch.manual_seed(1)
    model: Any = timm.create_model("swin_of_this_test", num_classes=CLASSES).eval()
    save_file(model.state_dict(), files / "swin.safetensors")
    assert main(command(files, "swin", "swin.safetensors", name="swin_of_this_test")) == 0
    run = Run(files / "swin")
    (network,) = networks_to_evaluate(run)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(run.supernet().subnet(network.arch).eval()(images), model(images), rtol=0, atol=1e-5)
    renamed = {"layers.1.downsample": "layers.0.downsample", "head.fc": "head"}
    state = {
        next((key.replace(old, new) for old, new in renamed.items() if key.startswith(old)), key): value
        for key, value in model.state_dict().items()
    }
    torch.save({"model": state}, files / "released.pth")
    options = ["--run", f"{files}/released", "--space", f"{files}/swin/best/arch.yaml", "--data", f"{files}/images"]
    assert main(["import", "s3", f"{files}/released.pth", *options]) == 0
    first, second = (Run(files / name).read_json("supernet.json") for name in ("swin", "released"))
    assert first["fingerprint"] == second["fingerprint"]


@pytest.mark.parametrize(
    ("weights", "name", "more", "message"),
    [
        (None, "twins_of_that_test", [], r"timm has no model 'twins_of_that_test' \(did you mean 'twins_of_this_test'"),
        (None, "resnet18", [], "whose names start with twins_, swin_, deit, vit_, not resnet18"),
        ("none.pth", "twins_of_this_test", [], "none.pth: there is no such file"),
        (
            "model.pth",
            "twins_svt_small",
            [],
            r"model.pth holds weights of another model than twins_svt_small: ",
        ),
        ("images/val/a/0.png", "twins_of_this_test", [], "0.png: not a file of weights: give a .safetensors file"),
        ("text.pth", "twins_of_this_test", [], "text.pth: not a file of weights: give a .safetensors file"),
        ("list.pth", "twins_of_this_test", [], "list.pth: not a file of weights: give a .safetensors file"),
        ("nan.pth", "twins_of_this_test", [], r"nan.pth: blocks.0.1.mlp.fc1.bias holds NaN or infinite"),
        (
            "model.pth",
            "twins_of_this_test",
            ["--data", "digits"],
            r"takes images of 3 channel\(s\), digits is read with 1",
        ),
        ("model.pth", "twins_of_this_test", ["--space", "digits/vit"], "leave the space out"),
    ],
)
def test_mistakes_are_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], weights: str | None, name: str, more: list[str], message: str
) -> None:
    assert main(command(files, "refused", weights, *more, name=name)) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and re.search(message, said), said


def test_weights_that_cannot_be_fetched(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a machine without a network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert main(command(files, "offline", None, name="twins_svt_small")) == 2
    out, err = capsys.readouterr()
    assert "timm cannot download the weights of twins_svt_small" in err and len(err.splitlines()) == 1
    assert (
        "from https://huggingface.co/timm/twins_svt_small.in1k" in out
        and "give a file of them with --weights FILE" in out
    )


@register_model
def twins_out_of_reach(pretrained: bool = False, **options: Any) -> nn.Module:
    """A model whose weights are asked for as without a network: the hub's library warns of every retry."""
    hub_logging.get_logger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 5/5].")
    raise ConnectionError("connection refused")


def test_retries_of_a_download_are_not_told(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = hub_logging.get_verbosity()
    assert main(command(files, "unreachable", None, name="twins_out_of_reach")) == 2
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 1 and out.startswith("fetching the weights of twins_out_of_reach, unless")
    assert len(err.splitlines()) == 1 and err.endswith("connection refused\n")
    assert hub_logging.get_verbosity() == before


def test_pixels_that_are_read_otherwise_are_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """These images are few and small enough to have a mean of their own."""
    assert main(command(files, "told", "model.pth")) == 0
    assert "trained on pixels of mean and deviation [0.485, 0.456, 0.406]" in capsys.readouterr().out

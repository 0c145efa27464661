"""Exports compute what the supernet computes, in a process of their own and without raynas."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from raynas.errors import UserError
from raynas.export import choose, export
from raynas.nets import build_supernet
from raynas.networks import Network, load_network
from raynas.results import RunDir
from raynas.space import Arch, load_space

SPACE = load_space("digits/vit")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run directory with an untrained supernet."""
    from safetensors.torch import save

    run = RunDir(tmp_path_factory.mktemp("export") / "run", create=True)
    torch.manual_seed(0)
    run.write_yaml("space.yaml", SPACE.to_dict())
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}})
    run.write_bytes("supernet.safetensors", save(build_supernet(SPACE).state_dict()))
    return run


@pytest.fixture(scope="module")
def arch() -> Arch:
    return SPACE.sample(np.random.default_rng(3))


@pytest.fixture(scope="module")
def folder(run: RunDir, arch: Arch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("exported") / "network"
    export(run, Network(arch, "inherited"), to, progress=lambda line: None)
    return to


@pytest.fixture(scope="module")
def expected(run: RunDir, arch: Arch, folder: Path) -> np.ndarray:
    """Logits of the supernet itself on images that are kept beside the export."""
    from safetensors.torch import load

    from raynas.nets.weights import load_supernet

    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    np.save(folder / "images.npy", x.numpy())
    supernet = load_supernet(SPACE, load(run.read_bytes("supernet.safetensors"))).eval()
    with torch.no_grad():
        return supernet(x, arch).numpy()


def fresh_process(code: str, folder: Path) -> np.ndarray:
    """The array that a few lines leave in `logits`, run by another interpreter in the export's folder."""
    text = f"import numpy\nx = numpy.load('images.npy')\n{code}\nnumpy.save('logits.npy', logits)\n"
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return np.load(folder / "logits.npy")


def test_timm_builds_it_after_import_raynas(folder: Path, expected: np.ndarray) -> None:
    root = Path(__file__).parents[1]
    code = f"""
import sys
sys.path.insert(0, {str(root)!r})
import raynas
assert not {{"torch", "timm"}} & set(sys.modules), "import raynas is not light"
import timm, torch
model = timm.create_model("raynas_vit", arch="arch.yaml", checkpoint_path="model.safetensors").eval()
again = timm.create_model("raynas_vit", pretrained=True, arch=".").eval()
with torch.no_grad():
    logits = model(torch.from_numpy(x)).numpy()
    assert numpy.array_equal(logits, again(torch.from_numpy(x)).numpy())
"""
    assert np.abs(fresh_process(code, folder) - expected).max() < 1e-5


def test_torch_archive_needs_no_raynas(folder: Path, expected: np.ndarray) -> None:
    code = """
import sys, torch
model = torch.export.load("model.pt2").module()
logits = model(torch.from_numpy(x)).detach().numpy()
assert not [name for name in sys.modules if name.startswith("raynas")]
"""
    assert np.abs(fresh_process(code, folder) - expected).max() < 1e-5


def test_onnx_computes_the_same(folder: Path, expected: np.ndarray) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(["logits"], {"images": np.load(folder / "images.npy")})[0]
    assert np.abs(found - expected).max() < 1e-4


def test_preprocessing_is_that_of_the_data(folder: Path) -> None:
    from raynas.data import load_data

    data = load_data("digits")
    found = json.loads((folder / "preprocessing.json").read_text())
    pixels = np.stack([np.asarray(image) for image, _ in (data.train[i] for i in range(len(data.train)))]) / 255
    assert found["mean"] == pytest.approx([pixels.mean()], abs=1e-6)
    assert found["std"] == pytest.approx([pixels.std()], abs=1e-4)
    assert (found["exif"], found["pixel_range"]) == ("ignored", None)  # there is none in pixels that are in memory
    assert found["class_names"] == [str(digit) for digit in range(10)]


def test_other_classes_make_a_new_head_and_say_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import timm

    ten = load_network(folder)
    model = timm.create_model("raynas_vit", pretrained=True, arch=folder, num_classes=37)
    said = capsys.readouterr().out
    assert "10 classes" in said and "37 classes" in said
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 37)
    for name, value in model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(value, ten.state_dict()[name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs arch"),
        ({"arch": "digits/deit", "pretrained": True}, "model.safetensors"),
        ({"arch": "no/such"}, "no/such"),
        ({"arch": "digits/deit", "pretrained_cfg": {"num_classes": 3}}, "pretrained_cfg"),
    ],
)
def test_mistakes_with_timm(arguments: dict, words: str) -> None:
    import timm

    with pytest.raises(UserError, match=words):
        timm.create_model("raynas_vit", **arguments)


def test_weights_of_another_arch_are_refused(folder: Path, arch: Arch, tmp_path: Path) -> None:
    from raynas.space import save_arch

    other = next(found for found in SPACE.neighbours(arch) if found["width"] != arch["width"])
    save_arch(other, tmp_path / "arch.yaml")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="does not fit"):
        load_network(tmp_path)


def test_the_retrained_winner_is_chosen(arch: Arch) -> None:
    ways = [("finetuned", 0), ("scratch", 0), ("scratch", 1)]
    tuned, first, second = (Network(arch, how, seed, f"networks/{how}-{seed}") for how, seed in ways)
    other = Network(SPACE.smallest(), "scratch", 0, "networks/x")
    assert choose([other], arch) == Network(arch, "inherited")
    assert choose([other, tuned], arch) is tuned
    assert choose([second, tuned, first], arch) is first


def test_an_export_replaces_an_export_alone(run: RunDir, arch: Arch, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    run.write_bytes("tables/scores/fragment", b"")
    network = Network(arch, "inherited")
    (tmp_path / "link").symlink_to(run.uri)
    refused: dict[str | Path, str] = {
        tmp_path: "holds other files than an export's",
        Path(run.uri): "lies in the run directory",
        run.uri + "/tables/scores": "lies in the run directory",
        run.uri + "/new/deeper": "lies in the run directory",
        tmp_path / "link" / "export": "lies in the run directory",
        "s3://bucket/network": "is a folder on this machine",
    }
    for to, words in refused.items():
        with pytest.raises(UserError, match=words):
            export(run, network, to)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert run.list() == ["preset.yaml", "raynas.yaml", "space.yaml", "supernet.safetensors", "tables"]
    (folder / "README.md").unlink()
    export(run, network, folder, onnx=False, progress=lambda line: None)  # an earlier export
    assert (folder / "README.md").exists()


@pytest.mark.parametrize("room", ["10_000", "weights and little more"])
def test_a_full_disk_is_one_line(run: RunDir, arch: Arch, folder: Path, tmp_path: Path, room: str) -> None:
    # The kernel's own refusal: a file size limit stands for a full disk. The archive is larger than the weights.
    limit = int(room) if room.startswith("1") else (folder / "model.safetensors").stat().st_size + 1
    assert limit < (folder / "model.pt2").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(UserError) as raised:
            export(run, Network(arch, "inherited"), tmp_path / "to", onnx=False, progress=lambda line: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value) == f"{tmp_path / 'to'}: cannot be written: {os.strerror(errno.EFBIG)}"

"""Exports compute what the supernet computes, in a process of their own and without raynas."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raynas.data.config import DataConfig
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.phases.export import choose_network, export, export_into_run
from raynas.runs.network_folder import load_network_folder
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.space import Arch, load_space
from tests.data.pictures import write_classes
from tests.killing import killed_at
from tests.small_run import small_run

SPACE = load_space("digits/vit")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run directory with an untrained supernet."""
    from safetensors.torch import save

    run = Run(tmp_path_factory.mktemp("export") / "run", create=True)
    torch.manual_seed(0)
    run.write_yaml("space.yaml", SPACE.to_dict())
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}})
    run.write_bytes("supernet.safetensors", save(build_supernet(SPACE).state_dict()))
    return run


@pytest.fixture(scope="module")
def arch() -> Arch:
    return SPACE.sample(np.random.default_rng(3))


@pytest.fixture(scope="module")
def folder(run: Run, arch: Arch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("exported") / "network"
    export(run, Network(arch, "inherited"), to)
    return to


@pytest.fixture(scope="module")
def expected(run: Run, arch: Arch, folder: Path) -> np.ndarray:
    """Logits of the supernet itself on images that are kept beside the export."""
    from safetensors.torch import load

    from raynas.nets.weights import load_supernet

    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    np.save(folder / "images.npy", x.numpy())
    supernet = load_supernet(SPACE, load(run.read_bytes("supernet.safetensors"))).eval()
    with torch.no_grad():
        return supernet(x, arch).numpy()


def test_another_process_computes_the_same(folder: Path, expected: np.ndarray) -> None:
    """From the archive without raynas, then with timm, which builds the network after an import of raynas.timm."""
    code = f"""
import sys
import numpy, torch
x = torch.from_numpy(numpy.load("images.npy"))
archive = torch.export.load("model.pt2").module()
logits = [archive(x).detach().numpy()]
assert not [name for name in sys.modules if name.startswith("raynas")]
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import raynas.timm, timm
model = timm.create_model("raynas_vit", arch="arch.yaml", checkpoint_path="model.safetensors").eval()
again = timm.create_model("raynas_vit", pretrained=True, arch=".").eval()
with torch.no_grad():
    logits.append(model(x).numpy())
    assert numpy.array_equal(logits[1], again(x).numpy())
numpy.save("logits.npy", logits)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert np.abs(np.load(folder / "logits.npy") - expected).max() < 1e-5


def test_an_export_is_a_folder_as_on_a_hub(folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    """timm builds the network from `config.json` and `model.safetensors` alone, wherever they lie."""
    import timm

    import raynas.timm  # noqa: F401  it registers the model

    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, tmp_path)
    place = f"local-dir:{tmp_path}"
    own: Any = timm.create_model("raynas_vit", pretrained=True, arch=folder)
    model: Any = timm.create_model(place, pretrained=True).eval()
    config = timm.data.resolve_model_data_config(model)
    assert config == timm.data.resolve_model_data_config(own)
    assert model.pretrained_cfg["label_names"] == [str(digit) for digit in range(10)]
    images = torch.from_numpy(np.load(folder / "images.npy"))
    assert timm.create_model(place, pretrained=True, num_classes=3)(images).shape == (5, 3)
    colours = timm.create_model(place, pretrained=True, in_chans=3)
    assert timm.data.resolve_model_data_config(colours)["mean"] == config["mean"] * 3
    maps: Any = timm.create_model(place, pretrained=True, features_only=True).eval()
    levels = model.forward_intermediates(images, maps.feature_info.out_indices, intermediates_only=True)
    with torch.no_grad():
        assert all(torch.equal(*pair) for pair in zip(maps(images), levels, strict=True))
        assert np.abs(model(images).numpy() - expected).max() < 1e-5
    (tmp_path / "model.safetensors").unlink()
    assert timm.create_model(place).num_classes == 10  # random weights
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        timm.create_model(place, pretrained=True)


def test_onnx_computes_the_same(folder: Path, expected: np.ndarray) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(["logits"], {"images": np.load(folder / "images.npy")})[0]
    assert np.abs(found - expected).max() < 1e-4


def test_preprocessing_is_that_of_the_data(folder: Path) -> None:
    from raynas.data.load import load_data

    data = load_data("digits")
    found = json.loads((folder / "preprocessing.json").read_text())
    pixels = np.stack([np.asarray(image) for image, _ in (data.train[i] for i in range(len(data.train)))]) / 255
    assert found["mean"] == pytest.approx([pixels.mean()], abs=1e-6)
    assert found["std"] == pytest.approx([pixels.std()], abs=1e-4)
    assert (found["exif"], found["pixel_range"]) == ("ignored", None)  # there is none in pixels that are in memory
    assert found["class_names"] == [str(digit) for digit in range(10)]


def test_timm_reads_how_images_become_the_input(folder: Path) -> None:
    """For the network as it is, with a new head, and for more channels."""
    import timm

    import raynas.timm  # noqa: F401  it registers the model

    said = json.loads((folder / "preprocessing.json").read_text())

    def config(**options: Any) -> dict[str, Any]:
        model = timm.create_model("raynas_vit", pretrained=True, arch=folder, **options)
        return dict(timm.data.resolve_model_data_config(model))

    own = config()
    assert own == {
        "input_size": (1, 8, 8),
        "interpolation": "bicubic",
        "mean": tuple(said["mean"]),
        "std": tuple(said["std"]),
        "crop_pct": 1.0,
        "crop_mode": "center",
    }
    assert config(num_classes=3) == own
    assert config(in_chans=3) == {**own, "input_size": (3, 8, 8), "mean": own["mean"] * 3, "std": own["std"] * 3}
    files: dict[str, Any] = {"arch": folder / "arch.yaml", "checkpoint_path": folder / "model.safetensors"}
    model: Any = timm.create_model("raynas_vit", num_classes=10, **files)
    assert timm.data.resolve_model_data_config(model) == own
    assert model.default_cfg["num_classes"] == 10 and model.pretrained_cfg["label_names"] == said["class_names"]


def test_the_same_grey_in_three_channels_gives_the_same(folder: Path, expected: np.ndarray) -> None:
    images = torch.from_numpy(np.load(folder / "images.npy"))
    with torch.no_grad():
        found = load_network_folder(folder, channels=3)(images.expand(-1, 3, -1, -1))
    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_archive_and_onnx_carry_the_preprocessing(folder: Path) -> None:
    written = (folder / "preprocessing.json").read_text()
    extra = {"preprocessing.json": ""}
    torch.export.load(folder / "model.pt2", extra_files=extra)
    assert extra["preprocessing.json"] == written
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["preprocessing.json"] == written


@pytest.mark.parametrize(("mode", "size"), [("RGB", [96, 128]), ("L", 24), ("RGB", 64)])
def test_timms_transform_gives_the_pixels_that_raynas_gives(mode: str, size: Any, tmp_path: Path) -> None:
    from timm.data import create_transform, resolve_data_config

    from raynas.data.images import decode
    from raynas.data.load import load_data
    from raynas.data.pixels import normalise
    from raynas.data.preprocessing import preprocessing_of

    write_classes(tmp_path, {"a": 10, "b": 10}, size=(150, 110), mode="RGB")
    data = load_data(DataConfig(name=str(tmp_path), size=size, channels=3 if mode == "RGB" else 1))
    reading = preprocessing_of(data)
    transform = create_transform(**resolve_data_config(pretrained_cfg=reading.timm_config(2)))
    ours = normalise(decode(data.search)[0], data.normalisation)
    for position, row in enumerate(ours):
        image = data.search[position][0]
        assert isinstance(image, Image.Image) and reading.mode == mode
        torch.testing.assert_close(transform(image.convert(reading.mode)), row, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "is damaged"),
        ("[]", "expected a mapping"),
        ({"mean": [0.5, 0.5]}, "one for each channel"),
        ({"size": [9, 9]}, "is of images of 9 x 9"),
        ({"crop": 1}, "crop"),
        ({"class_names": ["cat", "dog"]}, "names 2 classes, the network has 10"),
    ],
)
def test_a_damaged_description_is_told(content: Any, words: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "damaged")
    said = json.loads((folder / "preprocessing.json").read_text())
    text = content if isinstance(content, str) else json.dumps({**said, **content})
    (tmp_path / "damaged" / "preprocessing.json").write_text(text)
    with pytest.raises(UserError, match=words) as raised:
        load_network_folder(tmp_path / "damaged")
    assert "preprocessing.json" in str(raised.value) and "\n" not in str(raised.value)


def test_weights_without_a_description_say_so(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("arch.yaml", "model.safetensors"):
        shutil.copy(folder / name, tmp_path)
    model = load_network_folder(tmp_path)
    assert "may not be those that it was trained with" in capsys.readouterr().out
    assert model.pretrained_cfg["input_size"] == (1, 8, 8) and len(model.pretrained_cfg["mean"]) == 1


def test_other_classes_make_a_new_head_and_say_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import timm

    import raynas.timm  # noqa: F401  it registers the model

    ten = load_network_folder(folder)
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

    import raynas.timm  # noqa: F401  it registers the model

    with pytest.raises(UserError, match=words):
        timm.create_model("raynas_vit", **arguments)


def test_weights_of_another_arch_are_refused(folder: Path, arch: Arch, tmp_path: Path) -> None:
    from raynas.space import save_arch

    other = next(found for found in SPACE.neighbours(arch) if found["width"] != arch["width"])
    save_arch(other, tmp_path / "arch.yaml")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="does not fit"):
        load_network_folder(tmp_path)


def test_the_retrained_winner_is_chosen(arch: Arch) -> None:
    ways = [("finetuned", 0), ("scratch", 0), ("scratch", 1)]
    tuned, first, second = (Network(arch, how, seed, f"networks/{how}-{seed}") for how, seed in ways)
    other = Network(SPACE.smallest(), "scratch", 0, "networks/x")
    assert choose_network([other], arch) == Network(arch, "inherited")
    assert choose_network([other, tuned], arch) is tuned
    assert choose_network([second, tuned, first], arch) is first


def test_a_seed_can_be_chosen(arch: Arch) -> None:
    networks = [Network(arch, "scratch", seed, f"networks/{seed}") for seed in (2, 0, 5)]
    assert choose_network(networks, arch).seed == 0 and choose_network(networks, arch, seed=5).seed == 5
    with pytest.raises(UserError, match=r"with seed 1 .*seed 0, 2, 5"):
        choose_network(networks, arch, seed=1)
    with pytest.raises(UserError, match="no seed at all"):
        choose_network([], arch, seed=0)


def test_the_current_directory_is_not_replaced_under_the_users_feet(
    run: Run, arch: Arch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    for to in (".", "", "..", str(tmp_path / "a/b")):
        with pytest.raises(UserError, match="the current directory lies there"):
            export(run, Network(arch, "inherited"), to, onnx=False)
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a/b"] and list((tmp_path / "a/b").iterdir()) == []


@pytest.mark.slow
def test_a_killed_export_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    first, second = (Network(SPACE.sample(np.random.default_rng(seed)), "inherited") for seed in (1, 2))
    export_into_run(run, first, onnx=False)
    at = tmp_path / "run" / "export"
    before = {file.name: file.read_bytes() for file in at.iterdir()}
    assert set(json.loads(before["export.json"])["files"]) == set(before) - {"export.json"}
    for step in (0, 3, 5, 8, 11, 14, 17, 20):
        killed = killed_at(step, lambda: export_into_run(run, second, onnx=False))
        after = {file.name: file.read_bytes() for file in at.iterdir()}
        if after != before:
            break
        assert killed
    names = {json.loads(files["export.json"])["network"] for files in (before, after)}
    assert names == {first.name, second.name}
    lines: list[str] = []
    export_into_run(run, second, onnx=False, progress=lines.append)
    assert "is exported already" in lines[0]
    torch.testing.assert_close(load_network_folder(at)(torch.ones(1, 1, 8, 8)), second_logits(run, second))
    (at / "model.pt2").write_bytes(before["model.pt2"])  # mixed, as an earlier version may have left it
    export_into_run(run, second, onnx=False, progress=lines.append)
    assert "is exported already" not in lines[1]
    assert {file.name: file.read_bytes() for file in at.iterdir() if file.name != "model.pt2"} == {
        name: data for name, data in after.items() if name != "model.pt2"
    }


def second_logits(run: Run, network: Network) -> torch.Tensor:
    return run.model(network)(torch.ones(1, 1, 8, 8))


def test_an_export_is_under_the_lock_of_its_run(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with (tmp_path / "run" / ".lock").open("a+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use"):
            export_into_run(run, Network(SPACE.smallest(), "inherited"), onnx=False)
    assert not run.exists("export")


def test_an_export_follows_no_links_in_its_folder(run: Run, arch: Arch, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    to = tmp_path / "network"
    to.mkdir()
    shutil.copy(folder / "arch.yaml", to)
    (to / "README.md").symlink_to(tmp_path / "mine")
    (to / "notes.txt").write_text("the user's")
    (to / "model.onnx").write_bytes(b"of an earlier network")
    export(run, Network(arch, "inherited"), to, onnx=False)
    assert (tmp_path / "mine").read_text() == "mine" and not (to / "README.md").is_symlink()
    assert (to / "notes.txt").read_text() == "the user's" and not (to / "model.onnx").exists()
    assert sorted(os.listdir(tmp_path)) == ["mine", "network"]


def test_an_export_replaces_an_export_alone(run: Run, arch: Arch, folder: Path, tmp_path: Path) -> None:
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
    export(run, network, folder, onnx=False)  # an earlier export
    assert (folder / "README.md").exists()


@pytest.mark.parametrize("room", ["10_000", "weights and little more"])
def test_a_full_disk_is_one_line(run: Run, arch: Arch, folder: Path, tmp_path: Path, room: str) -> None:
    # The kernel's own refusal: a file size limit stands for a full disk. The archive is larger than the weights.
    limit = int(room) if room.startswith("1") else (folder / "model.safetensors").stat().st_size + 1
    assert limit < (folder / "model.pt2").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(UserError) as raised:
            export(run, Network(arch, "inherited"), tmp_path / "to", onnx=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(raised.value) == f"{tmp_path / 'to'}: cannot be written: {os.strerror(errno.EFBIG)}"

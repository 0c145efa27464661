"""`raynas retrain NETWORK --data DIR --run RUN`: a trained network on images of other classes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import raynas
from raynas.errors import RunDirError, UserError
from raynas.nets import build_supernet
from raynas.presets.preset import load_preset
from raynas.runs.run import Run
from raynas.space import load_space, save_arch
from tests.data.pictures import write_classes

SMALL = {"recipe.epochs": 1, "recipe.batch_size": 8, "recipe.warmup_epochs": 0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network for 10 classes of 8 x 8 grey pixels, and images of 3 classes."""
    root = tmp_path_factory.mktemp("transfer")
    space = load_space("digits/vit")
    torch.manual_seed(0)
    network = build_supernet(space).extract(space.sample(np.random.default_rng(0)))
    (root / "network").mkdir()
    save_arch(network.space.smallest(), root / "network" / "arch.yaml")
    save_file(network.state_dict(), root / "network" / "model.safetensors")
    for split in ("train", "test"):
        write_classes(root / "pets" / split, {"cat": 12, "dog": 12, "owl": 12}, size=(20, 20), mode="L")
    return root


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "supernet.safetensors")


def test_a_folder_is_fine_tuned_on_other_classes_and_sizes_and_goes_on(root: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    arguments: dict[str, Any] = {"data": str(root / "pets"), "run_dir": tmp_path / "run", "overrides": SMALL}
    rows = raynas.retrain(str(root / "network"), **arguments, size=16, progress=lines.append)
    run = Run(tmp_path / "run")
    assert [(row["how"], row["height"], row["arch"]) for row in rows] == [("finetuned", 16, run.arch("best").id)]
    assert sum("gets a new classifier for the 3 classes" in line for line in lines) == 1
    assert run.space.classes == 3 and run.space.input_size == (16, 16) and run.space.cardinality() == 1
    before, after = load_file(root / "network" / "model.safetensors"), weights(tmp_path / "run")
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {name.split(".")[0] for name in changed} == {"head", "stem"}  # positions of another grid, and the classifier
    trained = run.networks()[0]
    assert run.model(trained).num_classes == 3
    again = raynas.retrain(str(root / "network"), **arguments, size=16)
    assert [row["path"] for row in again] == [row["path"] for row in rows]
    with pytest.raises(RunDirError):  # another size is another network
        raynas.retrain(str(root / "network"), **arguments, size=8)
    rows = raynas.evaluate(tmp_path / "run")
    assert {row["how"] for row in rows} == {"inherited", "finetuned"}
    # and from that run, whose classes are known, to others
    write_classes(tmp_path / "birds", {"kite": 12, "rook": 12}, size=(20, 20), mode="L")
    other = raynas.import_model("transfer", str(tmp_path / "run"), tmp_path / "birds_run", str(tmp_path / "birds"))
    assert other.space.classes == 2 and other.space.input_size == (16, 16)
    own, kept = run.model(trained).state_dict(), weights(tmp_path / "birds_run")
    assert {name for name, value in kept.items() if not torch.equal(value, own[name])} == {"head.weight", "head.bias"}
    lines.clear()
    same = raynas.import_model(
        "transfer", str(tmp_path / "run"), tmp_path / "same", str(root / "pets"), progress=lines.append
    )
    assert not any("classes" in line for line in lines)  # they are known by name
    assert same.has_arch("best")
    assert all(torch.equal(value, own[name]) for name, value in weights(tmp_path / "same").items())


def test_embedded_images_are_read_as_the_network_was_trained(root: Path, tmp_path: Path) -> None:
    """As files are; and its classes, of which only the number is known, are said to be those of the data."""
    shutil.copytree(root / "network", tmp_path / "network")
    about = {"mode": "L", "channels": 1, "size": [8, 8], "mean": [0.25], "std": [0.5], "crop_pct": 1.0}
    (tmp_path / "network" / "preprocessing.json").write_text(json.dumps({**about, "interpolation": "bicubic"}))
    lines: list[str] = []
    run = raynas.import_model("transfer", str(tmp_path / "network"), tmp_path / "run", "digits", progress=lines.append)
    assert (run.data().mean, run.data().std) == ((0.25,), (0.5,))
    told = "classes of .*network are taken for those of the data, in their order .0, 1, 2, 3, ..."
    assert sum(re.search(told, line) is not None for line in lines) == 1


def test_another_interpolation_than_in_training_is_told(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "network", tmp_path / "network")
    about = {"mode": "L", "channels": 1, "size": [8, 8], "mean": [0.25], "std": [0.5], "crop_pct": 1.0}
    (tmp_path / "network" / "preprocessing.json").write_text(json.dumps({**about, "interpolation": "bilinear"}))
    for overrides, told in (({}, 1), ({"data.interpolation": "bilinear"}, 0)):
        lines: list[str] = []
        raynas.import_model(
            "transfer", str(tmp_path / "network"), tmp_path / f"run{told}", str(root / "pets"), overrides,
            progress=lines.append,
        )  # fmt: skip
        assert sum("--set data.interpolation=bilinear" in line for line in lines) == told
        assert sum("are read as 8 x 8 grey: the model is of such images" in line for line in lines) == 1


def test_a_damaged_image_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "pets", tmp_path / "pets")
    (tmp_path / "pets" / "train" / "cat" / "damaged.png").write_bytes(b"no image")
    given = ("transfer", str(root / "network"), tmp_path / "run", str(tmp_path / "pets"))
    with pytest.raises(UserError, match="1 of 73 images cannot be read"):
        raynas.import_model(*given)
    assert not (tmp_path / "run").exists()
    lines: list[str] = []
    raynas.import_model(*given, overrides={"data.skip": "unreadable"}, progress=lines.append)
    assert sum(line.startswith("skipped: 1 image") and "damaged.png" in line for line in lines) == 1


def test_classes_of_two_orders_are_not_taken_for_a_networks_own(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "network", tmp_path / "network")
    about = {"mode": "L", "channels": 1, "size": [8, 8], "mean": [0.25], "std": [0.5], "crop_pct": 1.0}
    (tmp_path / "network" / "preprocessing.json").write_text(json.dumps({**about, "interpolation": "bicubic"}))
    write_classes(tmp_path / "numbers", {str(number): 6 for number in range(1, 11)}, size=(8, 8), mode="L")
    given = ("transfer", str(tmp_path / "network"), tmp_path / "run", str(tmp_path / "numbers"))
    with pytest.raises(
        UserError, match=r"a plain order \(1, 10, 2, 3, .* and a natural one \(1, 2, 3, 4, .*class_order"
    ):
        raynas.import_model(*given)
    run = raynas.import_model(*given, overrides={"data.class_order": "natural"})
    assert run.data().class_names[:3] == ("1", "2", "3")


def test_a_timm_model_is_transferred_with_its_own_normalisation(root: Path, tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    torch.manual_seed(0)
    model: Any = timm.create_model(name, num_classes=7)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    lines: list[str] = []
    run = raynas.import_model(
        "transfer", name, tmp_path / "run", str(root / "pets"), weights=tmp_path / "weights.safetensors", size=32,
        progress=lines.append,
    )  # fmt: skip
    assert run.space.classes == 3 and run.space.input_size == (32, 32) and run.space.channels == 3
    data = run.data()
    assert (list(data.mean), list(data.std)) == (
        list(model.pretrained_cfg["mean"]), list(model.pretrained_cfg["std"])
    )  # fmt: skip
    assert any("3 classes" in line for line in lines) and any("32 x 32" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": "pets"}, "name its directory"),
        ({"run_dir": "run"}, "give them"),
        ({"data": "pets", "run_dir": "run", "archs": ["phone"]}, "export another arch"),
        ({"data": "pets", "run_dir": "run", "overrides": {"fix": {"depth": 3}}}, "holds depth .* leave fix out"),
        ({"data": "pets", "run_dir": "run", "start": "trained", "size": 16}, "leave --from out"),
        ({"data": "pets", "run_dir": "run", "overrides": {"data.channels": 3}}, r"1 channel\(s\)"),
        ({"data": "pets", "run_dir": "run", "overrides": {"retrain.windows": "scaled"}, "size": 16}, "no windows"),
    ],
)
def test_mistakes(arguments: dict[str, Any], words: str, root: Path, tmp_path: Path) -> None:
    given = {**arguments}
    if "data" in given:
        given["data"] = str(root / given["data"])
    if "run_dir" in given:
        given["run_dir"] = tmp_path / "run"
    with pytest.raises(UserError, match=words) as raised:
        raynas.retrain(str(root / "network"), **given)
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


def test_a_space_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave the space out"):
        raynas.import_model("transfer", str(root / "network"), tmp_path / "run", "digits", space="digits/vit")


def test_published_recipes() -> None:
    """As DeiT's author gives them for CIFAR and Cars, and for iNaturalist."""
    cifar, inat = (load_preset(f"transfer/preset_{name}").retrain_recipe for name in ("cifar", "inaturalist"))
    assert (cifar.opt, cifar.effective_lr, cifar.weight_decay, cifar.epochs, cifar.batch_size) == (
        "sgd", 0.01, 1e-4, 1000, 768
    )  # fmt: skip
    assert (cifar.drop_path, cifar.augment.reprob) == (0, 0)
    assert (inat.opt, inat.effective_lr, inat.weight_decay, inat.epochs) == ("adamw", pytest.approx(7.5e-5), 0.05, 360)
    assert (inat.drop_path, inat.augment.reprob, inat.warmup_epochs) == (0.1, 0.1, 5)

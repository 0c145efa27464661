"""`raynas import`: a released checkpoint becomes a run directory that is scored and evaluated as the release would."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import raynas
from raynas.commands.main import main
from raynas.data.images import decode
from raynas.data.load import load_data, load_test
from raynas.data.pixels import normalise
from raynas.documents import write_yaml
from raynas.families.vit_res.checkpoint import read_released
from raynas.nets.weights import load_supernet
from raynas.phases import look_elsewhere
from raynas.phases.evaluate import evaluate
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.space import Arch
from raynas.space.rules import hidden_width
from tests.data.pictures import write_classes
from tests.families.released import released_forward, released_state
from tests.families.resnas_golden import golden, golden_space

CLASSES = 6
SPACE = """
family: vit
input: {size: 20, channels: 3}
classes: 6
constants: {head_dim: 8, pool: mean, relative_position: 2, qkv_bias: thirds, norm_eps: 1.0e-5}
dimensions:
  patch_size: [4]
  width: [10, 20]
  depth: [2, 3]
  blocks: {heads: [1, 3], mlp_ratio: [1.5, 2.0]}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the released layout, its space, and a folder of images."""
    root = tmp_path_factory.mktemp("import")
    (root / "space.yaml").write_text(SPACE)
    torch.save({"model": released_state(24, 3, 3, 8, 48, 4, 5, CLASSES, 2)}, root / "supernet.pth")
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 5)):
        for name in "abcdef":
            folder = root / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return root


def command(files: Path, run: str, **changes: str) -> list[str]:
    options = {"--space": f"{files}/space.yaml", "--run": f"{files}/{run}", "--data": f"{files}/images"} | changes
    return ["import", "autoformer", f"{files}/supernet.pth", *(text for option in options.items() for text in option)]


@pytest.fixture(scope="module")
def run(files: Path) -> Run:
    assert main(command(files, "run")) == 0
    return Run(files / "run")


def released_accuracy(files: Path, arch: Arch, images: torch.Tensor, labels: torch.Tensor) -> float:
    state = torch.load(files / "supernet.pth", weights_only=True)["model"]
    blocks = range(arch["depth"])
    hidden = [hidden_width(arch["width"], arch[f"blocks.{i}.mlp_ratio"]) for i in blocks]
    heads = [int(arch[f"blocks.{i}.heads"]) for i in blocks]
    logits = released_forward(state, images, int(arch["width"]), heads, hidden, 8, 2)
    return float((logits.argmax(1) == labels).float().mean())


def test_a_head_reads_no_large_dataset(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SentAway(Exception):
        """In place of what tasks of a cluster see."""

    def tasks(*_: object) -> None:
        raise SentAway

    for name, value in {
        "HERE_UP_TO": 5,
        "on_cluster": lambda: True,
        "ray_cluster": nullcontext,
        "_by_tasks": tasks,
    }.items():
        monkeypatch.setattr(look_elsewhere, name, value)
    with pytest.raises(SentAway):
        raynas.import_model(
            "autoformer", files / "supernet.pth", tmp_path / "run", files / "images", space=str(files / "space.yaml")
        )


def test_scores_and_evaluations_are_the_released_ones(run: Run, files: Path) -> None:
    data = load_data(run.read_yaml("preset.yaml")["data"])
    space = run.space
    archs = [space.smallest(), space.largest(), space.sample(np.random.default_rng(1))]
    pixels, labels = decode(data.search)
    with LocalScorer(run) as scorer:
        rows = scorer.score(archs)
    for arch, row in zip(archs, rows, strict=True):
        assert row["accuracy"] == pytest.approx(
            released_accuracy(files, arch, normalise(pixels, data.normalisation), labels)
        )
    test_pixels, test_labels = decode(load_test(data.config))
    (row,) = evaluate(run, [Network(archs[2], "inherited")])
    expected = released_accuracy(files, archs[2], normalise(test_pixels, data.normalisation), test_labels)
    assert row["accuracy"] == pytest.approx(expected) and row["images"] == 30


def test_again_it_is_the_same_and_another_is_refused(run: Run, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run.read_json("supernet.json")["fingerprint"]
    assert main(command(files, "run")) == 0
    assert run.read_json("supernet.json")["fingerprint"] == before
    other = files / "other"
    other.mkdir()
    torch.save({"model": released_state(24, 3, 3, 8, 48, 4, 5, CLASSES, 2)}, other / "supernet.pth")
    state = torch.load(other / "supernet.pth", weights_only=True)
    state["model"]["norm.bias"] += 1
    torch.save(state, other / "supernet.pth")
    arguments = command(files, "run")
    arguments[2] = f"{other}/supernet.pth"
    assert main(arguments) == 2
    assert "another" in capsys.readouterr().err
    (files / "token.yaml").write_text(SPACE.replace("pool: mean", "pool: token"))  # it computes something else
    assert main(command(files, "run", **{"--space": f"{files}/token.yaml"})) == 2
    assert "space" in capsys.readouterr().err
    assert run.space.constants.pool == "mean"


def test_other_classes_get_a_new_classifier_and_other_sizes_other_positions(
    files: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(files / "pets", {"cat": 8, "dog": 8}, size=(24, 24), mode="RGB")
    arguments = {"--data": f"{files}/pets", "--size": "24"}
    assert main(command(files, "pets run", **arguments)) == 0
    assert capsys.readouterr().out.count("gets a new classifier for the 2 classes") == 1
    other = Run(files / "pets run")
    assert (other.space.classes, other.space.input_size, other.space.cardinality()) == (
        2, (24, 24), run.space.cardinality()
    )  # fmt: skip
    before, after = (load_file(files / name / "supernet.safetensors") for name in ("run", "pets run"))
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"head.weight", "head.bias", "stem.4.position"}
    fingerprint = other.about_supernet["fingerprint"]
    assert main(command(files, "pets run", **arguments)) == 0  # the new classifier is the same again
    assert Run(files / "pets run").about_supernet["fingerprint"] == fingerprint
    capsys.readouterr()
    assert main(command(files, "digits", **{"--data": "digits"})) == 2
    said = capsys.readouterr().err.strip()
    assert "takes images of 3 channel(s)" in said and len(said.splitlines()) == 1


def test_weights_that_are_not_finite_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.load(files / "supernet.pth", weights_only=True)
    state["model"]["norm.bias"][3] = torch.inf
    torch.save(state, files / "infinite.pth")
    arguments = command(files, "infinite")
    arguments[2] = f"{files}/infinite.pth"
    assert main(arguments) == 2
    assert "infinite.pth: norm.bias holds NaN or infinite values" in capsys.readouterr().err
    assert not (files / "infinite").exists()


@pytest.mark.parametrize("alone", [False, True])
def test_a_supernet_of_vit_resnas_and_a_network_alone(alone: bool, tmp_path: Path) -> None:
    """Scores are those of the supernet that the golden tests prove; the network alone is the run's best."""
    about, _, weights = golden()
    space, rng = golden_space(about), np.random.default_rng(0)
    supernet = load_supernet(*read_released(weights, space)).eval()
    torch.save({"model": weights, "epoch": 119}, tmp_path / "supernet.pth")
    if alone:
        archs = [space.largest()]  # whose one-point space takes the whole checkpoint
        write_yaml(tmp_path / "space.yaml", {"space": space.to_dict(), "arch": archs[0].to_dict()})
    else:
        archs = [space.smallest(), space.sample(rng)]
        space.save(tmp_path / "space.yaml")
    for split, count in (("train", 10), ("val", 2)):
        for name in "abcdefghij":
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    options = {"--space": f"{tmp_path}/space.yaml", "--run": f"{tmp_path}/run", "--data": f"{tmp_path}/images"}
    assert main(["import", "vit-resnas", f"{tmp_path}/supernet.pth", *chain(*options.items())]) == 0
    run = Run(tmp_path / "run")
    data = load_data(run.read_yaml("preset.yaml")["data"])
    pixels, labels = decode(data.search)
    with LocalScorer(run) as scorer:
        rows = scorer.score([run.space.arch(arch) for arch in archs])
    for arch, row in zip(archs, rows, strict=True):
        with torch.no_grad():
            expected = (supernet(normalise(pixels, data.normalisation), arch).argmax(1) == labels).float().mean()
        assert row["accuracy"] == pytest.approx(float(expected))
    assert run.exists("best/arch.yaml") == alone

"""`raynas adapt`: a model becomes a supernet, ordered, trained and searched; and everything that is refused at once."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from timm.models import build_model_with_cfg, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import raynas
from raynas.commands.main import main
from raynas.data.images import decode
from raynas.data.load import load_data
from raynas.data.pixels import normalise
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.weights import load_supernet
from raynas.phases.adapt import fit
from raynas.phases.pipeline import PipelineResult
from raynas.presets.preset import load_preset
from raynas.reports.sampled import ORDERED, RANDOM, sampled
from raynas.runs.run import Run
from raynas.space import Space, load_space, save_arch

DEMO = Path(__file__).parents[1] / "golden/runs/demo"
HERE = raynas.Resources(workers=0, replicas=0)
pytestmark = pytest.mark.usefixtures("without_exporters")

MODEL = {
    "family": "vit",
    "input": {"size": 8, "channels": 1},
    "classes": 10,
    "constants": {"head_dim": 8, "class_token": False, "pool": "mean"},
    "dimensions": {"patch_size": [2], "width": [32], "depth": [3], "blocks": {"heads": [4], "mlp_ratio": [2.0]}},
}

SMALL: dict[str, Any] = {
    "recipe.epochs": 1,
    "adapt.images": 64,
    "adapt.untrained": 18,
    "adapt.finetune.recipe.epochs": 1,
    "search.evaluations": 16,
    "search.options.population": 8,
    "search.constraints.macs": [None, 2.5e5],
    "retrain.recipe.epochs": 1,
}


@register_model
def vit_of_this_test(pretrained: bool = False, **options: Any) -> nn.Module:
    """A model of timm's that is small enough, for which there is nothing to download."""
    shape: dict[str, Any] = {"patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "img_size": 16}
    return build_model_with_cfg(VisionTransformer, "vit_tiny_patch16_224", pretrained, **{**shape, **options})


def adapt(
    model: Any, run: Path, data: Any = "digits", changes: Mapping[str, Any] = SMALL, **more: Any
) -> PipelineResult:
    return raynas.adapt(model, run, data, changes, preset="digits/preset_adapt", resources=HERE, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapt")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A run of one network, trained for a few seconds."""
    Space.from_dict(MODEL).save(folder / "model.yaml")
    changes: dict[str, Any] = {
        "space": str(folder / "model.yaml"),
        "reference": None,
        "search.constraints": {},
        "recipe.mixup": 0,
    }
    changes |= {"recipe.epochs": 15, "recipe.warmup_epochs": 1}
    raynas.train("digits", folder / "model", overrides=changes, resources=HERE)
    return folder / "model"


@pytest.fixture(scope="module")
def outcome(folder: Path, model: Path) -> PipelineResult:
    return adapt(model, folder / "adapted")


@pytest.fixture(scope="module")
def letters(folder: Path) -> Path:
    """Colour images of three digits, in class folders."""
    images, labels = load_digits(return_X_y=True)
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        if label < 3 and index < 400:
            (folder / "letters" / "abc"[label]).mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.uint8(pixels.reshape(8, 8) * 15)).convert("RGB").resize((24, 24))
            image.save(folder / "letters" / "abc"[label] / f"{index}.png")
    return folder / "letters"


@pytest.fixture(scope="module")
def weights(folder: Path) -> Path:
    """The weights of a timm model, in the place of a download."""
    torch.manual_seed(0)
    network = timm.create_model("vit_of_this_test", num_classes=7)
    save_file(network.state_dict(), folder / "timm.safetensors")
    return folder / "timm.safetensors"


def test_the_supernet_begins_as_the_model_with_its_units_in_another_order(model: Path, outcome: PipelineResult) -> None:
    run, space = outcome.run, outcome.run.space
    given, start = Run(model).weights(), load_file(run.local_or_uri("start.safetensors"))
    assert space.cardinality() > 1000 and given.keys() == start.keys()
    assert not all(torch.equal(given[name], start[name]) for name in given)
    x = torch.randn(8, 1, 8, 8)
    with torch.no_grad():
        expected = Run(model).supernet().module(x)
        found = load_supernet(space, start).eval()(x, space.largest())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_sample_is_scored_in_both_orders_and_again_when_adapted(outcome: PipelineResult) -> None:
    found = sampled(outcome.run)
    assert found is not None and list(found.accuracy) == ["random", "ordered", "adapted"]
    assert len(found.macs) >= 16 and not any(np.isnan(values).any() for values in found.accuracy.values())
    largest = int(found.macs.argmax())
    assert found.accuracy[ORDERED][largest] == found.accuracy[RANDOM][largest] > 0.5  # the model itself
    others = np.delete(np.arange(len(found.macs)), largest)
    assert found.accuracy[ORDERED][others].mean() > found.accuracy[RANDOM][others].mean()
    (row,) = [row for row in outcome.run.network_rows() if row["how"] == "pretrained"]
    assert row["accuracy"] == found.accuracy[ORDERED][largest] and row["macs"] == found.macs[largest]


def test_the_winner_keeps_the_limit_and_is_fine_tuned_evaluated_and_exported(outcome: PipelineResult) -> None:
    assert int(raynas.cost(outcome.winner.space, [outcome.winner])["macs"][0]) <= 2.5e5
    assert [row["how"] for row in outcome.evaluations] == ["inherited", "pretrained", "finetuned"]
    assert raynas.load_arch(Path(outcome.exported) / "arch.yaml") == outcome.winner
    page = Path(outcome.report).read_text()
    assert "Before and after adapting" in page and "The model that it was made of, at 445k MACs" in page
    rows = {row["what"]: row for row in outcome.run.table("training").to_pylist()}
    assert {"supernet", f"{outcome.winner.id}-finetuned-0"} == set(rows)


def test_done_it_does_nothing_again(model: Path, outcome: PipelineResult, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ("scores", "correct", "networks", "evaluations", "phases")
    before = {table: outcome.run.table(table).num_rows for table in tables}
    monkeypatch.setattr("raynas.phases.adapt.block_importance", lambda *_: {"blocks.9": 0.0})  # not measured again
    again = adapt(model, Path(outcome.run.uri))
    assert (again.winner, again.evaluations) == (outcome.winner, outcome.evaluations)
    assert {table: outcome.run.table(table).num_rows for table in tables} == before


def test_blocks_that_do_little_may_be_left_out(letters: Path, tmp_path: Path) -> None:
    model = timm.create_model("vit_of_this_test")
    state = model.state_dict()
    for name in ("attn.proj.weight", "attn.proj.bias", "mlp.fc2.weight", "mlp.fc2.bias"):
        state[f"blocks.0.{name}"].zero_()
    save_file(state, tmp_path / "weights.safetensors")
    for blocks, droppable in (("importance", "blocks.0"), ("alternate", "blocks.1")):
        changes = {"data": str(letters), "adapt.elastic.dropped": 0.34, "adapt.blocks": blocks}
        fitted = fit("vit_of_this_test", load_preset("adapt", changes), HERE, tmp_path / "weights.safetensors")
        both = [each.name for each in fitted.space.dimensions if set(each.choices) == {False, True}]
        assert both == [f"{droppable}.kept"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search.constraints.macs": [None, 1e5]}, r"raynas search .* --name NAME"),
        ({"recipe.epochs": 5}, "train began with other settings: recipe.epochs"),
        ({"fix": {"width": 24}}, "fix holds width .* leave fix out"),
    ],
)
def test_a_refused_change_leaves_the_runs_preset_as_it_was(
    model: Path, outcome: PipelineResult, changes: dict[str, Any], message: str
) -> None:
    before = outcome.run.read_bytes("preset.yaml")
    with pytest.raises(UserError, match=message):
        adapt(model, Path(outcome.run.uri), changes={**SMALL, **changes})
    assert outcome.run.read_bytes("preset.yaml") == before


def test_a_run_of_train_is_not_adapted_into(folder: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(DEMO, tmp_path / "run"))
    before = {path: path.read_bytes() for path in Path(run.uri).rglob("*.yaml")}
    with pytest.raises(UserError, match=r"holds other work \(its train.yaml\)"):
        raynas.adapt(folder, run, "digits")
    assert before == {path: path.read_bytes() for path in Path(run.uri).rglob("*.yaml")}


def test_another_budget_needs_no_training(outcome: PipelineResult) -> None:
    before = outcome.run.table("training").num_rows
    smaller = raynas.search_run(outcome.run, {"search.constraints.macs": [None, 1.2e5]}, name="small", resources=HERE)
    assert int(raynas.cost(smaller.space, [smaller])["macs"][0]) <= 1.2e5
    assert outcome.run.table("training").num_rows == before


def test_a_model_of_timms_gets_a_new_classifier_and_is_fine_tuned_first(
    folder: Path, letters: Path, weights: Path
) -> None:
    said: list[str] = []
    changes = {**SMALL, "search.constraints.macs": None, "recipe.batch_size": 16}
    done = adapt("vit_of_this_test", folder / "colour", letters, changes, weights=weights, progress=said.append)
    text = "\n".join(said)
    assert "vit_of_this_test gets a new classifier for the 3 classes" in text and "[1/7] Fine-tuning the model" in text
    assert done.run.space.classes == 3 and done.run.data_config.mean == (0.5, 0.5, 0.5)
    assert done.run.about_start["original"].endswith("-transferred-0")
    assert [row["how"] for row in done.evaluations] == ["inherited", "transferred", "finetuned"]
    first = done.run.local_or_uri(f"networks/{done.run.space.largest().id}-pretrained/model.safetensors")
    for name in ("norm.weight", "blocks.1.attn.proj.weight"):
        assert torch.equal(load_file(first)[name.replace("attn.", "")], load_file(weights)[name])
    # A model that knows the classes by their names, in this order, is taken as it is.
    again = fit(done.exported, load_preset("adapt", {"data": str(letters)}), HERE)
    assert not again.new_head and again.model.class_names == ("a", "b", "c")


def test_windows_of_a_model_scale_with_the_images_if_the_preset_says_so(folder: Path) -> None:
    block = {"window": [2], "heads": [2], "mlp_ratio": [2.0]}
    stages = [{"width": [width], "depth": [2], "blocks": block} for width in (16, 32)]
    given: dict[str, Any] = {"constants": {"patch_size": 2, "head_dim": 8}, "dimensions": {"stages": stages}}
    space = Space.from_dict({"family": "s3", "input": {"size": 8, "channels": 1}, "classes": 10, **given})
    torch.manual_seed(0)
    network = build_supernet(space).eval()
    (folder / "swin").mkdir()
    save_arch(space.smallest(), folder / "swin" / "arch.yaml")
    save_file(network.state_dict(), folder / "swin" / "model.safetensors")
    for windows, side in (("kept", 2), ("scaled", 4)):
        preset = load_preset("digits/preset_adapt", {"data.size": 16, "retrain.windows": windows})
        found = fit(folder / "swin", preset, HERE)
        x = torch.randn(2, 1, 16, 16)
        with torch.no_grad():
            expected = network.resized(16, scaled=windows == "scaled")(x)
            supernet = load_supernet(found.space, found.model.network.state_dict()).eval()
            torch.testing.assert_close(supernet(x, found.space.largest()), expected, rtol=0, atol=1e-5)
        table = found.model.network.get_parameter("stages.0.blocks.0.bias.table")
        assert table.shape == (2, 2 * side - 1, 2 * side - 1)


def test_a_space_is_written_edited_and_given(folder: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "space.yaml"
    assert main(["adapt", str(model), "--write-space", str(file), "--preset", "digits/preset_adapt"]) == 0
    assert f"--space {file}" in capsys.readouterr().out
    assert main(["adapt", str(model), "--write-space", str(file), "--space", str(file)]) == 2
    assert "leave --space out" in capsys.readouterr().err
    space = load_space(file)
    assert space.largest().network_id == raynas.elastic_space(model).largest().network_id
    widest = space["width"].choices[-1]
    preset = load_preset("digits/preset_adapt")
    given = fit(model, preset, HERE, space=_of_width(space, widest)).space
    assert given["width"].choices == (widest,) and given.cardinality() < space.cardinality()
    with pytest.raises(UserError, match="must be the network"):
        fit(model, preset, HERE, space=_of_width(space, space["width"].choices[0]))


def _of_width(space: Space, width: Any) -> Space:
    definition = space.to_dict()
    return Space.from_dict({**definition, "dimensions": {**definition["dimensions"], "width": [width]}})


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ("vit_tiny_patch16_22", {}, "timm has no model 'vit_tiny_patch16_22'"),
        ("resnet18", {}, "whose names start with .* not resnet18"),
        ("./nowhere", {}, "there is no such folder: give a run directory, an exported folder, or a timm model"),
        ("MODEL", {"data.channels": 3}, r"takes images of 1 channel.*read with 3: give --set data.channels=1"),
        (
            "MODEL",
            {"search.constraints.macs": [None, 9]},
            r"no arch has macs in \[.., 9\]; this space spans \[\d+, \d+\]",
        ),
        ("MODEL", {"adapt.elastic.window": [0.5]}, "cannot be elastic in window"),
        ("MODEL", {"adapt.finetune.recipe.epoch": 3}, "adapt.finetune.recipe.epoch: unknown key 'epoch'"),
        ("MODEL", {"adapt.finetune.always": True, "adapt.finetune.recipe.opt": "sgdd"}, "sgdd"),
        ("WEIGHTLESS", {}, "has no model.safetensors beside it: export the network again"),
        ("NAN", {}, "holds NaN or infinite"),
        ("UNSEARCHED", {}, "has no winner: search it first"),
        (
            "ADAPTED",
            {"adapt.importance": "magnitude"},
            "adapt began with other settings: adapt.importance was 'taylor'",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line_before_anything_is_written(
    folder: Path, model: Path, outcome: PipelineResult, source: str, changes: dict[str, Any], message: str
) -> None:
    places = {"MODEL": model, "WEIGHTLESS": folder / "bare", "NAN": folder / "nan", "UNSEARCHED": folder / "unsearched"}
    place, run = places.get(source, source), folder / "refused"
    if source in ("WEIGHTLESS", "NAN"):
        assert isinstance(place, Path)
        place.mkdir(exist_ok=True)
        (place / "arch.yaml").write_bytes(outcome.run.read_bytes("best/arch.yaml"))
    if source == "NAN":
        state = load_file(Path(outcome.exported) / "model.safetensors")
        state["norm.bias"][0] = math.nan
        save_file(state, place / "model.safetensors")  # type: ignore[operator]
    if source == "ADAPTED":
        place, run = model, Path(outcome.run.uri)
    if source == "UNSEARCHED":
        Run(place, create=True).write_space(outcome.run.space)
    with pytest.raises(UserError, match=message):
        adapt(place, run, changes={**SMALL, **changes})
    assert source == "ADAPTED" or not run.exists()


def test_a_timm_file_does_not_go_with_a_folder(folder: Path, outcome: PipelineResult, weights: Path) -> None:
    with pytest.raises(UserError, match="has its own weights: leave the weights file out"):
        adapt(outcome.exported, folder / "refused", weights=weights)


def test_images_are_normalised_as_the_model_was_trained(letters: Path, weights: Path) -> None:
    preset = load_preset("digits/preset_adapt", {"data": str(letters)})
    fitted = fit("vit_of_this_test", preset, HERE, weights)
    assert fitted.data.mean == (0.5, 0.5, 0.5) and fitted.data.size == (16, 16)
    pixels, _ = decode(load_data(fitted.preset.data).train)  # type: ignore[arg-type]
    assert normalise(pixels, fitted.data.normalisation).max() <= 1
    other = fit(
        "vit_of_this_test",
        load_preset("digits/preset_adapt", {"data": {"name": str(letters), "mean": [0.1] * 3, "std": [0.2] * 3}}),
        HERE,
        weights,
    )
    assert other.data.mean == (0.1,) * 3

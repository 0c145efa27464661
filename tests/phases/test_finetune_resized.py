"""Fine-tuning at another image size: digits of 8 pixels to 12, from trained and from inherited weights."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from raynas.cluster.resources import Resources
from raynas.commands.main import main
from raynas.costs import cost
from raynas.data.config import DataConfig
from raynas.data.images import decode
from raynas.data.load import load_data, load_test
from raynas.data.pixels import normalise
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, RunDirError, UserError
from raynas.families.vit_res.space import grids
from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.phases.export import choose_network
from raynas.phases.pipeline import finetune_winner, retrain_with_reference
from raynas.phases.preflight import preflight
from raynas.phases.retrain import finetune_resized, retrain
from raynas.presets.preset import load_preset, override
from raynas.progress.reporter import Reporter, silent
from raynas.reports.collect import collect
from raynas.reports.lines import finished_lines
from raynas.reports.page import write_report
from raynas.runs.network_folder import load_network_folder
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.space import load_arch
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe
from tests.small_run import PRESET, SPACE, small_run

ARCH = SPACE.smallest()
LARGE = SPACE.with_input(size=12)
RECIPE = PRESET.recipe
STILL = RECIPE.model_copy(update={"lr": 0.0, "min_lr": 0.0, "warmup_lr": 0.0})  # keeps what it began with
Row = dict[str, Any]


def weights(run: Run, row: Row) -> dict[str, torch.Tensor]:
    return load(run.read_bytes(f"{row['path']}/model.safetensors"))


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which the smallest arch was retrained with seed 0."""
    run = small_run(tmp_path_factory.mktemp("finetune") / "run")
    run.write_arch("best", ARCH)
    retrain(run, [ARCH], RECIPE, parallel=1)
    return Path(run.uri)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    """A copy of it, to be written to."""
    return Run(shutil.copytree(made, tmp_path / "run"))


def trained(run: Run) -> Network:
    return run.trained_network(ARCH, 0, "train")


def test_it_starts_from_the_trained_network_resized(run: Run) -> None:
    start = trained(run)
    (row,) = finetune_resized(run, [start], STILL, 12, parallel=1)
    assert row["path"] == f"networks/{ARCH.id}-scratch-0-resized-12"
    assert (row["how"], row["start"], row["height"], row["width"]) == ("resized", start.path, 12, 12)
    expected = load_network_folder(run.local_or_uri(start.path or "")).resized(12)
    assert equal(weights(run, row), expected.state_dict())
    assert row["macs"] == cost(LARGE, [ARCH])["macs"][0] > cost(SPACE, [ARCH])["macs"][0]
    assert row["params"] == sum(tensor.numel() for tensor in weights(run, row).values())
    # Its accuracy on the search split is of images of 12 pixels, normalised as those of 8 were.
    data = load_data("digits")
    pixels, labels = decode(data.resized((12, 12)).search)
    with torch.inference_mode():
        right = expected.eval()(normalise(pixels, data.normalisation)).argmax(1) == labels
    assert row["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-9)
    (again,) = finetune_resized(run, [start], STILL, 12, parallel=1)
    assert again == row and run.store.read("networks").num_rows == 2


def test_a_network_of_weights_that_were_trained_anew_is_not_taken(run: Run) -> None:
    (old,) = finetune_resized(run, [trained(run)], STILL, 12, parallel=1)
    shutil.rmtree(Path(run.uri, trained(run).path or ""))
    retrain(run, [ARCH], RECIPE.model_copy(update={"lr": RECIPE.lr / 2}), parallel=1)
    with pytest.raises(RunDirError, match=f"{ARCH.id}-scratch-0, which was trained anew since: delete that folder"):
        finetune_resized(run, [trained(run)], STILL, 12, parallel=1)
    shutil.rmtree(Path(run.uri, old["path"]))
    (new,) = finetune_resized(run, [trained(run)], STILL, 12, parallel=1)
    expected = load_network_folder(run.local_or_uri(trained(run).path or "")).resized(12)
    assert equal(weights(run, new), expected.state_dict()) and new["weights"] != old["weights"]


def test_it_learns(run: Run) -> None:
    recipe = RECIPE.model_copy(update={"epochs": 6})
    (start,) = retrain(run, [ARCH], recipe, seeds=[1], parallel=1)
    (tuned,) = finetune_resized(run, [run.trained_network(ARCH, 1, "train")], recipe, 12, parallel=1)
    assert tuned["accuracy"] > start["accuracy"] > 0.2 and tuned["seed"] == 1


def test_inherited_weights_at_another_size(run: Run) -> None:
    (row,) = retrain(run, [ARCH], STILL, "finetuned", parallel=1, size=(12, 16))
    assert row["path"] == f"networks/{ARCH.id}-finetuned-0-12x16"
    assert (row["how"], row["start"], row["height"], row["width"]) == ("finetuned", "supernet", 12, 16)
    assert equal(weights(run, row), run.supernet().subnet(ARCH).resized((12, 16)).state_dict())
    (own,) = retrain(run, [ARCH], STILL, "finetuned", parallel=1, size=8)
    assert own["path"] == f"networks/{ARCH.id}-finetuned-0" and own["height"] == 8


@pytest.mark.slow
def test_interrupted_in_the_middle_it_ends_the_same(run: Run) -> None:
    recipe, start = RECIPE.model_copy(update={"epochs": 3}), trained(run)

    def stop(line: str) -> None:
        if "epoch 2/3" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune_resized(run, [start], recipe, 12, parallel=1, progress=Reporter(stop, every_s=0.0))
    assert run.store.read("networks").num_rows == 1
    assert list(Path(run.uri, "checkpoints", f"{start.name}-resized-12").rglob("*.pt"))
    lines: list[str] = []
    (resumed,) = finetune_resized(run, [start], recipe, 12, parallel=1, progress=lines.append)
    assert not any("epoch 1 done" in line for line in lines)
    data = load_data("digits").resized((12, 12))
    init = load_network_folder(run.local_or_uri(start.path or "")).resized(12).state_dict()
    whole = train_loop(LARGE.fix(ARCH), data, Plan(), recipe, init=init)
    assert equal(weights(run, resumed), whole.weights)


def test_what_cannot_be_resized(run: Run) -> None:
    with pytest.raises(UserError, match="8 x 8 pixels already"):
        finetune_resized(run, [trained(run)], RECIPE, 8, parallel=1)
    with pytest.raises(UserError, match="larger than the 1 x 1 image"):
        finetune_resized(run, [trained(run)], RECIPE, 1, parallel=1)
    with pytest.raises(UserError, match="no network that was trained"):
        finetune_resized(run, [Network(ARCH, "inherited")], RECIPE, 12, parallel=1)
    with pytest.raises(UserError, match="at 16 x 16 pixels: raynas retrain --from trained --size 16"):
        choose_network(run.networks(), ARCH, (16, 16))


@pytest.mark.slow
def test_every_command_takes_the_larger_network(run: Run, tmp_path: Path) -> None:
    quick = ["--set", "retrain.finetune.recipe.lr=1e-4", "--parallel", "1"]
    assert main(["retrain", run.uri, "--from", "trained", "--size", "12", *quick]) == 0
    assert main(["evaluate", run.uri]) == 0
    rows = {(row["how"], row["height"]): row for row in run.store.read("evaluations").to_pylist()}
    assert rows.keys() == {("inherited", 8), ("scratch", 8), ("resized", 12)}
    larger = rows["resized", 12]
    network = load_network_folder(run.local_or_uri(larger["path"]))
    data = load_data("digits")
    pixels, labels = decode(load_test(DataConfig(name="digits", size=12)))
    with torch.inference_mode():
        right = network(normalise(pixels, data.normalisation)).argmax(1) == labels
    assert larger["accuracy"] == pytest.approx(right.double().mean().item(), abs=1 / len(labels))
    assert evaluate(run, networks_to_evaluate(run))[2]["reading"] == larger["reading"]

    assert main(["export", run.uri, "--size", "12", "--to", str(tmp_path / "export"), "--no-onnx"]) == 0
    about = json.loads((tmp_path / "export" / "preprocessing.json").read_text())
    assert (about["size"], about["mean"]) == ([12, 12], list(data.mean))
    import timm

    import raynas.timm  # noqa: F401  it registers the model

    exported = timm.create_model("raynas_vit", pretrained=True, arch=str(tmp_path / "export"))
    program = torch.export.load(tmp_path / "export" / "model.pt2").module()
    images = normalise(pixels[:5], data.normalisation)
    with torch.inference_mode():
        torch.testing.assert_close(exported(images), network(images))
        torch.testing.assert_close(program(images), network(images), rtol=1e-4, atol=1e-5)
    assert choose_network(run.networks(), ARCH).how == "scratch"

    assert any("then fine-tuned, 12 x 12 pixels" in line for line in finished_lines(run))
    page = Path(write_report(run, collect(run))).read_text()
    assert "winner, retrained, then fine-tuned, 12 x 12 pixels" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["retrain", "--from", "trained"], "give --size"),
        (["retrain", "--from", "trained", "--size", "8"], "8 x 8 pixels already"),
        (["retrain", "--from", "trained", "--size", "12", "--on", "train+search"], "train it first"),
        (["retrain", "--from", "trained", "--size", "1"], "larger than the 1 x 1 image"),
        (["export", "--size", "12"], "no network of arch"),
        (["export", "--inherited", "--size", "12"], "leave out --inherited, or --size"),
    ],
)
def test_mistakes(run: Run, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert main([options[0], run.uri, *options[1:]]) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1


def test_a_preset_says_how(run: Run) -> None:
    assert PRESET.retrain.finetune is None and PRESET.finetune_recipe_at(math.inf) == PRESET.retrain_recipe
    finetune = {"size": 12, "recipe": {"lr": 1e-4, "augment": {"shift": 1}}}
    preset = override(PRESET, {"retrain.finetune": finetune, "retrain.recipe.weight_decay": 0.2})
    recipe = preset.finetune_recipe_at(math.inf)
    assert isinstance(recipe, Recipe) and (recipe.lr, recipe.weight_decay, recipe.augment.shift) == (1e-4, 0.2, 1)
    assert preset.retrain_recipe.lr == RECIPE.lr
    retrained = retrain_with_reference(run, PRESET, ARCH, None, silent)
    assert [network.how for network in retrained] == ["scratch"]
    finetune_winner(run, preset, retrained, silent)
    assert choose_network(run.networks(), ARCH, (12, 12)).how == "resized"


def test_the_manuals_preset_is_vit_resnas_procedure() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "after_search.md").read_text()
    section = manual.split("## Fine-tune on images of another size")[1].split("```yaml\n")[1].split("```")[0]
    preset = override(load_preset("vit_resnas"), parse_yaml(section, "the manual").data)
    recipe, finetune = preset.finetune_recipe_at(math.inf), preset.retrain.finetune
    assert finetune is not None and finetune.size == (280, 280)
    assert recipe.effective_lr == recipe.min_lr == pytest.approx(5e-6) and recipe.warmup_lr == pytest.approx(1e-6)
    assert (recipe.epochs, recipe.warmup_epochs, recipe.weight_decay, recipe.drop_path) == (30, 5, 1e-8, 0.75)
    assert (recipe.ema, recipe.token_labels) == (0.99996, preset.recipe.token_labels)
    assert preset.retrain_recipe.epochs == 300 and preset.retrain_recipe.drop_path == 0.3
    space = load_arch("vit_resnas/published/medium").space.with_input(size=finetune.size)
    assert grids(space)[-1] == (5, 5)


@pytest.mark.parametrize(
    ("finetune", "words"),
    [
        ({"recipe": {"lr": 1}}, "retrain.finetune.size"),
        ({"size": 12, "recipe": {"lrr": 1}}, "lrr"),
        ({"size": [12, 0]}, "retrain.finetune.size"),
    ],
)
def test_wrong_presets(finetune: Row, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        override(PRESET, {"retrain.finetune": finetune})


def test_a_size_that_does_not_fit_is_told_before_the_supernet_is_trained() -> None:
    for size, words in ((1, "larger than the 1 x 1 image"), (8, "size of the images already")):
        with pytest.raises(UserError, match=words):
            preflight(override(PRESET, {"retrain.finetune.size": size}), Resources())
    with pytest.raises(UserError, match="use a batch_size that is a multiple of 2"):
        odd = {"size": 12, "recipe": {"mixup": 0.2, "batch_size": 33}}
        preflight(override(PRESET, {"retrain.finetune": odd}), Resources())

"""Scores of subnets whose batch norms are calibrated first: the same wherever they are measured; told in the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from raynas.data.augment import AugmentConfig
from raynas.data.calibration import Calibration
from raynas.data.images import decode
from raynas.data.load import load_data
from raynas.data.loader import TrainLoader
from raynas.data.pixels import normalise
from raynas.errors import UserError
from raynas.nets.weights import load_supernet, parse_weights
from raynas.phases.training_job import TrainingJob, _weights_to_start_from
from raynas.presets.preset import Preset, override
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.space import Arch, Space, load_space
from raynas.training.context import Context
from raynas.training.health import ProbeImages, choose_probes, score_probes
from raynas.training.plan import Plan
from raynas.training.preflight import check_calibration
from tests.scoring.scoring_parts import make_run
from tests.small_run import PRESET
from tests.training.training_parts import same

VOLATILE = {"seconds", "calibration_seconds", "time", "replica"}
SHIFT = {"shift": 1}  # so that the seed of the draw shows in the images, too


@pytest.fixture(scope="module")
def hybrid() -> Space:
    return load_space("digits/nasvit")


@pytest.fixture(scope="module")
def some(hybrid: Space) -> list[Arch]:
    return [hybrid.smallest(), *hybrid.decode(hybrid.sample_codes(np.random.default_rng(0), 3))]


def make_hybrid_run(path: Path, space: Space, **calibration: int) -> Run:
    run = make_run(path, space)
    about = {"images": 96, "batch_size": 32, "seed": 5, **calibration}
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}, "recipe": {"augment": SHIFT}, "calibration": about})
    return run


def by_hand(run: Run, space: Space, arch: Arch) -> float:
    """An extracted subnet in torch's own way: averages reset, three batches in training mode, then the search split."""
    data = load_data("digits")
    weights = parse_weights(run.read_bytes("supernet.safetensors"), "weights")
    subnet = load_supernet(space, weights).extract(arch).eval()
    norms = [module for module in subnet.modules() if hasattr(module, "running_mean")]
    loader = TrainLoader(data, AugmentConfig(**SHIFT), batch_size=32, seed=5)
    with torch.no_grad():
        for seen, (images, _) in zip(range(3), loader.epoch(0), strict=False):
            for norm in norms:
                norm.train().momentum = 1 / (seen + 1)  # type: ignore[assignment]
            subnet(images)
        pixels, labels = decode(data.search)
        logits = subnet.eval()(normalise(pixels, data.normalisation))
    return float((logits.argmax(1) == labels).double().mean())


def stable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


@pytest.mark.usefixtures("ray_session")
def test_every_replica_and_this_process_give_the_same_rows(tmp_path: Path, hybrid: Space, some: list[Arch]) -> None:
    with LocalScorer(make_hybrid_run(tmp_path / "local", hybrid)) as local:
        expected = local.score(some)
    run = make_hybrid_run(tmp_path / "run", hybrid)
    with ScorePool(run, replicas=2) as pool:
        rows = pool.score(some)
    assert stable(rows) == stable(expected)
    for arch, row in zip(some, rows, strict=True):
        told = [row[f"calibration_{name}"] for name in ("images", "batch_size", "seed")]
        assert told == [96, 32, 5] and row["calibration_seconds"] > 0
        assert row["accuracy"] == pytest.approx(by_hand(run, hybrid, arch), abs=1e-9)


def test_inherited_networks_carry_their_statistics(
    tmp_path: Path, hybrid: Space, some: list[Arch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_hybrid_run(tmp_path, hybrid)
    with LocalScorer(run) as scorer:
        rows = scorer.score(some[1:3])
    data = load_data("digits")
    pixels, labels = decode(data.search)
    draw = Mock(side_effect=run.calibration)
    monkeypatch.setattr(run, "calibration", draw)
    parent = run.supernet()
    for arch, row in zip(some[1:3], rows, strict=True):
        with torch.no_grad():
            logits = parent.subnet(arch)(normalise(pixels, data.normalisation))
        assert float((logits.argmax(1) == labels).double().mean()) == pytest.approx(row["accuracy"], abs=1e-9)
    assert draw.call_count == 1  # the same images for all


def test_scores_of_other_images_are_kept_apart(tmp_path: Path, hybrid: Space, some: list[Arch]) -> None:
    run = make_hybrid_run(tmp_path, hybrid)
    with LocalScorer(run) as scorer:
        first = scorer.score(some)
    make_hybrid_run(tmp_path, hybrid, seed=6)
    with LocalScorer(run) as scorer:
        second = scorer.score(some[:2])
    assert [row["loss"] for row in second] != [row["loss"] for row in first[:2]]
    assert {row["arch"]: row["loss"] for row in run.scores().to_pylist()} == {r["arch"]: r["loss"] for r in second}
    make_hybrid_run(tmp_path, hybrid)
    with LocalScorer(run) as scorer:
        assert scorer.score(some) == first
    assert run.store.read("correct").num_rows == 6


def test_other_families_have_nothing_to_calibrate(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    with LocalScorer(make_run(tmp_path, space), images=40) as scorer:
        (row,) = scorer.score(archs[:1])
    assert {value for name, value in row.items() if name.startswith("calibration")} == {None}


def test_probes_are_calibrated_and_training_goes_on_as_if_they_were_not_there(tmp_path: Path, hybrid: Space) -> None:
    run, data = make_hybrid_run(tmp_path, hybrid), load_data("digits")
    model = load_supernet(hybrid, parse_weights(run.read_bytes("supernet.safetensors"), "weights")).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    context = Context()
    images = ProbeImages(data, 200, 0, context)
    probes = dict(list(choose_probes(hybrid, 0).items())[:2])
    autocast = torch.no_grad
    rows = score_probes(model, probes, images, context, autocast)
    assert model.training and all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for module in model.modules():
        if hasattr(module, "running_mean"):  # the mixture over archs, which no subnet goes by
            torch.Tensor.add_(module.running_mean, 100.0)  # type: ignore[arg-type]
    assert score_probes(model, probes, images, context, autocast) == rows


def test_more_images_a_batch_than_there_are_is_told_before_training(hybrid: Space) -> None:
    data = load_data("digits")
    preset = Preset.model_validate(
        {
            "space": "digits/nasvit",
            "recipe": {"epochs": 9, "batch_size": 64, "lr": 0.1},
            "calibration": {"batch_size": 2048},
        }
    )
    with pytest.raises(UserError, match=r"calibration\.batch_size 2048 is more than the \d+ training images"):
        check_calibration(hybrid, data, preset.calibration)
    check_calibration(load_space("digits/vit"), data, preset.calibration)
    with pytest.raises(UserError, match="100 images are no whole batches of 64"):
        override(preset, {"calibration.images": 100, "calibration.batch_size": 64})


def test_of_a_fine_tuning_s_workers_the_first_one_alone_calibrates(
    tmp_path: Path, hybrid: Space, some: list[Arch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, network = make_hybrid_run(tmp_path, hybrid), Network(some[1], "inherited")
    job = TrainingJob("n", hybrid.fix(some[1]), run.data_config, Plan(), PRESET.recipe, start=network)
    first, second = Context(), Context()
    second.rank = 1
    assert same(_weights_to_start_from(job, run, first) or {}, run.model(network).state_dict())
    monkeypatch.setattr(Calibration, "batches", None)
    expected = run.model(network, calibrated=False).state_dict()
    assert same(_weights_to_start_from(job, run, second) or {}, expected)

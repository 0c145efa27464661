from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from raynas.data.augment import AugmentConfig
from raynas.data.calibration import Calibration, calibration_batches
from raynas.data.config import CalibrationConfig, DataConfig
from raynas.data.images import ImageSet, decode
from raynas.data.load import load_data
from raynas.data.loader import TrainLoader
from raynas.errors import UserError
from raynas.scoring import shared_images
from raynas.scoring.shared_images import share, share_calibration
from tests.data.pictures import write_classes


@pytest.fixture
def images(tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> ImageSet:
    """A set of image files that counts as too large to be decoded in this process."""
    write_classes(tmp_path / "pictures", {"cat": 10, "dog": 10})
    data = load_data(DataConfig(name=str(tmp_path / "pictures"), size=(8, 8), channels=3))
    monkeypatch.setattr(shared_images, "HERE_UP_TO", 0)
    monkeypatch.setattr(shared_images, "PART_BYTES", 5 * 8 * 8 * 3)
    return data.train


def test_a_large_set_is_decoded_in_parts_of_whole_batches(images: ImageSet) -> None:
    parts = [(ray.get(part)["pixels"], ray.get(sums)) for part, sums in share(images, 2, at_once=2, limit_s=60) or ()]
    assert len(parts) > 1 and {len(pixels) for pixels, _ in parts[:-1]} == {4}
    assert torch.equal(torch.cat([torch.tensor(pixels) for pixels, _ in parts]), decode(images)[0])
    assert all(shared_images.checksums({"pixels": pixels}) == sums for pixels, sums in parts)


def test_an_image_that_a_node_cannot_read_is_named(images: ImageSet) -> None:
    broken = Path(images.where(3))
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(UserError, match=broken.name) as caught:
        share(images, 2, at_once=2, limit_s=60)
    assert "\n" not in str(caught.value)


def test_a_set_larger_than_a_node_s_object_store_is_not_shared(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share(images.at((16384, 16384), 3), 2, at_once=2, limit_s=60) is None
    store = int(ray.cluster_resources()["object_store_memory"])
    assert share(images, 2, at_once=2, limit_s=60, beside=store) is None
    room = iter([True, True, False])  # a smaller node comes
    monkeypatch.setattr(shared_images, "_fits_stores", lambda *_: next(room))
    assert share(images, 2, at_once=1, limit_s=60) is None


@pytest.mark.usefixtures("ray_session")
def test_a_task_of_a_cluster_draws_the_same_calibration_images(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CalibrationConfig(images=96, batch_size=32, seed=5)
    augment = AugmentConfig(shift=1)
    data = load_data("digits")
    loader = TrainLoader(data, augment, batch_size=32, seed=5, workers=0)
    expected = torch.stack([images for images, _ in islice(loader.epoch(0), 3)])
    calibration = Calibration(config, partial(calibration_batches, data, augment, config))
    for local in (True, False):
        monkeypatch.setattr(shared_images, "is_local", lambda local=local: local)
        pixels, known = share_calibration(replace(calibration), limit_s=60)
        drawn, sums = ray.get(pixels), ray.get(known)
        assert torch.equal(torch.tensor(drawn["calibration"]), expected)
        assert shared_images.checksums(drawn) == sums


def test_the_head_of_a_cluster_draws_none(monkeypatch: pytest.MonkeyPatch, ray_session: None) -> None:
    monkeypatch.setattr(shared_images, "is_local", lambda: False)
    monkeypatch.setattr(Calibration, "batches", None)
    config = CalibrationConfig(images=4, batch_size=2)
    drawn, _ = share_calibration(Calibration(config, partial(torch.zeros, 2, 2, 1, 8, 8)), limit_s=60)
    assert ray.get(drawn)["calibration"].shape == (2, 2, 1, 8, 8)


def test_what_decoding_waits_for_is_told(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_images, "TELL_S", 0.2)
    monkeypatch.setattr(shared_images, "describe_shortage", lambda needed: f"{needed['CPU']} CPU")

    class Holder:
        """It holds resources until it is killed."""

    holder: Any = ray.remote(Holder).options(num_cpus=4).remote()
    ray.get(holder.__ray_ready__.remote())
    with pytest.raises(UserError, match="no search images were decoded in 1 s: no node has a free CPU"):
        share(images, 2, at_once=2, limit_s=1.0)
    ray.kill(holder)
    assert "decoding search images: 0 of 12; waits for 1 CPU" in caplog.text

"""The same images at another size: the same split and crop, decoded anew, normalised as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from raynas.data.config import DataConfig
from raynas.data.images import decode
from raynas.data.load import load_data, load_test


def test_embedded_images_are_resized() -> None:
    data = load_data("digits")
    larger = data.resized((12, 16))
    assert larger.size == (12, 16) and larger.classes == data.classes
    pixels, labels = decode(data.search)
    resized, same = decode(larger.search)
    assert torch.equal(labels, same) and resized.shape == (len(labels), 1, 12, 16)
    square, _ = decode(data.resized((12, 12)).search)
    expected = functional.interpolate(pixels.float(), size=(12, 12), mode="bicubic", antialias=True)
    assert torch.equal(square, expected.round().clamp(0, 255).to(torch.uint8))
    assert decode(load_test(data.config_at((12, 12))))[0].shape == (len(load_test("digits")), 1, 12, 12)


def test_normalisation_stays_that_of_the_first_size() -> None:
    data = load_data(DataConfig(name="digits", size=48))
    for size in ((12, 12), (72, 72)):  # images of 72 pixels would count as large, and get ImageNet's
        larger, fresh = data.resized(size), load_data(DataConfig(name="digits", size=size))
        assert (larger.mean, larger.std) == (data.mean, data.std) == (larger.resized((20, 20)).mean, data.std)
        assert fresh.mean != data.mean
        assert larger.fingerprint not in (data.fingerprint, fresh.fingerprint)
    assert data.resized((48, 48)) is data


def test_files_are_decoded_anew_with_the_same_crop(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for index in range(12):
            pixels = generator.integers(0, 256, (120, 120, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{index}.png")
    data = load_data(DataConfig(name=str(tmp_path), size=60))
    larger = data.resized((120, 120))
    assert larger.train.geometry.crop_pct == data.train.geometry.crop_pct == 1.0  # 0.875 is for fresh data of that size
    assert np.array_equal(larger.train.indices, data.train.indices)
    (first, *_), _ = decode(larger.train)
    original = np.asarray(larger.train[0][0])
    assert np.array_equal(first.permute(1, 2, 0).numpy(), original)

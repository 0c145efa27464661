"""Extracted networks leave raynas: torch.export and ONNX, with a batch of any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.families.nets_spaces import make_images, make_space, make_supernet


@pytest.mark.parametrize(
    # ONNX, below, begins with the same export. An extracted network knows nothing of the pattern that it was cut by.
    "name",
    ["autoformer", "twins", *(pytest.param(name, marks=pytest.mark.slow) for name in ("patch sizes", "vit_res"))],
)
def test_torch_export(name: str, tmp_path: Path) -> None:
    space = make_space(name)
    subnet = make_supernet(space).extract(space.largest())
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(subnet, (make_images(space, 2),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for count in (1, 5):
        images = make_images(space, count)
        torch.testing.assert_close(loaded(images), subnet(images), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hybrid bilateral", "s3 maskable"])  # of vit: tests/phases/test_export.py
def test_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    space = make_space(name)
    subnet = make_supernet(space).extract(space.largest())
    batch = torch.export.Dim("batch", min=1)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        subnet,
        (make_images(space, 2),),
        path,
        dynamo=True,
        dynamic_shapes=({0: batch},),
        input_names=["images"],
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path)
    for count in (1, 5):
        images = make_images(space, count)
        (logits,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), subnet(images).detach(), rtol=0, atol=1e-4)

"""Counts of detectors and segmenters: those that papers print, and what is really executed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from raynas.downstream import counts, fcos, mask_rcnn, retinanet, segformer, semantic_fpn, upernet
from tests.costs.flop_counter import count_macs
from tests.families.nets_spaces import make_space, make_supernet, some_archs

SCRIPT = Path(__file__).parents[2] / "docs/evidence/downstream_counts.py"


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("downstream_counts", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TABLES = tables()
QUICK = {"semantic_fpn, timm:resnet50", "upernet, twins_svt_small", "retinanet, twins_svt_small", "cascade, swin_tiny"}
FAR = {"semantic_fpn, timm:resnet50": 0.017, "mask_rcnn, twins_svt_small": 0.006, "upernet, twins_svt_large": 0.007}
"""Rows that are further off than others, as docs/downstream.md says."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.slow])
        for row in TABLES.printed_rows()
    ],
)
def test_what_papers_print(row: Any) -> None:
    found = TABLES.ours(row)
    same = TABLES.as_printed(row, found)
    assert same["macs"] / 1e9 == pytest.approx(row.macs, rel=FAR.get(row.name, 0.01))
    assert same["params"] / 1e6 == pytest.approx(row.params, rel=FAR.get(row.name, 0.0055))


def network() -> Any:
    space = make_space("twins")
    return make_supernet(space).extract(some_archs(space, 3)[-1])


@pytest.mark.parametrize("make", [semantic_fpn, upernet, segformer])
def test_segmenters_execute_what_is_counted(make: Any) -> None:
    model = make(network(), 5, width=16).eval()
    channels = model.pyramid.body.network.space.channels
    images = torch.randn(1, channels, 48, 64)
    found = counts(model, (48, 64), channels)
    assert found["macs"] == count_macs(model, images)
    assert 0 < found["products"] < found["macs"]
    assert found["params"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("make", [retinanet, fcos, mask_rcnn])
def test_detectors_execute_what_is_counted(make: Any) -> None:
    """In training mode everything has a fixed number of boxes, but for Mask R-CNN's heads."""
    model = make(network(), 5, width=32, min_size=48, max_size=64, image_mean=[0.5], image_std=[0.5]).eval()
    channels = model.backbone.pyramid.body.network.space.channels
    found = counts(model, (48, 64), channels, proposals=0, masks=0)
    model.transform.image_mean = model.transform.image_std = [0.5] * channels
    images = [torch.rand(channels, 48, 64)]
    if make is mask_rcnn:
        model.roi_heads.forward = lambda *_: ([{}], {})  # its boxes are as many as are found
        model.transform.postprocess = lambda result, *_: result
    assert found["macs"] == count_macs(model, images)  # type: ignore[arg-type]

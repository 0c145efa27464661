"""Print the tables of docs/downstream.md that count: detectors and segmenters of the papers, printed and ours.

python docs/evidence/downstream_counts.py      about two minutes on one core; nothing is computed but sizes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

import raynas
from raynas.downstream import counts, mask_rcnn, retinanet, semantic_fpn, upernet

TWINS = {each: f"vitas/published/twins_svt_{each}" for each in ("small", "base", "large")}
S3 = {each: f"s3/published/{each}" for each in ("swin_tiny", "tiny", "swin_small", "small", "swin_base", "base")}
ADE, COCO = 150, 80
"""Classes of the papers' datasets."""


@dataclass(frozen=True)
class Printed:
    """A row of a paper.

    Attributes:
        network: a shipped arch, or a model of timm that gives its levels.
        macs, params: as printed, in G and in M.
        counted: what the paper's count has that ours has not, by name; see `as_printed`.
    """

    head: str
    network: str
    size: tuple[int, int]
    macs: float
    params: float
    counted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.head}, {self.network.removeprefix('vitas/published/').removeprefix('s3/published/')}"


def printed_rows() -> list[Printed]:
    """Tables 7, 8, 14 and 15 of ViTAS (second version), which quotes Twins, and Tables 2 and 3 of S3."""
    rows = [Printed("semantic_fpn", "timm:resnet50", (512, 512), 45, 28.5)]
    for name, macs, params in (("swin_tiny", 46, 31.9), ("swin_small", 70, 53.2)):
        rows.append(Printed("semantic_fpn", S3[name], (512, 512), macs, params, ("padding", "no products")))
    for name, macs, params in (("swin_tiny", 237, 59.9), ("swin_small", 261, 81.3)):
        rows.append(Printed("upernet", S3[name], (512, 512), macs, params, ("padding", "auxiliary")))
    twins: dict[str, dict[str, tuple[float, float]]] = {
        "semantic_fpn": {"small": (37, 28.3), "base": (67, 60.4), "large": (102, 103.7)},
        "upernet": {"small": (228, 54.4), "base": (261, 88.5), "large": (297, 133)},
        "retinanet": {"small": (104, 34.3), "base": (163, 67.0), "large": (232, 110.9)},
        "mask_rcnn": {"small": (164, 44.0), "base": (224, 76.3), "large": (292, 119.7)},
    }
    counted = {
        "semantic_fpn": ("classifier", "no products"),
        "upernet": ("classifier", "auxiliary"),
        "retinanet": ("classifier", "floored"),
        "mask_rcnn": ("classifier", "floored", "deconvolution"),
    }
    for head, row in twins.items():
        size = (512, 512) if head in ("semantic_fpn", "upernet") else (600, 800)
        rows += [Printed(head, TWINS[name], size, *figures, counted[head]) for name, figures in row.items()]
    for name, macs, params in (
        ("swin_tiny", 945, 60),
        ("tiny", 954, 60),
        ("swin_small", 1038, 81),
        ("small", 1071, 81),
    ):
        rows.append(Printed("upernet", S3[name], (512, 2048), macs, params, ("padding", "auxiliary")))
    cascades = {
        "swin_tiny": (745, 86),
        "tiny": (748, 86),
        "swin_small": (838, 107),
        "small": (855, 107),
        "swin_base": (982, 145),
        "base": (947, 128),
    }
    return rows + [
        Printed("cascade", S3[name], (800, 1280), *figures, ("padding",)) for name, figures in cascades.items()
    ]


class Cascade(nn.Module):
    """The parts of Cascade Mask R-CNN that torchvision has: Mask R-CNN, and three box and mask heads in place of one.

    torchvision has no cascade; this is enough to count it.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        self.first = mask_rcnn(network, COCO + 1)
        heads = self.first.roi_heads
        heads.box_head = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], nn.BatchNorm2d)
        heads.box_predictor = FastRCNNPredictor(1024, COCO + 1)
        self.others = nn.ModuleList()
        for _ in range(2):
            box = FastRCNNConvFCHead((256, 7, 7), [256] * 4, [1024], nn.BatchNorm2d)
            masks = MaskRCNNHeads(256, (256,) * 4, 1), MaskRCNNPredictor(256, 256, COCO + 1)
            self.others += [box, FastRCNNPredictor(1024, COCO + 1), *masks]


MAKE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "semantic_fpn": lambda network: semantic_fpn(network, ADE),
    "upernet": lambda network: upernet(network, ADE),
    "retinanet": lambda network: retinanet(network, COCO),  # sigmoids: no background
    "mask_rcnn": lambda network: mask_rcnn(network, COCO + 1),
    "cascade": Cascade,
}


def built(network: str) -> Any:
    """A network without memory."""
    from raynas.nets import build_supernet

    with torch.device("meta"):
        if network.startswith("timm:"):
            return timm.create_model(network.removeprefix("timm:"), features_only=True, out_indices=(-4, -3, -2, -1))
        return build_supernet(raynas.load_arch(network).space)


def ours(row: Printed) -> dict[str, int]:
    """Parameters, multiply-accumulates and products of attention of our model."""
    network = built(row.network)
    with torch.device("meta"):
        model = MAKE[row.head](network)
    if not isinstance(model, Cascade):
        return counts(model, row.size)
    found, without = counts(model.first, row.size), counts(model.first, row.size, proposals=0, masks=0)
    found["macs"] += 2 * (found["macs"] - without["macs"])
    found["params"] = sum(parameter.numel() for parameter in model.parameters())
    return found


def as_printed(row: Printed, found: dict[str, int]) -> dict[str, float]:
    """Our figures with what the papers' counts have besides.

    - classifier: the backbone keeps its classifier of ImageNet, which nothing reads (parameters).
    - auxiliary: a second head for training alone: 3 x 3 convolution to 256 channels, norm, classes (parameters).
    - no products: the products of attention are not counted.
    - padding: Swin's windows are padded before queries, keys and values are projected.
    - floored: partial patches at the border are left out, as in Twins's release.
    - deconvolution: the transposed convolution of masks is counted at each of its outputs, not inputs.
    """
    macs, params = float(found["macs"]), float(found["params"])
    space = None if row.network.startswith("timm:") else raynas.load_arch(row.network).space
    if "classifier" in row.counted:
        assert space is not None
        params += 1000 * (1 + space.smallest()["stages.3.width"])
    if "auxiliary" in row.counted:
        assert space is not None
        params += 9 * 256 * space.smallest()["stages.2.width"] + 2 * 256 + ADE * (1 + 256)
    if "no products" in row.counted:
        macs -= found["products"]
    if "padding" in row.counted:
        macs += padding(space, row.size)
    if "floored" in row.counted:
        name = row.network.rpartition("/")[2]
        macs = ours(Printed(row.head, f"timm:{name}", row.size, row.macs, row.params))["macs"]
    if "deconvolution" in row.counted:
        macs += 3 * 100 * 14**2 * 256**2 * 4
    return {"macs": macs, "params": params}


def padding(space: Any, size: tuple[int, int]) -> int:
    """Multiply-accumulates of projecting the padding of Swin's windows."""
    from raynas.families.s3.space import fitted, grids

    space = space.with_input(size=size)
    arch, total = space.smallest(), 0
    for stage, grid in enumerate(grids(space)):
        for place in range(arch[f"stages.{stage}.depth"]):
            block = f"stages.{stage}.blocks.{place}"
            window = [int(fitted(arch[f"{block}.window"], side)) for side in grid]
            padded = [-(-side // length) * length for side, length in zip(grid, window, strict=True)]
            extra = padded[0] * padded[1] - grid[0] * grid[1]
            total += extra * 4 * arch[f"stages.{stage}.width"] * 32 * arch[f"{block}.heads"]
    return total


def main() -> None:
    print("| | image | printed | counted | as the paper counts | difference |\n|---|---|---|---|---|---|")
    for row in printed_rows():
        found = ours(row)
        same = as_printed(row, found)
        cells = [
            row.name,
            f"{row.size[0]} x {row.size[1]}",
            f"{row.macs:g} G, {row.params:g} M",
            f"{found['macs'] / 1e9:.1f} G, {found['params'] / 1e6:.1f} M",
            f"{same['macs'] / 1e9:.1f} G, {same['params'] / 1e6:.1f} M ({', '.join(row.counted) or 'the same'})",
            f"{same['macs'] / 1e9 / row.macs - 1:+.1%}, {same['params'] / 1e6 / row.params - 1:+.1%}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

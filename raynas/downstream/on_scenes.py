"""Segmentation and detection of scenes: what a backbone is worth beyond classification."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from raynas.cluster.resources import Resources
from raynas.data.scenes import CLASSES, Scenes, ScenesConfig, make_scenes
from raynas.data.streams import global_streams_kept, mix
from raynas.downstream.counts import counts
from raynas.downstream.detection import fcos, mask_rcnn, retinanet
from raynas.downstream.metrics import average_precision, confusion, mean_iou
from raynas.downstream.segmentation import segformer, semantic_fpn, upernet
from raynas.downstream.train import DenseRecipe, train_dense
from raynas.errors import UserError
from raynas.filesystem import whole_file
from raynas.locations import hide_secrets, is_uri
from raynas.nets.supernet import Supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases.pretrained import read_pretrained
from raynas.phases.where import compute, default_resources
from raynas.progress.reporter import Progress, reporter, silent
from raynas.results.run_dir import first_difference
from raynas.runs.network_folder import WEIGHTS_FILE, load_network_folder
from raynas.space.load import SPACES, find_beside
from raynas.text import nearest

Task = Literal["segment", "detect"]

HEADS: dict[Task, dict[str, Callable[..., nn.Module]]] = {
    "segment": {"semantic_fpn": semantic_fpn, "upernet": upernet, "segformer": segformer},
    "detect": {"retinanet": retinanet, "fcos": fcos, "mask_rcnn": mask_rcnn},
}
"""Heads by name, the default first."""

FEWER = {"rpn_post_nms_top_n_train": 200, "rpn_post_nms_top_n_test": 100, "box_batch_size_per_image": 64}
"""Options of Mask R-CNN that are enough for small scenes."""

BATCH = 50
"""The most scenes that are measured at a time."""

SETTINGS, RESULTS, STATE = "settings.json", "results.json", "training.pt"
"""Files of a folder beside trained weights: what was asked for, the measures, the state of an unfinished training."""


def train_on_scenes(
    task: Task,
    backbone: str | os.PathLike[str] | Supernet,
    to: str | os.PathLike[str] | None = None,
    head: str | None = None,
    width: int = 64,
    scratch: bool = False,
    weights: str | os.PathLike[str] | None = None,
    scenes: ScenesConfig | None = None,
    recipe: DenseRecipe | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train a segmenter or a detector of scenes on a backbone, and measure it on test scenes.

    Args:
        task: `segment` or `detect`.
        backbone: a run directory, the folder of a network, or a timm model, see `read_pretrained`; from scratch the
            folder, an arch file or a shipped arch's name. Or a network of one arch.
        to: folder for weights and results, which a Ray task must see, too; a training that was killed goes on there.
            None keeps nothing.
        head: semantic_fpn (the default), upernet, segformer; or retinanet (the default), fcos, mask_rcnn.
        width: channels of the head and of its feature pyramid.
        scratch: True to take the backbone's form alone, with new weights.
        weights: file with a timm model's weights, instead of those that timm downloads.
        scenes: settings of the scenes.
        resources: with a replica, a Ray task trains; else this process. None for a task on a cluster, and this process
            elsewhere.

    Returns:
        `miou`, or `map`, `map50` and `map75` (and `mask_map`, .. of Mask R-CNN); `params` and `macs` of the whole, and
        `backbone_params` and `backbone_macs` of the pyramid; the mean `losses` of the epochs; and the `fingerprint` of
        the test scenes.

    Raises:
        UserError: there is no such task, head, backbone or GPU, or the folder holds another training.
    """
    scenes, recipe, resources = scenes or ScenesConfig(), recipe or DenseRecipe(), resources or default_resources()
    if task not in HEADS:
        raise UserError(f"no task {task!r}: {', '.join(HEADS)}")
    head = head or next(iter(HEADS[task]))
    if head not in HEADS[task]:
        raise UserError(f"no head {head!r} to {task}{nearest(head, list(HEADS[task]))}: {', '.join(HEADS[task])}")
    if weights is not None and (scratch or isinstance(backbone, Supernet)):
        raise UserError("the file of weights is for a timm model's own weights: leave it out")
    if not isinstance(backbone, Supernet) and os.path.exists(backbone):
        backbone = os.path.abspath(backbone)
    if to is not None and is_uri(os.fspath(to)):
        told = hide_secrets(os.fspath(to))
        raise UserError(f"to: {told} is a URI: give a folder, on a cluster on a mount of all nodes")
    folder = None if to is None else Path(to).absolute()
    given = task, backbone, folder, head, width, scratch, weights, scenes, recipe
    show = silent if resources.replicas else progress  # a reporter does not travel
    return compute(f"training to {task}", _train, *given, show, resources=resources, progress=progress)


def _train(
    task: Task,
    backbone: str | os.PathLike[str] | Supernet,
    folder: Path | None,
    head: str,
    width: int,
    scratch: bool,
    weights: str | os.PathLike[str] | None,
    scenes: ScenesConfig,
    recipe: DenseRecipe,
    progress: Progress,
    device: str,
) -> dict[str, Any]:
    """Train and measure, as `train_on_scenes` does."""
    show = reporter(progress)
    network, normal = _backbone(backbone, scratch, weights, scenes.size)
    if folder is not None:
        start = "random" if scratch else weights_fingerprint(network.state_dict())
        form = {"arch": network.space.smallest().id, "space": network.space.fingerprint}  # values, and all constants
        asked = {"head": head, "width": width, **form, "weights": start}
        _claim(folder, {**asked, "scenes": scenes.model_dump(mode="json"), "recipe": recipe.model_dump(mode="json")})
        if (folder / RESULTS).exists():
            show(f"{folder} is finished already")
            return json.loads((folder / RESULTS).read_text())
    with show.doing("making scenes"):
        train, test = make_scenes(scenes, "train"), make_scenes(scenes, "test")
    images = _Images(train, test, network.in_chans, normal, torch.device(device))
    with global_streams_kept():
        torch.manual_seed(mix(recipe.seed, 0))
        if scratch:
            network = type(network)(network.space)  # the same form with new weights
        network.reset_classifier(0)
        model = _model(task, head, network, width, scenes.size).to(device)
    losses = train_dense(
        model,
        lambda indices: _loss(task, model, images.of(train, indices), train, indices),
        len(train),
        recipe,
        None if folder is None else folder / STATE,
        show,
    )
    with show.doing("measuring", len(test), "scenes") as activity:
        measured = _measure(task, model, images, test, activity.advance)
    sizes = counts(model, scenes.size, network.in_chans)
    pyramid = model.pyramid if task == "segment" else model.backbone.pyramid  # type: ignore[union-attr]
    alone = counts(pyramid, scenes.size, network.in_chans)  # type: ignore[arg-type]
    results = {
        **measured,
        "params": sizes["params"],
        "macs": sizes["macs"],
        "backbone_params": alone["params"],
        "backbone_macs": alone["macs"],
        "losses": losses,
        "fingerprint": test.fingerprint,
    }
    if folder is not None:
        save_file(model.state_dict(), folder / WEIGHTS_FILE)
        with whole_file(folder / RESULTS) as file:
            file.write((json.dumps(results, indent=1) + "\n").encode())
        (folder / STATE).unlink(missing_ok=True)
    return results


def _backbone(
    backbone: str | os.PathLike[str] | Supernet,
    scratch: bool,
    weights: str | os.PathLike[str] | None,
    size: tuple[int, int],
) -> tuple[Supernet, Mapping[str, Any]]:
    """Return a network for the size of scenes, and the mean and deviation that its images are normalised with."""
    normal: Mapping[str, Any] = {}
    if isinstance(backbone, Supernet):
        network = backbone
    elif scratch and not Path(backbone).is_dir():
        network = load_network_folder(Path(backbone), weights=False)
    elif not os.path.exists(backbone) and find_beside(SPACES, os.fspath(backbone)):
        raise UserError(f"{backbone} is an arch without weights: train it from scratch (--scratch)")
    else:
        model = read_pretrained(backbone, None if weights is None else Path(weights))
        network, normal = model.network, model.reading
    network.remove_token_head()
    return network.unscaled().resized(size), {} if scratch else normal


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a training to its folder, or check that those of a training that has begun are the same.

    Raises:
        UserError: they are others, or the folder holds something else.
    """
    file = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder")
    there = {each.name for each in folder.iterdir()} if folder.exists() else set()
    if there - {SETTINGS, RESULTS, STATE, WEIGHTS_FILE} or (there and SETTINGS not in there):
        raise UserError(f"{folder} holds other files than those of such a training: give a new folder")
    if there & {RESULTS, STATE}:
        before = {"space": settings["space"], **json.loads(file.read_text())}  # older versions wrote none
        difference = first_difference(before, json.loads(json.dumps(settings)))
        if difference is not None:
            raise UserError(f"{folder} holds a training with other settings: {difference}; give another folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as stream:
        stream.write((json.dumps(settings, indent=1) + "\n").encode())


def _model(task: Task, head: str, network: Supernet, width: int, size: tuple[int, int]) -> nn.Module:
    make = HEADS[task][head]
    if head == "semantic_fpn":
        return make(network, len(CLASSES), width, width)
    if task == "segment":
        return make(network, len(CLASSES), width)
    # Images come normalised, at their own size.
    plain: dict[str, Any] = {"image_mean": [0.0] * network.in_chans, "image_std": [1.0] * network.in_chans}
    plain |= FEWER if head == "mask_rcnn" else {"coarser": False}
    return make(network, len(CLASSES), width, min_size=min(size), max_size=max(size), **plain)


class _Images:
    """The network's input for scenes: normalised, in the network's number of channels, on the device."""

    def __init__(self, train: Scenes, test: Scenes, channels: int, normal: Mapping[str, Any], device: torch.device):
        pixels = train.pixels.float() / 255
        mean = torch.tensor(normal.get("mean") or [float(pixels.mean())])
        std = torch.tensor(normal.get("std") or [float(pixels.std())])
        self.mean, self.std = (each.view(1, -1, 1, 1) for each in (mean, std))
        self.channels, self.device = channels, device

    def of(self, scenes: Scenes, indices: Tensor) -> Tensor:
        """Return some scenes' images float32 [batch, channels, height, width]."""
        pixels = scenes.pixels[indices].expand(-1, self.channels, -1, -1).float() / 255
        return ((pixels - self.mean) / self.std).to(self.device)


def _loss(task: Task, model: nn.Module, images: Tensor, scenes: Scenes, indices: Tensor) -> Tensor:
    """Return the loss of a batch: cross-entropy of pixels, or the sum of a detector's losses."""
    if task == "segment":
        return F.cross_entropy(model(images), scenes.semantic[indices].to(images.device))
    targets = [
        {name: each.to(images.device) for name, each in scenes.target(index).items()} for index in indices.tolist()
    ]
    return torch.stack(list(model(list(images), targets).values())).sum()


@torch.inference_mode()
def _measure(
    task: Task, model: nn.Module, images: _Images, scenes: Scenes, advance: Callable[[float], None]
) -> dict[str, float]:
    """Return the measures of a trained model on scenes."""
    model.eval()
    pixels = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.int64)
    found: list[dict[str, Tensor]] = []
    for indices in torch.arange(len(scenes)).tensor_split(-(-len(scenes) // BATCH)):
        outputs = model(images.of(scenes, indices) if task == "segment" else list(images.of(scenes, indices)))
        if task == "segment":
            pixels += confusion(outputs.argmax(1).cpu(), scenes.semantic[indices], len(CLASSES))
        else:
            found += [{name: each.cpu() for name, each in output.items()} for output in outputs]
        advance(len(indices))
    if task == "segment":
        return {"miou": mean_iou(pixels)}
    targets = [scenes.target(index) for index in range(len(scenes))]
    measured = average_precision(found, targets)
    if "masks" in found[0]:
        masks = average_precision(found, targets, "masks")
        measured |= {f"mask_{name}": value for name, value in masks.items()}
    return measured

"""The score of one subnet on one set of images: a plain function of weights, arch and pixels."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.data.held import Pixels, Streamed
from raynas.data.images import choose_images
from raynas.data.pixels import Normalisation, normalise
from raynas.errors import UserError, reason
from raynas.nets.batch_norm import NormStatistics
from raynas.nets.calibration import calibrate
from raynas.nets.sharing import Side
from raynas.nets.supernet import Supernet
from raynas.proxies.scorer import IMAGES, Found, find
from raynas.results.proxies import PROXY_SEED
from raynas.search.racing import racing_order
from raynas.space import Arch

BATCH = 256
"""Images of a pass, where networks are scored and evaluated."""

Averages = Mapping[Side | None, Mapping[str, Tensor]]
"""Batch-norm statistics of a subnet without its arch; see `NormStatistics`."""

PRECISIONS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Score:
    """The predictions of a subnet, image by image.

    Attributes:
        top1, top5: bool [images], True where the label is the first guess, or among five; top5 is None for five classes
            or fewer.
        loss: mean cross-entropy in nats.
        seconds: wall time of the passes over the images.
        calibration_seconds: wall time of the calibration of batch norms; None without calibration.
        averages: batch-norm statistics that were computed for it; None without calibration.
    """

    top1: np.ndarray
    top5: np.ndarray | None
    loss: float
    seconds: float
    calibration_seconds: float | None = None
    averages: Averages | None = None


@dataclass(frozen=True)
class ProxyScore:
    """The value of a training-free proxy for an arch, or its parts.

    Attributes:
        device: name of the processor that computed it.
    """

    found: Found
    seconds: float
    device: str
    calibration_seconds: None = None


@dataclass(frozen=True)
class Job:
    """An arch to be scored.

    Attributes:
        block: the block of images (first, last) in `racing_order`; None for all images in their own order.
        averages: batch-norm statistics that were computed for an earlier block, if any.
        proxy: name of the training-free proxy to be computed in place of a score; None for a score.
    """

    arch: Arch
    block: tuple[int, int] | None = None
    averages: Averages | None = None
    proxy: str | None = None

    @property
    def key(self) -> Key:
        """The identity of the job: the arch's id, the block, and the proxy."""
        return self.arch.id, self.block, self.proxy


Key = tuple[str, "tuple[int, int] | None", "str | None"]


def check_precision(precision: str) -> None:
    """Refuse what is not one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: {', '.join(PRECISIONS)}")


@torch.inference_mode()
def score_arch(
    supernet: nn.Module,
    arch: Mapping[str, Any],
    images: Pixels | Sequence[Pixels],
    labels: Tensor,
    normalisation: Normalisation,
    batch_size: int = BATCH,
    precision: str = "fp32",
    calibration: Tensor | None = None,
    only: Tensor | None = None,
    averages: Averages | None = None,
) -> Score:
    """Score one subnet with inherited weights, without writing to the supernet or the images.

    Args:
        supernet: the supernet in eval mode, called as `supernet(x, arch)`.
        images: uint8 [n, channels, height, width], held or streamed, in one or more parts; batches are moved to the
            labels' device.
        labels: int64 [n], on the supernet's device.
        normalisation: mean and deviation of pixels.
        batch_size: images in one pass.
        precision: fp32, or bf16 or fp16 by autocast.
        calibration: normalised images [batches, batch, channels, height, width] to calibrate batch norms on first,
            which are moved to the labels' device batch by batch; None to use their running averages.
        only: ascending indices of the images to score, int64 [some]; None for all.
        averages: batch-norm statistics of the subnet, computed before: nothing is calibrated then.

    Raises:
        RuntimeError: the supernet is in training mode.
        FloatingPointError: some logits are not finite.
    """
    if supernet.training:
        raise RuntimeError("a supernet is scored in eval mode: training mode may write to shared weights")
    autocast = torch.autocast(labels.device.type, PRECISIONS[precision], enabled=precision != "fp32")
    options, calibration_seconds = {}, None
    if averages is not None:
        options["statistics"] = NormStatistics(cast(Arch, arch), averages)
    elif calibration is not None:
        began = time.perf_counter()
        with autocast:
            batches = (some.to(labels.device) for some in calibration)
            options["statistics"] = calibrate(cast(Supernet, supernet), arch, batches)
        if labels.device.type == "cuda":
            torch.cuda.synchronize(labels.device)
        calibration_seconds = time.perf_counter() - began
    top5_counts = None
    began = time.perf_counter()
    top1, top5 = [], []
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    finite = torch.ones((), dtype=torch.bool, device=labels.device)
    for pixels, y in _batches(images, labels, batch_size, only):
        x = normalise(pixels, normalisation)
        with autocast:
            logits = supernet(x, arch, **options)
        logits = logits.float()
        top5_counts = logits.shape[1] > 5
        finite &= logits.isfinite().all()
        loss += F.cross_entropy(logits, y, reduction="sum")
        top1.append(logits.argmax(1) == y)
        if top5_counts:
            top5.append((logits.topk(5, dim=1).indices == y[:, None]).any(1))
    if not finite:
        raise FloatingPointError(f"logits are not finite in {precision}")
    bits = torch.cat(top1).cpu().numpy()
    bits5 = torch.cat(top5).cpu().numpy() if top5_counts else None
    found = options["statistics"].averages if options else None
    return Score(bits, bits5, float(loss) / len(bits), time.perf_counter() - began, calibration_seconds, found)


def placed_images(parts: Sequence[Pixels], device: torch.device) -> Sequence[Pixels]:
    """Return images on a device; what would take more than half of a GPU's free memory is moved batch by batch later.

    Args:
        parts: images [..., channels, height, width] in one or more parts; streamed ones stay where they are.
    """
    held = [part for part in parts if isinstance(part, Tensor)]
    room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0
    fits = len(held) == len(parts) and sum(part.nbytes for part in held) <= room
    return [part.to(device) for part in held] if fits else parts


def _batches(
    images: Pixels | Sequence[Pixels], labels: Tensor, size: int, only: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    first = 0
    for part in [images] if isinstance(images, Tensor | Streamed) else images:
        if only is None:
            for pixels in part.split(size):
                yield pixels.to(labels.device), labels[first : first + len(pixels)]
                first += len(pixels)
        else:
            inside = only[(only >= first) & (only < first + len(part))]
            for indices in inside.split(size) if len(inside) else ():
                pixels = part[(indices - first).to(part.device)]
                yield pixels.to(labels.device), labels[indices.to(labels.device)]
            first += len(part)


@dataclass
class ArchScorer:
    """A supernet and images on one device, to which all are moved; the other attributes are as for `score_arch`.

    Images for which a GPU has no room stay outside, see `placed_images`.
    """

    device: torch.device
    supernet: nn.Module
    images: Sequence[Pixels]
    labels: Tensor
    normalisation: Normalisation
    batch_size: int
    precision: str
    calibration: Tensor | None

    def __post_init__(self) -> None:
        self.supernet, self.labels = self.supernet.to(self.device), self.labels.to(self.device)
        self.images = placed_images(self.images, self.device)
        if self.calibration is not None:
            (self.calibration,) = cast(Sequence[Tensor], placed_images([self.calibration], self.device))

    def score(self, job: Job) -> tuple[Score | ProxyScore | None, str | None]:
        """Return what a job asks for or, if there is none, None and the reason.

        Of a block, correctness is in racing order, and batch-norm statistics are for its later blocks. Proxies are
        computed on the CPU.
        """
        images = (self.images, self.labels, self.normalisation, self.batch_size, self.precision, self.calibration)
        try:
            if job.proxy is not None:
                began = time.perf_counter()
                found = find(job.proxy, job.arch, self._proxy_images, PROXY_SEED)
                return ProxyScore(found, time.perf_counter() - began, f"cpu ({platform.machine()})"), None
            if job.block is None:
                return replace(score_arch(self.supernet, job.arch, *images), averages=None), None
            places = racing_order(len(self.labels))[slice(*job.block)]
            ascending = np.argsort(places)
            only = torch.from_numpy(places[ascending])
            score = score_arch(self.supernet, job.arch, *images, only, _on(self.device, job.averages))
        except Exception as error:  # an arch may break its network in any way; the search goes on without it
            return None, reason(error)
        back = np.argsort(ascending)
        averages = _on("cpu", score.averages) if job.averages is None else None  # else known to the sender
        top5 = None if score.top5 is None else score.top5[back]
        return replace(score, top1=score.top1[back], top5=top5, averages=averages), None

    @cached_property
    def _proxy_images(self) -> Tensor:
        """Some of the images, normalised, on the CPU; see `raynas.proxies.scorer.proxy_images`."""
        chosen = torch.from_numpy(choose_images(len(self.labels), min(IMAGES, len(self.labels))))
        pixels = torch.cat([some.cpu() for some, _ in _batches(self.images, self.labels, self.batch_size, chosen)])
        return normalise(pixels, self.normalisation)


def _on(device: torch.device | str, averages: Averages | None) -> Averages | None:
    """Return batch-norm statistics on a device."""
    if averages is None:
        return None
    return {side: {name: tensor.to(device) for name, tensor in own.items()} for side, own in averages.items()}

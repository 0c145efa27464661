"""One frozen copy of the supernet in a process of its own, over weights and images that it shares."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raynas.data.pixels import normalise
from raynas.errors import reason
from raynas.scoring.score_arch import PRECISIONS, PixelStatistics, Score, score_arch
from raynas.scoring.shared_weights import Arrays, Skeleton, changed, over, put_together
from raynas.space import Arch, Space

if TYPE_CHECKING:
    from raynas.scoring.scored_supernet import ScoredSupernet


class WeightsChanged(RuntimeError):
    """Something wrote to weights or images that all replicas share; no score after it can be trusted."""

    def __init__(self, names: Sequence[str]):
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        super().__init__(
            f"the supernet wrote to its own weights or images while it was scored: {shown}. In eval mode a forward "
            "pass must not change parameters, buffers or inputs in place; mend the module"
        )
        self.names = list(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightsChanged, (self.names,)


@dataclass(frozen=True)
class Options:
    """How replicas score.

    Attributes:
        batch_size: images in one pass.
        threads: torch threads of one replica.
        precision: fp32, bf16 or fp16.
        gpu: whether on a GPU.
    """

    batch_size: int
    threads: int
    precision: str
    gpu: bool


class Replica:
    """The actor's class; plain, so that it runs without Ray too.

    Args:
        name: for the dashboard and the rows.
        space: of the supernet.
        skeleton: the supernet without memory.
        weights: its arrays, mapped.
        images: `images` uint8 [n, channels, height, width], `labels` int64 [n] and, where batch norms are calibrated,
            `calibration` float32 [batches, batch, channels, height, width]; mapped.
        statistics: to normalise with.
        sums: checksums of the weights; `image_sums`: of the images.
        options: how to score.
    """

    _name = "raynas-replica"  # Ray asks for it where the constructor's arguments cannot be read

    def __init__(
        self,
        name: str,
        space: Space,
        skeleton: Skeleton,
        weights: Arrays,
        images: Arrays,
        statistics: PixelStatistics,
        sums: Mapping[str, int],
        image_sums: Mapping[str, int],
        options: Options,
    ):
        torch.set_num_threads(options.threads)
        self._name = name
        self._space = space
        self._weights, self._images = weights, images  # kept: they hold the mapping
        self._sums, self._image_sums = sums, image_sums
        self._statistics = statistics
        self._options = options
        self._device = torch.device("cuda" if options.gpu else "cpu")
        # On the CPU these `to` do nothing: the tensors stay the mapped ones.
        self._supernet = put_together(skeleton, weights).to(self._device)
        self._pixels = over(images["images"]).to(self._device)
        self._labels = over(images["labels"]).to(self._device)
        calibration = images.get("calibration")
        self._calibration = None if calibration is None else over(calibration).to(self._device)

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> tuple[str, int, str]:
        """Node, process and device it runs on, once it can score."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid(), device_name(self._device)

    def score(self, archs: Sequence[Arch | dict[str, Any]]) -> list[tuple[Score | None, str | None]]:
        """A score, or the reason why there is none, for each arch.

        Raises:
            WeightsChanged: scoring these wrote to shared memory.
        """
        outcomes = [self._score(arch if isinstance(arch, Arch) else self._space.arch(arch)) for arch in archs]
        if names := changed(self._weights, self._sums):
            raise WeightsChanged(names)
        return outcomes

    def _score(self, arch: Arch) -> tuple[Score | None, str | None]:
        o = self._options
        try:
            score = score_arch(
                self._supernet,
                arch,
                self._pixels,
                self._labels,
                self._statistics,
                o.batch_size,
                o.precision,
                self._calibration,
            )
        except Exception as error:  # whatever an arch does to a network, the search goes on without it
            return None, reason(error)
        return score, None

    def verify(self) -> list[str]:
        """Names of the mapped arrays that are not what they were."""
        return changed(self._weights, self._sums) + changed(self._images, self._image_sums)

    def forward_alone(self, archs: Sequence[dict[str, Any]], seconds: float) -> tuple[int, float]:
        """Forward passes over images that are prepared already, for a time: what arithmetic alone allows.

        Returns:
            Number of archs passed, and the seconds that took.
        """
        ready = [self._space.arch(arch) for arch in archs]
        x = normalise(self._pixels, self._statistics).split(self._options.batch_size)
        count, began = 0, time.perf_counter()
        o = self._options
        cast = torch.autocast(self._device.type, PRECISIONS[o.precision], enabled=o.precision != "fp32")
        with torch.inference_mode(), cast:
            while time.perf_counter() - began < seconds:
                for batch in x:
                    logits = self._supernet(batch, ready[count % len(ready)])
                count += 1
            logits.cpu()
        return count, time.perf_counter() - began


def device_name(device: torch.device) -> str:
    """`cpu (x86_64)`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def as_arrays(subject: ScoredSupernet) -> Arrays:
    """All images of a subject, and their labels, as they travel to replicas."""
    tensors = {"images": subject.images, "labels": subject.labels}
    if subject.calibration is not None:
        tensors["calibration"] = subject.calibration.batches
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}

"""A frozen copy of the supernet in its own process, over shared weights and images."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raynas.data.pixels import Normalisation, normalise
from raynas.scoring.score_arch import PRECISIONS, ArchScorer, Score
from raynas.scoring.shared_weights import Arrays, Skeleton, changed, over, put_together
from raynas.space import Arch, Space

if TYPE_CHECKING:
    from raynas.scoring.scored_supernet import ScoredSupernet


class WeightsChanged(RuntimeError):
    """Weights or images that all replicas share were written to; later scores cannot be trusted."""

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
    """Options of scoring.

    Attributes:
        gpu: True to score on a GPU.
    """

    batch_size: int
    threads: int
    precision: str
    gpu: bool


class Replica:
    """A scoring process: the class of the Ray actor, which also runs without Ray.

    Args:
        name: name in Ray's dashboard and in rows.
        skeleton: the supernet without its tensors.
        images: `images` uint8 [n, channels, height, width], `labels` int64 [n] and, if batch norms are calibrated,
            `calibration` float32 [batches, batch, channels, height, width], in shared memory.
        image_sums: checksums of the images.
    """

    _name = "raynas-replica"  # Ray needs a name even if the constructor's arguments cannot be read

    def __init__(
        self,
        name: str,
        space: Space,
        skeleton: Skeleton,
        weights: Arrays,
        images: Arrays,
        normalisation: Normalisation,
        sums: Mapping[str, int],
        image_sums: Mapping[str, int],
        options: Options,
    ):
        torch.set_num_threads(options.threads)
        self._name = name
        self._space = space
        self._weights, self._images = weights, images  # kept: they hold the mapping
        self._sums, self._image_sums = sums, image_sums
        self._device = torch.device("cuda" if options.gpu else "cpu")
        calibration = images.get("calibration")
        self._scorer = ArchScorer(  # which copies nothing on the CPU: its tensors are the shared ones
            self._device,
            put_together(skeleton, weights),
            over(images["images"]),
            over(images["labels"]),
            normalisation,
            options.batch_size,
            options.precision,
            None if calibration is None else over(calibration),
        )

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> tuple[str, int, str]:
        """Return the replica's node, process and device; answered once it can score."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid(), device_name(self._device)

    def score(self, archs: Sequence[Arch | dict[str, Any]]) -> list[tuple[Score | None, str | None]]:
        """Return for each arch a score, or None and the reason why there is none.

        Raises:
            WeightsChanged: scoring these wrote to shared memory.
        """
        outcomes = [self._scorer.score(arch if isinstance(arch, Arch) else self._space.arch(arch)) for arch in archs]
        if names := changed(self._weights, self._sums):
            raise WeightsChanged(names)
        return outcomes

    def verify(self) -> list[str]:
        """Return the names of the shared arrays that have changed."""
        return changed(self._weights, self._sums) + changed(self._images, self._image_sums)

    def forward_alone(self, archs: Sequence[dict[str, Any]], seconds: float) -> tuple[int, float]:
        """Run bare forward passes over prepared images for a time, to see the cost of all other work.

        Returns:
            Number of archs passed, and the seconds that took.
        """
        ready, scorer = [self._space.arch(arch) for arch in archs], self._scorer
        x = normalise(scorer.images, scorer.normalisation).split(scorer.batch_size)
        count, began = 0, time.perf_counter()
        cast = torch.autocast(self._device.type, PRECISIONS[scorer.precision], enabled=scorer.precision != "fp32")
        with torch.inference_mode(), cast:
            while time.perf_counter() - began < seconds:
                for batch in x:
                    logits = scorer.supernet(batch, ready[count % len(ready)])
                count += 1
            logits.cpu()
        return count, time.perf_counter() - began


def device_name(device: torch.device) -> str:
    """Return a device's name for rows: `cpu (x86_64)`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def as_arrays(scored: ScoredSupernet) -> Arrays:
    """Return images, labels and calibration images as arrays, to be shared with replicas."""
    tensors = {"images": scored.images, "labels": scored.labels}
    if scored.calibration is not None:
        tensors["calibration"] = scored.calibration.batches
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}

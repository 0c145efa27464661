"""A frozen copy of the supernet in its own process, over shared weights and images."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from raynas.data.held import Streamed
from raynas.data.images import ImageSet
from raynas.data.pixels import Normalisation, normalise
from raynas.scoring.score_arch import PRECISIONS, ArchScorer, Averages, Job, ProxyScore, Score
from raynas.scoring.shared_weights import Arrays, Skeleton, changed, over, put_together
from raynas.space import Arch, Space

if TYPE_CHECKING:
    from raynas.scoring.shared_images import Part


Sent: TypeAlias = "tuple[Arch | dict[str, Any], tuple[int, int] | None, Averages | None, str | None]"
"""A `Job` as it is sent: values are smaller than an arch, which includes its space."""


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
        others: `labels` int64 [n], in shared memory.
        sums: checksums of `weights` and of `others`.
        parts: Ray's references to the decoded images, part by part (see `raynas.scoring.shared_images`); or the images,
            which this process decodes batch by batch.
        calibration: those to the images that batch norms are calibrated on; empty without calibration.
    """

    _name = "raynas-replica"  # Ray needs a name even if the constructor's arguments cannot be read

    def __init__(
        self,
        name: str,
        space: Space,
        skeleton: Skeleton,
        weights: Arrays,
        others: Arrays,
        normalisation: Normalisation,
        sums: tuple[Mapping[str, int], Mapping[str, int]],
        options: Options,
        parts: Sequence[Part] | ImageSet,
        calibration: Sequence[Part],
    ):
        import ray

        torch.set_num_threads(options.threads)
        self._name = name
        self._space = space
        self._weights, self._weight_sums = weights, sums[0]
        streamed = [Streamed(parts, options.threads)] if isinstance(parts, ImageSet) else []
        shared = [] if isinstance(parts, ImageSet) else parts
        images, drawn = ([(ray.get(part), ray.get(known)) for part, known in some] for some in (shared, calibration))
        self._images = [(others, sums[1]), *images, *drawn]  # kept: they hold the mapping
        self._device = torch.device("cuda" if options.gpu else "cpu")
        self._scorer = ArchScorer(  # which copies nothing on the CPU: its tensors are the shared ones
            self._device,
            put_together(skeleton, weights),
            [*streamed, *(over(part["pixels"]) for part, _ in images)],
            over(others["labels"]),
            normalisation,
            options.batch_size,
            options.precision,
            over(drawn[0][0]["calibration"]) if drawn else None,
        )

    def __repr__(self) -> str:
        return self._name

    def ready(self) -> tuple[str, int, str]:
        """Return the replica's node, process and device; answered once it can score."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid(), device_name(self._device)

    def score(self, jobs: Sequence[Sent]) -> list[tuple[Score | ProxyScore | None, str | None]]:
        """Return for each job what it asks for, or None and the reason why there is none.

        Raises:
            WeightsChanged: scoring these wrote to shared memory.
        """
        ready = [
            Job(arch if isinstance(arch, Arch) else self._space.arch(arch), block, averages, proxy)
            for arch, block, averages, proxy in jobs
        ]
        outcomes = [self._scorer.score(job) for job in ready]
        if names := changed(self._weights, self._weight_sums):
            raise WeightsChanged(names)
        return outcomes

    def verify(self) -> list[str]:
        """Return the names of the shared arrays that have changed."""
        shared = [(self._weights, self._weight_sums), *self._images]
        return [name for arrays, sums in shared for name in changed(arrays, sums)]

    def gpu_use(self) -> tuple[int, int]:
        """Return the bytes in use on this replica's GPU once it has scored the largest subnet, and all its bytes.

        Raises:
            RuntimeError: that subnet cannot be scored.
        """
        score, why = self._scorer.score(Job(self._space.largest()))
        if score is None:
            raise RuntimeError(why)
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free, total

    def forward_alone(self, archs: Sequence[dict[str, Any]], seconds: float) -> tuple[int, float]:
        """Run bare forward passes over prepared images for a time, to see the cost of all other work.

        Returns:
            Number of archs passed, and the seconds that took.
        """
        ready, scorer = [self._space.arch(arch) for arch in archs], self._scorer
        x = [
            normalise(pixels.to(self._device), scorer.normalisation)
            for part in scorer.images
            for pixels in part.split(scorer.batch_size)
        ]
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

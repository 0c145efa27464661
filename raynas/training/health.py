"""Health checks of training: fixed probe subnets, whose scores show whether training has broken down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.costs import cost
from raynas.data.held import held
from raynas.data.images import ImageSet, decode
from raynas.data.load import Data
from raynas.data.pixels import normalise
from raynas.nets.calibration import calibrate, wants_calibration
from raynas.nets.device import evaluating
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Space
from raynas.training.context import Context
from raynas.training.streams import derive

SAMPLE = 1000  # archs for the quartiles of MACs
WELL_ABOVE = 0.2  # fraction of the way from chance to perfect that a probe must have reached to count as collapsed
NOISE = 3  # standard errors: minimum of the fall, and of the best accuracy above chance
NEAR = 0.1  # fraction of the way from chance to its best below which a probe has collapsed
BATCH = 250
CALIBRATED_ON = 256  # images; enough to detect a breakdown


class Diverged(Exception):
    """Breakdown of training; the message is the verdict."""


def choose_probes(space: Space, seed: int) -> dict[str, Arch]:
    """Choose subnets to be scored repeatedly during training, by role: smallest, q1, median, q3 and largest.

    Those between the extremes are at the quartiles of MACs of a seeded sample. Equal archs are one probe: a one-point
    space has a single probe.
    """
    rng = np.random.default_rng(derive(seed, "probes"))
    codes = space.sample_codes(rng, SAMPLE)
    order = np.argsort(cost(space, codes)["macs"], kind="stable")
    quartiles = space.decode(codes[order[[SAMPLE // 4, SAMPLE // 2, SAMPLE * 3 // 4]]])
    roles = {"largest": space.largest(), "smallest": space.smallest()}
    roles.update(zip(("q1", "median", "q3"), quartiles, strict=True))
    taken: dict[Arch, str] = {}
    for role, arch in roles.items():
        taken.setdefault(arch, role)
    chosen = {role: arch for arch, role in taken.items()}
    return {role: chosen[role] for role in ("smallest", "q1", "median", "q3", "largest") if role in chosen}


class ProbeImages:
    """A fixed, seeded part of the search split; each rank has its share.

    Attributes:
        pixels: uint8 [n, channels, height, width], held if there is room.
        labels: int64 [n].
        chance: accuracy of always predicting the most frequent class.
    """

    def __init__(self, data: Data, limit: int, seed: int, context: Context):
        images: ImageSet = data.search
        if len(images) > limit:
            rng = np.random.default_rng(derive(seed, "probes", 1))
            images = images.take(np.sort(rng.permutation(len(images))[:limit]))
        self.data = data
        self.chance = float(np.bincount(images.labels).max() / len(images))
        own = images.take(np.arange(len(images))[context.rank :: context.world_size])
        self.pixels, self.labels = held(own), torch.from_numpy(own.labels)
        self._seed = seed

    @cached_property
    def training(self) -> Tensor:
        """Training images for batch-norm calibration, uint8 [n, channels, height, width], the same on all ranks."""
        rng = np.random.default_rng(derive(self._seed, "probes", 2))
        images = self.data.train
        return decode(images.take(np.sort(rng.permutation(len(images))[:CALIBRATED_ON])))[0]


def score_probes(
    model: torch.nn.Module,
    probes: Mapping[str, Arch],
    images: ProbeImages,
    context: Context,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> list[dict[str, Any]]:
    """Return a row for every probe: accuracy and mean cross-entropy over the images of all ranks."""
    device = context.device
    totals = torch.zeros(len(probes), 3, dtype=torch.float64, device=device)
    statistics: dict[Arch, dict[str, Any]] = {}
    with evaluating(model), torch.no_grad(), autocast():
        if wants_calibration(model):
            batches = normalise(images.training.to(device), images.data.normalisation).tensor_split(4)
            network, archs = cast(Supernet, model), probes.values()
            statistics = {arch: {"statistics": calibrate(network, arch, batches)} for arch in archs}
        for pixels, labels in zip(images.pixels.split(BATCH), images.labels.to(device).split(BATCH), strict=True):
            batch = normalise(pixels.to(device), images.data.normalisation)
            for row, arch in zip(totals, probes.values(), strict=True):
                logits = model(batch, arch, **statistics.get(arch, {})).float()
                row[0] += (logits.argmax(1) == labels).sum()
                row[1] += F.cross_entropy(logits, labels, reduction="sum")
                row[2] += len(labels)
    context.all_reduce(totals)
    return [
        {"role": role, "arch": arch.id, "accuracy": correct / count, "loss": loss / count, "images": int(count)}
        for (role, arch), (correct, loss, count) in zip(probes.items(), totals.tolist(), strict=True)
    ]


def verdict(rows: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]], chance: float) -> str | None:
    """Return why these probe scores mean that training broke down, or None.

    A probe has collapsed if its loss is not finite, or if its accuracy was well above chance in an earlier row of its
    role and is close to chance now, by more than noise. Training has collapsed if more than half of the probes have.

    Args:
        rows: this epoch's rows.
        earlier: the rows of all epochs before.
        chance: accuracy of an untrained network, 0 to 1.
    """
    collapsed = []
    for row in rows:
        best = max((old["accuracy"] for old in earlier if old["role"] == row["role"]), default=0.0)
        noise = NOISE * (0.25 / row["images"]) ** 0.5  # upper bound for an accuracy on that many images
        was_well_above = best > chance + max(WELL_ABOVE * (1 - chance), noise)
        if not np.isfinite(row["loss"]):
            collapsed.append(f"{row['role']}: loss {row['loss']}")
        elif was_well_above and row["accuracy"] < min(chance + NEAR * (best - chance), best - noise):
            collapsed.append(f"{row['role']}: {best:.1%} to {row['accuracy']:.1%}")
    if 2 * len(collapsed) <= len(rows):
        return None
    return f"probe subnets collapsed (chance is {chance:.1%}): {', '.join(collapsed)}"

"""A supernet to be scored, with the images of the search split, and the fingerprints of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raynas.data.calibration import Calibration
from raynas.data.images import ImageSet, choose_images, in_memory
from raynas.data.load import Data
from raynas.data.pixels import Normalisation
from raynas.errors import UserError
from raynas.nets.weights import weights_fingerprint
from raynas.runs.run import Run
from raynas.space import Space


@dataclass(frozen=True)
class ScoredSupernet:
    """A supernet and the images that its subnets are scored on.

    Attributes:
        supernet: the supernet in eval mode, on the CPU.
        images: the images, decoded where they are scored.
        normalisation: mean and deviation of pixels.
        weights: fingerprint of the weights.
        data: fingerprint of the images.
        seed: seed of the supernet's training, if known.
        calibration: images for batch-norm calibration, if the subnets need it.
    """

    space: Space
    supernet: nn.Module
    images: ImageSet
    normalisation: Normalisation
    weights: str
    data: str
    seed: int | None = None
    calibration: Calibration | None = None


def load_scored_supernet(run: Run, count: int | None = None) -> ScoredSupernet:
    """Load the trained supernet of a run, with its search split.

    Args:
        count: number of images of the search split; by default all.

    Raises:
        RunDirError: a file is missing: the supernet is not trained yet.
        UserError: the data cannot be loaded, or has fewer images.
    """
    trained = run.supernet()
    module = trained.module  # first: without it there is nothing to score
    seed = run.about_supernet.get("seed")
    return make_scored_supernet(trained.space, module, trained.data, count, seed, trained.calibration)


def make_scored_supernet(
    space: Space,
    supernet: nn.Module,
    data: Data,
    count: int | None = None,
    seed: int | None = None,
    calibration: Calibration | None = None,
) -> ScoredSupernet:
    """Return a supernet to be scored on the search split of a dataset, in the space's size and channels.

    Args:
        supernet: any module called as `supernet(x, arch)`; it is put in eval mode.
        count: number of images, chosen by `choose_images`; by default all.
        seed: seed of the supernet's training.
        calibration: images for batch-norm calibration.

    Raises:
        UserError: there are fewer images.
    """
    images = data.search.at(space.input_size, space.channels)
    if count is not None:
        images = images.take(choose_images(len(images), count))
    weights = weights_fingerprint(supernet.state_dict())
    return ScoredSupernet(
        space, supernet.eval(), images, data.normalisation, weights, data.fingerprint, seed, calibration
    )


def from_tensors(
    space: Space,
    supernet: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalisation: Normalisation | None = None,
    calibration: Calibration | None = None,
) -> ScoredSupernet:
    """Return a supernet to be scored on images in memory.

    Args:
        supernet: any module called as `supernet(x, arch)`; it is put in eval mode.
        pixels: uint8 [n, channels, height, width].
        labels: int64 [n].
        normalisation: mean and deviation of pixels; by default 0 and 1.
        calibration: images for batch-norm calibration.

    Raises:
        UserError: the arrays have the wrong types or lengths.
    """
    if pixels.dtype != torch.uint8 or pixels.ndim != 4:
        raise UserError(f"images must be uint8 [n, channels, height, width], found {pixels.dtype} {list(pixels.shape)}")
    if labels.dtype != torch.int64 or labels.shape != (len(pixels),):
        raise UserError(f"labels must be int64 [{len(pixels)}], found {labels.dtype} {list(labels.shape)}")
    if normalisation is None:
        normalisation = Normalisation((0.0,) * pixels.shape[1], (1.0,) * pixels.shape[1])
    # Hashed under this name by all versions, since stored rows are found by the fingerprint.
    known_as = f"PixelStatistics(mean={normalisation.mean}, std={normalisation.std})"
    content = pixels.numpy().tobytes() + labels.numpy().tobytes() + known_as.encode()
    fingerprint = hashlib.sha256(content).hexdigest()[:16]
    images = in_memory(pixels, labels.numpy())
    weights = weights_fingerprint(supernet.state_dict())
    return ScoredSupernet(space, supernet.eval(), images, normalisation, weights, fingerprint, calibration=calibration)

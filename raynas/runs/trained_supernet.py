"""The trained supernet of a run, from which subnets inherit their weights."""

from __future__ import annotations

from functools import cached_property

import torch

from raynas.data.calibration import Calibration
from raynas.data.load import Data
from raynas.errors import UserError
from raynas.nets.calibration import calibrate, wants_calibration
from raynas.nets.device import device_there
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.runs.files import RunFiles
from raynas.runs.networks import belongs
from raynas.space import Arch, Space


class TrainedSupernet:
    """A run's supernet and the calibration images of its subnets, each read once when needed."""

    def __init__(self, run: RunFiles, device: torch.device | str = "cpu"):
        self._run, self.device = run, device_there(device)

    def subnet(self, arch: Arch, calibrated: bool = True) -> Supernet:
        """Return the subnet of an arch, with inherited weights.

        Its batch norms, if any, have statistics of their own, calibrated as for its score.

        Args:
            calibrated: False to leave its batch norms the supernet's running averages.

        Raises:
            RunDirError: the supernet is not trained yet.
            UserError: the supernet cannot hold the arch.
        """
        space = self.space
        if not belongs(arch, space):
            told = "; ".join(space.differences(arch.space).values())
            why = "has other constants than" if told or arch in space else "is not in"
            raise UserError(
                f"arch {arch.id} {why} space {space.name}{f' ({told})' if told else ''}: it has no inherited weights "
                "in this run"
            )
        arch = space.arch(arch)
        if not calibrated or self.calibration is None:
            return self.module.extract(arch)
        batches = (images.to(self.device) for images in self.calibration.batches)
        return self.module.extract(arch, statistics=calibrate(self.module, arch, batches))

    @cached_property
    def space(self) -> Space:
        """The space of the supernet."""
        return self._run.space

    @cached_property
    def module(self) -> Supernet:
        """The torch module, in eval mode: `module(x, arch)`."""
        weights = self._run.weights()
        return load_supernet(self.space, weights).eval().to(self.device)

    @cached_property
    def data(self) -> Data:
        """The data of the training."""
        return self._run.data()

    @cached_property
    def calibration(self) -> Calibration | None:
        """The images for batch-norm calibration; None if the subnets need none."""
        return self._run.calibration(self.data) if wants_calibration(self.module) else None

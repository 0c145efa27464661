"""The trained supernet of a run, which its subnets inherit their weights from."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from raynas.data.config import stored_config
from raynas.data.load import load_data
from raynas.errors import UserError
from raynas.nets.calibration import calibrate, wants_calibration
from raynas.nets.released import check_finite
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet, parse_weights
from raynas.results import RunDir
from raynas.runs.calibration import load_calibration
from raynas.runs.network_folder import WEIGHTS_FILE, build_network
from raynas.runs.networks import Network, belongs, read_space
from raynas.space import Arch


class TrainedSupernet:
    """A run's supernet and the images that its subnets are calibrated on, each read when it is needed, and once.

    Args:
        run: the run directory.
        device: where the supernet is, and its subnets.
    """

    def __init__(self, run: RunDir, device: torch.device | str = "cpu"):
        self.run, self.device = run, torch.device(device)

    def subnet(self, arch: Arch) -> Supernet:
        """The subnet of an arch, with inherited weights.

        Its batch norms, where it has any, go by statistics of its own, calibrated as for its score.

        Raises:
            RunDirError: the supernet is not trained yet.
            UserError: the supernet cannot hold the arch.
        """
        run, space = self.run, read_space(self.run)
        run.require("supernet.safetensors")
        if not belongs(arch, space):
            told = "; ".join(space.differences(arch.space).values())
            why = "has other constants than" if told or arch in space else "is not in"
            raise UserError(
                f"arch {arch.id} {why} space {space.name}{f' ({told})' if told else ''}: it has no inherited weights "
                "in this run"
            )
        arch = space.arch(arch)
        if not wants_calibration(self._supernet):
            return self._supernet.extract(arch)
        return self._supernet.extract(arch, statistics=calibrate(self._supernet, arch, self._batches))

    @cached_property
    def _supernet(self) -> Supernet:
        name = "supernet.safetensors"
        weights = parse_weights(self.run.read_bytes(name), f"{self.run.name}/{name}")
        return load_supernet(read_space(self.run), weights).eval().to(self.device)

    @cached_property
    def _batches(self) -> Tensor:
        """[batches, batch, channels, height, width]; see `Calibration`."""
        data = load_data(stored_config(self.run.read_yaml("preset.yaml", "data")))
        return load_calibration(self.run, data).batches.to(self.device)


def load_weights(run: RunDir, network: Network, parent: TrainedSupernet | None = None) -> Supernet:
    """A network of a run, ready to be called.

    Args:
        parent: what it inherits its weights from where it has no own, if several networks do.

    Raises:
        UserError: its files are missing or do not fit each other, or its weights are not finite.
    """
    if network.path is None:
        model = (parent or TrainedSupernet(run)).subnet(network.arch)
    else:
        model = build_network(
            network.arch, run.read_bytes(f"{network.path}/{WEIGHTS_FILE}"), f"{run.name}/{network.path}"
        )
    check_finite(model.state_dict(), f"{run.name}/{network.path or 'supernet.safetensors'}")
    return model

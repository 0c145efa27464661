"""Ray Train's trainer, a lighter one for a Ray that only this machine can reach, a run's settings, its controller."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import ray
from ray.train import RunConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.storage import StorageContext

from raynas.cluster.connection import on_loopback
from raynas.cluster.mailbox import CONTROLLER

_UNUSED = ("DatasetsCallback", "PlacementGroupCleanerCallback")
"""Callbacks with an actor each: one for datasets of Ray Data, one that cleans up in a Ray that outlives its driver."""


def trainer() -> type[TorchTrainer]:
    """Return the class of trainers for the connected Ray."""
    return LocalTrainer if on_loopback() else TorchTrainer


class NamedRun(RunConfig):
    """The settings of a run of Ray Train that has another name than its folder, in which its checkpoints are found.

    Args:
        name: name on the dashboard and in metrics.
        folder: name of the folder in the storage path.
        settings: the other settings of a `RunConfig`.
    """

    def __init__(self, name: str, folder: str, **settings: Any):
        # Earlier releases of Ray take the folder's name from here.
        super().__init__(name=name if hasattr(RunConfig, "storage_context") else folder, **settings)
        self.folder = folder

    @cached_property
    def storage_context(self) -> StorageContext:
        assert self.storage_path is not None  # Ray sets it
        return StorageContext(self.storage_path, self.folder, self.storage_filesystem)


class LocalTrainer(TorchTrainer):
    """A `TorchTrainer` with three actors less, none of which a Ray needs that ends with its driver and does not grow.

    Each actor is a process that takes about two seconds of a CPU to start, before the workers do.
    """

    # Ray's annotations are those of the earlier Ray Train, which has no such methods.
    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]
        return [each for each in callbacks if type(each).__name__ not in _UNUSED]

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        if type(arguments["scaling_policy"]) is FixedScalingPolicy:
            arguments["scaling_policy"] = _NoRequests(self.scaling_config)  # type: ignore[arg-type]
        return super()._initialize_and_run_controller(**arguments)  # type: ignore[misc]


class _NoRequests(FixedScalingPolicy):
    """A fixed number of workers, for which no autoscaler is asked."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Send no first request."""

    def _maybe_send_resource_request(self) -> None:
        """Send no later ones."""


class SendController(ControllerCallback):
    """Sends the controller's handle to a mailbox when it starts; one of the callbacks of a `RunConfig`.

    `TorchTrainer.fit` keeps the handle to itself, and only the controller can end a training in order: with its
    workers, and with its requests to the autoscaler.
    """

    def __init__(self, mailbox: Any, training: str):
        self._mailbox, self._training = mailbox, training

    def after_controller_start(self, train_run_context: Any) -> None:
        controller = ray.get_runtime_context().current_actor
        self._mailbox.put.remote(self._training, {"kind": CONTROLLER, "controller": controller})

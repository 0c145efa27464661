"""The handle of Ray Train's controller, which `TorchTrainer.fit` keeps to itself.

Only the controller can end a training in order: with its workers, and with its requests to the autoscaler.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback

from raynas.cluster.mailbox import CONTROLLER


class SendController(ControllerCallback):
    """Sends the controller's handle to a mailbox when it starts; one of the callbacks of a `RunConfig`."""

    def __init__(self, mailbox: Any, training: str):
        self._mailbox, self._training = mailbox, training

    def after_controller_start(self, train_run_context: Any) -> None:
        controller = ray.get_runtime_context().current_actor
        self._mailbox.put.remote(self._training, {"kind": CONTROLLER, "controller": controller})

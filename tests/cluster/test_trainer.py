"""The trainer of a local Ray starts no actors that only a cluster needs."""

from __future__ import annotations

from typing import Any

import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from raynas.cluster.trainer import LocalTrainer


def given_to_the_controller(kind: type[TorchTrainer], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `fit` would start Ray Train's controller with."""
    given: dict[str, Any] = {}

    class Ended(Exception):
        """In place of a result."""

    def start(self: TorchTrainer, **arguments: Any) -> None:
        given.update(arguments)
        raise Ended

    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", start)
    with pytest.raises(Ended):
        kind(print, scaling_config=ScalingConfig(num_workers=2)).fit()
    return given


@pytest.mark.usefixtures("ray_session")
def test_a_local_training_has_three_actors_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, local = (given_to_the_controller(kind, monkeypatch) for kind in (TorchTrainer, LocalTrainer))
    names = [[type(each).__name__ for each in given["callbacks"]] for given in (whole, local)]
    left_out = {"PlacementGroupCleanerCallback", "DatasetsCallback"}  # earlier and later releases may lack them
    assert [name for name in names[0] if name not in left_out] == names[1]
    policy = local["scaling_policy"]
    policy.after_controller_start(None)  # an autoscaler would be asked for room
    policy._maybe_send_resource_request()
    assert getattr(policy, "_coordinator_client", None) is None
    decision = policy.make_decision_for_non_running_worker_group()
    assert decision.num_workers == 2 == whole["scaling_policy"].scaling_config.num_workers

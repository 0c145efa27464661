"""The twins of cluster.yaml for Google Cloud and Kubernetes, read by Ray's own code."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
AWS: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
TWINS = ROOT / "jobs/clusters"
GCP: dict[str, Any] = yaml.safe_load((TWINS / "gcp.yaml").read_text())
KUBERAY: dict[str, Any] = yaml.safe_load((TWINS / "kuberay.yaml").read_text())


def test_ray_accepts_google_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)  # the mounts are relative to it
    prepared = prepare_config(copy.deepcopy(GCP))
    validate_config(prepared)
    assert prepared["available_node_types"]["gpu"]["max_workers"] == 4


def test_google_clouds_differs_from_amazons_in_the_provider_only() -> None:
    own = {"provider", "auth", "available_node_types", "head_setup_commands"}
    assert {key: value for key, value in GCP.items() if key not in own} == {
        key: value for key, value in AWS.items() if key not in own
    }
    for name in ("head", "gpu"):
        amazon, google = (dict(config["available_node_types"][name]) for config in (AWS, GCP))
        del amazon["node_config"], google["node_config"]
        assert amazon == google
    assert GCP["available_node_types"]["gpu"]["node_config"]["scheduling"]["provisioningModel"] == "SPOT"
    assert "scheduling" not in GCP["available_node_types"]["head"]["node_config"]


def test_rays_autoscaler_reads_what_kubernetes_can_become() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    resource = copy.deepcopy(KUBERAY)
    resource["metadata"]["namespace"] = "default"  # which the API server fills in
    derived = _derive_autoscaling_config_from_ray_cr(resource)  # validates it by Ray's schema
    head, gpu = derived["available_node_types"]["headgroup"], derived["available_node_types"]["gpu"]
    assert head["resources"]["CPU"] == 0 and head["resources"].get("GPU", 0) == 0
    assert (gpu["min_workers"], gpu["max_workers"], gpu["resources"]["CPU"], gpu["resources"]["GPU"]) == (0, 4, 8, 1)
    assert derived["idle_timeout_minutes"] == AWS["idle_timeout_minutes"]


def test_kubernetes_has_the_token_and_is_closed_to_the_world() -> None:
    spec = KUBERAY["spec"]
    assert spec["authOptions"] == {"mode": "token"} and spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "NodePort" not in str(KUBERAY) and "LoadBalancer" not in str(KUBERAY) and "hostNetwork" not in str(KUBERAY)
    ray = next(line for line in AWS["setup_commands"] if "ray==" in line)
    assert f"ray=={spec['rayVersion']}" in ray  # one Ray for all


def test_pods_share_their_image_and_have_shared_memory() -> None:
    spec = KUBERAY["spec"]
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    for pod in pods:
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "shared-memory")
        assert volume["emptyDir"]["medium"] == "Memory"


def test_the_job_runs_a_command_of_ours_on_that_cluster() -> None:
    from raynas.commands.main import COMMANDS, make_parser

    job = yaml.safe_load((TWINS / "kuberay_job.yaml").read_text())
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": KUBERAY["metadata"]["name"]}
    program, *arguments = job["spec"]["entrypoint"].split()
    assert program == "raynas" and arguments[0] in COMMANDS
    make_parser().parse_args(arguments)  # raises UserError for an option that there is not

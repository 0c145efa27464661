"""cluster.yaml against Ray's own schema and defaults, and its commands in a shell of its own."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from raynas.cluster.growth import types_in
from tests.cluster.machines_of_ones_own import on_machines_of_ones_own

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
COMMANDS = [
    command
    for key in (
        "initialization_commands",
        "setup_commands",
        "head_setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    )
    for command in CONFIG[key]
]


def validate(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)  # the mounts are relative to it
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    return prepared


def test_ray_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = validate(CONFIG, monkeypatch)
    assert prepared["head_node_type"] == "head"
    assert prepared["max_workers"] == prepared["available_node_types"]["gpu"]["max_workers"] == 4


@pytest.mark.parametrize("key, value", [("max_worker", 4), ("idle_timeout_minutes", "ten"), ("head_node_type", "hed")])
def test_ray_would_refuse_a_mistake(key: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match=key if key != "idle_timeout_minutes" else "ten"):
        validate({**CONFIG, key: value}, monkeypatch)


def test_no_gpu_waits_idle() -> None:
    head, gpu = CONFIG["available_node_types"]["head"], CONFIG["available_node_types"]["gpu"]
    assert head["resources"]["GPU"] == 0 and head["max_workers"] == 0
    assert gpu["resources"]["GPU"] > 0 and gpu["min_workers"] == 0
    assert gpu["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in head["node_config"]
    assert any("--num-gpus=0" in command for command in CONFIG["head_start_ray_commands"])


def test_what_the_cluster_can_become_is_told_where_ray_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (gpu,) = types_in(validate(CONFIG, monkeypatch))
    assert str(gpu) == "4 x gpu (8 CPU, 1 GPU)"
    own = on_machines_of_ones_own(CONFIG, "192.168.1.10", "192.168.1.11")
    assert types_in(validate(own, monkeypatch)) == []  # Ray starts none for a demand: it cannot know what they have


def test_only_ssh_is_open_to_the_world() -> None:
    pytest.importorskip("boto3", reason="Ray's AWS provider needs it")
    from ray.autoscaler._private.aws.config import _create_default_inbound_rules

    rules = _create_default_inbound_rules({"sg-0"}, CONFIG["provider"]["security_group"].get("IpPermissions", []))
    world = [rule for rule in rules if rule.get("IpRanges") or rule.get("Ipv6Ranges")]
    assert [(rule["FromPort"], rule["ToPort"]) for rule in world] == [(22, 22)]
    start = " ".join(CONFIG["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in start and "0.0.0.0" not in start


def test_every_shell_has_the_token_mode_and_the_environment_first(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("# the user's own\n")
    for _ in range(2):  # `ray up` runs it again on an update
        for command in CONFIG["initialization_commands"]:
            subprocess.run(["bash", "-c", command], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / ".bashrc").read_text().count("RAY_AUTH_MODE") == 1
    shown = subprocess.run(
        ["bash", "-c", 'source ~/.bashrc; python3 -c "import os; print(os.environ)"; echo "$RAY_AUTH_MODE:$PATH"'],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert shown.splitlines()[-1].startswith(f"token:{tmp_path}/venv/bin:")
    assert "'RAY_AUTH_MODE': 'token'" in shown and "'RAY_ADDRESS': 'auto'" in shown  # exported, not only set


def test_the_token_goes_to_every_node_and_is_not_in_the_file() -> None:
    assert CONFIG["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert "RAY_AUTH_TOKEN=" not in (ROOT / "cluster.yaml").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_shell(command: str) -> None:
    subprocess.run(["bash", "-n", "-c", command], check=True)


def test_what_is_mounted_is_small_and_is_the_whole_project(tmp_path: Path) -> None:
    from raynas.cluster.submission import check_working_dir

    for remote, local in CONFIG["file_mounts"].items():
        if local.startswith("~"):
            continue
        target = tmp_path / Path(remote).relative_to("~/raynas")
        if (ROOT / local).is_dir():
            shutil.copytree(ROOT / local, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / local, target)
    assert check_working_dir(tmp_path, limit_mib=10) > 0
    # Enough to install from: the build backend reads the metadata, the licence, the package and the spaces.
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.slow
def test_a_local_ray_leaves_no_token_and_the_mode_as_it_was(tmp_path: Path) -> None:
    script = """
import os, ray
from raynas.cluster.connection import ray_cluster
with ray_cluster(cpus=3):
    print(os.environ["RAY_AUTH_MODE"], ray.cluster_resources()["CPU"] >= 3)
print(os.environ.get("RAY_AUTH_MODE"))
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["disabled True", "None"], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_ray_for_all_nodes() -> None:
    installs = [command for command in CONFIG["setup_commands"] if "pip install" in command]
    assert any("ray==" in command and "raynas[energy,jobs]" in command for command in installs)

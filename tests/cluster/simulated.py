"""A Ray cluster on this machine that grows and shrinks like one in a cloud: Ray's autoscaler with its fake nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"
HEAD_TYPE = "ray.head.default"
"""The head's node id and type, which Ray's fake provider has as constants."""

MARK = "RAYNAS_SIMULATED_CLUSTER"
"""An environment variable by which the processes of a cluster are found."""

STORE = 100 * 2**20
"""Bytes of each node's object store."""


_DRAIN = """
import subprocess, sys, ray
ray.init(log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and "node:__internal_head__" not in node["Resources"]]
ray.shutdown()
options = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot", "--node-id", nodes[0]]
subprocess.run(["ray", "drain-node", *options, "--deadline-remaining-seconds", sys.argv[1]], check=True)
"""


@dataclass(frozen=True)
class SimulatedCluster:
    """A running cluster.

    Attributes:
        address: `host:port` of its head.
        environment: of processes that use it; `RAY_ADDRESS` is in it.
        mark: the value of MARK in the environment of its processes.
    """

    address: str
    environment: dict[str, str]
    mark: str

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """Start a command on the head, with stdout and stderr in one stream."""
        environment = {**self.environment, **more}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *command: str, timeout: float = 300, **more: str) -> tuple[int, str]:
        """Run a command on the head, and return its exit code and its output."""
        process = self.start(*command, **more)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return -1, output + f"\n(killed after {timeout:.0f} s)"
        return process.returncode, output

    def drain(self, seconds: int) -> None:
        """Announce that one of the worker nodes will be taken away, as a cloud does for a spot node."""
        code, output = self.run(sys.executable, "-c", _DRAIN, str(seconds))
        assert code == 0, output

    @contextmanager
    def without_new_nodes(self) -> Iterator[None]:
        """Halt the autoscaler in the block."""
        pid = next(
            pid for pid in _processes(self.mark) if b"v2/monitor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def processes(self) -> list[int]:
        """Return the pids of all living processes of the cluster, and of the commands that use it."""
        return _processes(self.mark)

    def raylets(self) -> list[int]:
        """Return the pids of the worker nodes' raylets, the oldest first."""
        found = []
        for pid in _processes(self.mark):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(b"raylet") and b"--head" not in arguments:
                found.append(pid)
        return sorted(found)


@contextmanager
def autoscaling_cluster(
    folder: Path, node: Mapping[str, float], most: int = 2, idle_s: float = 10.0, head_cpus: int = 0
) -> Iterator[SimulatedCluster]:
    """Start a head whose autoscaler starts up to `most` worker nodes, and ends them when they are idle.

    Args:
        folder: for the configuration and the head's output.
        node: resources of each worker node, such as `{"CPU": 2, "accelerator": 1}`.
        most: worker nodes that there can be.
        idle_s: seconds after which an idle node is ended.
        head_cpus: CPUs of the head.
    """
    mark, port = uuid.uuid4().hex, _free_port()
    address = f"127.0.0.1:{port}"
    file = folder / "cluster.json"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_configuration(address, node, most, idle_s, head_cpus)))
    environment = {
        **os.environ,
        MARK: mark,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "1",  # on unless somebody switches it off, as the other tests do
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # nodes at 127.0.0.1, which no other machine reaches
    }
    autoscaler = {
        "RAY_ADDRESS": "",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    command = [
        "ray", "start", "--head", f"--port={port}", "--node-ip-address=127.0.0.1", f"--num-cpus={head_cpus}",
        "--num-gpus=0", f"--object-store-memory={STORE}", f"--temp-dir=/tmp/ray-{mark[:8]}", "--dashboard-port=0",
        f"--autoscaling-config={file}",
    ]  # fmt: skip
    try:
        with (folder / "head.log").open("w") as log:
            subprocess.run(command, env={**environment, **autoscaler}, stdout=log, stderr=log, check=True, timeout=120)
        yield SimulatedCluster(address, {**environment, "RAY_ADDRESS": address}, mark)
        errors = next(Path(f"/tmp/ray-{mark[:8]}").glob("session_2*/logs/monitor.err")).read_text()
        assert "Traceback" not in errors, f"the autoscaler ended: {errors}"
    finally:
        _end(mark)


def _configuration(
    address: str, node: Mapping[str, float], most: int, idle_s: float, head_cpus: int
) -> dict[str, object]:
    provider = {
        "type": "external",  # for the type fake_multinode Ray reads a file that is not in its wheel
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "launch_multiple": True,
        "head_node_id": HEAD_ID,
        "gcs_address": address,
    }
    worker = {"resources": {"object_store_memory": STORE, **node}, "node_config": {}}
    return {
        "cluster_name": "simulated",
        "max_workers": most,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 4.0,
        "provider": provider,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": head_cpus}, "node_config": {}, "min_workers": 0, "max_workers": 0},
            "worker": {**worker, "min_workers": 0, "max_workers": most},
        },
        "head_node_type": HEAD_TYPE,
        # Ray fills these in from a provider's defaults, which an external one lacks.
        **{key: {} for key in ("file_mounts", "auth")},
        **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands")},
        **{key: [] for key in ("setup_commands", "head_setup_commands", "worker_setup_commands")},
        **{key: [] for key in ("head_start_ray_commands", "worker_start_ray_commands")},
        "file_mounts_sync_continuously": False,
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _end(mark: str) -> None:
    """Kill every process of a cluster, and those that use it."""
    for _ in range(50):
        found = _processes(mark)
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _processes(mark: str) -> list[int]:
    """Return the pids of a cluster's living processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append(int(folder.name))
    return found

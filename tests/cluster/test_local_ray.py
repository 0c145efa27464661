"""The Ray that a command starts: who can reach it, that it may not start, and that it may be lost."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raynas.cluster import lost_ray
from raynas.cluster.connection import ray_cluster
from raynas.documents import write_yaml
from raynas.errors import UserError
from raynas.presets.preset import override
from tests.small_run import PRESET, small_run

ROOT = Path(__file__).parents[2]
LISTEN = "0A"


def environment(**more: str) -> dict[str, str]:
    """Of a user who has set nothing of Ray's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONUNBUFFERED": "1", **more}


def processes(mark: str) -> Iterator[psutil.Process]:
    """Those with a variable in their environment, which everything that a command starts inherits."""
    for process in psutil.process_iter(["environ"]):
        if mark in (process.info["environ"] or {}):
            yield process


def listening(process: psutil.Process) -> set[str]:
    """The addresses that a process listens on, as Linux has them."""
    inodes = {}
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                words = re.findall("........", fields[1].partition(":")[0])
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)  # each in the machine's byte order
                inodes[f"socket:[{fields[9]}]"] = socket.inet_ntop(family, packed)
    found = set()
    try:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            if (target := str(descriptor.readlink())) in inodes:
                found.add(inodes[target])
    except OSError:  # it has ended
        pass
    return found


def kind(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return Path(words[0]).name.partition(".")[0] if words else ""


def test_what_is_seen_of_open_ports() -> None:
    with socket.create_server(("", 0)), socket.create_server(("127.0.0.1", 0)):
        assert {"0.0.0.0", "127.0.0.1"} <= listening(psutil.Process())


@pytest.mark.slow
def test_a_training_listens_on_loopback_alone_and_ends_in_one_line_when_ray_is_lost(tmp_path: Path) -> None:
    long = override(PRESET, {"recipe.epochs": 100_000, "recipe.checkpoints.every_epochs": 100_000})
    write_yaml(tmp_path / "preset.yaml", long.model_dump(mode="json", exclude_unset=True))
    run, mark = tmp_path / "run", f"RAYNAS_TEST_{os.getpid()}"
    command = [sys.executable, "-m", "raynas.commands.main", "train", str(tmp_path / "preset.yaml"), "--run", str(run)]
    command += ["--workers", "2"]
    with subprocess.Popen(
        command, env=environment(**{mark: "1"}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            addresses: dict[str, set[str]] = {}
            while not list(run.glob("tables/training/*.parquet")) and driver.poll() is None:
                time.sleep(1)  # a look takes the time of a CPU
                for process in processes(mark):
                    addresses.setdefault(kind(process), set()).update(listening(process))
            everywhere = {address for each in addresses.values() for address in each}
            assert everywhere <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, addresses
            assert {"gcs_server", "raylet", "python"} <= {name for name, found in addresses.items() if found}
            (victim,) = [process for process in processes(mark) if kind(process) == "raylet"]
            victim.send_signal(signal.SIGKILL)
            _, err = driver.communicate(timeout=60)  # Ray alone takes 74 s
            assert driver.returncode == 1
            # Ray's core writes errors of its own to the process's stderr, now and then.
            assert [line for line in err.splitlines() if not re.match(r"\[[\d\- :,]+ [EC] \d+ \d+\] ", line)] == [
                "raynas: Ray was lost: its process raylet has ended (it crashed, was killed, or the machine is short "
                f"of memory). To go on where it was: raynas {' '.join(command[3:])}"
            ]
        finally:
            left = list(processes(mark))
            for process in left:
                process.kill()
            psutil.wait_procs(left, timeout=10)


@pytest.mark.slow
def test_whatever_waits_is_interrupted_when_the_head_is_lost() -> None:
    script = """
import os, signal, time
import ray
from ray._private import worker
from raynas.cluster.connection import ray_cluster
from raynas.errors import ClusterError
try:
    with ray_cluster():
        never = ray.remote(num_cpus=0)(lambda: time.sleep(1000)).remote()
        os.kill(worker._global_node.all_processes["gcs_server"][0].process.pid, signal.SIGKILL)
        ray.get(never)
except ClusterError as error:
    print(error, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "Ray was lost: its process gcs_server has ended (it crashed, was killed, or the machine is short of memory)"
    ], done.stderr


@pytest.mark.slow
def test_a_head_that_is_lost_while_ray_starts_ends_the_command_with_one_line() -> None:
    """Ray's own code waits for it for a minute, out of reach of signals, and then ends the process."""
    script = """
import threading, time
import psutil
from raynas.cluster.connection import ray_cluster
def lose():
    while True:
        for process in psutil.Process().children():
            if process.name() == "gcs_server":
                time.sleep(1)
                process.kill()
                return
threading.Thread(target=lose, daemon=True).start()
with ray_cluster():
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=180
    )
    if "trying once more" in done.stderr:  # Ray found out by itself
        assert done.returncode == 0
        return
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "raynas: Ray was lost: its process gcs_server has ended (it crashed, was killed, or the machine is short of "
        "memory). The same command goes on where it was"
    )


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "raynas.commands.main", "search", run.root, "--replicas", "1"],
        env=environment(RAY_TMPDIR=str(tmp_path / ("x" * 120))),  # the paths of its sockets become too long
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first.startswith("raynas: Ray did not start on this machine (") and first.endswith("; trying once more")
    assert last.startswith("raynas: Ray did not start on this machine (") and "raynas search" in last


@pytest.mark.slow
def test_a_start_that_failed_is_tried_again_and_the_environment_is_as_it_was(tmp_path: Path) -> None:
    script = """
import logging, os
class Mend(logging.Handler):
    def emit(self, record):
        del os.environ["RAY_TMPDIR"]
logging.getLogger("raynas.cluster.connection").addHandler(Mend())
import ray
before = dict(os.environ)
from raynas.cluster.connection import on_loopback, ray_cluster
with ray_cluster(cpus=3):
    print(ray.is_initialized(), on_loopback(), ray.cluster_resources()["CPU"] >= 3)
changed = {name for name in before if os.environ.get(name) != before[name]}
print(ray.is_initialized(), changed, "RAY_AUTH_MODE" in os.environ)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(RAY_TMPDIR=str(tmp_path / ("x" * 120)), GLOO_SOCKET_IFNAME="eth7"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["True True True", "False {'RAY_TMPDIR'} False"], done.stderr


@pytest.mark.slow
def test_no_cluster_where_the_address_points_is_the_users_to_mend(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "raynas.commands.main", "search", run.root, "--replicas", "1"],
        env=environment(RAY_ADDRESS="127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    (line,) = done.stderr.splitlines()
    # The system's own answer: Ray itself goes on asking for a minute and a half.
    assert line.startswith("raynas: no Ray cluster can be used at RAY_ADDRESS=127.0.0.1:1 (Connection refused)")
    assert done.returncode == 2


def test_a_cluster_is_as_talkative_as_its_users_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def refuse(**options: Any) -> None:
        asked.update(options)
        raise RuntimeError("nobody there")

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(UserError, match=r"RAY_ADDRESS=auto \(nobody there\)"), ray_cluster():
        pass
    assert asked == {"address": "auto"}


@pytest.mark.slow
def test_whatever_waits_is_interrupted_when_the_raylet_of_a_cluster_s_head_is_lost(tmp_path: Path) -> None:
    script = """
import os, signal, time
import ray
from ray._common.utils import reset_ray_address
from ray.cluster_utils import Cluster
from raynas.cluster import lost_ray
from raynas.cluster.connection import ray_cluster
from raynas.errors import ClusterError
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
reset_ray_address()  # other processes would look for this cluster
os.environ["RAY_ADDRESS"] = cluster.address
lost_ray.SILENCE_S = 5.0
try:
    with ray_cluster():
        never = ray.remote(num_cpus=0)(lambda: time.sleep(1000)).remote()
        time.sleep(2)
        os.kill(cluster.head_node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        began = time.monotonic()
        ray.get(never)
except ClusterError as error:
    print(f"{error} {time.monotonic() - began < 60}", flush=True)
cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
os._exit(0)
"""
    with open(tmp_path / "output", "w+") as output:  # a pipe would be held open by processes of Ray
        command = [sys.executable, "-c", script]
        subprocess.run(command, env=environment(), stdout=output, stderr=subprocess.STDOUT, timeout=180)
        output.seek(0)
        told = output.read()
    assert re.search(r"^Ray was lost: the raylet of this node at .* has not answered .* True$", told, re.M), told


def test_the_head_and_the_raylet_of_this_node_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(lost_ray, "SILENCE_S", -1.0)
    now = [time.monotonic()]
    monkeypatch.setattr("raynas.cluster.lost_ray.time.monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as head, socket.create_server(("127.0.0.1", 0)) as raylet:
        (_, port), (_, own) = head.getsockname(), raylet.getsockname()
        context.gcs_address = f"127.0.0.1:{port}"
        nodes = [{"NodeID": "here", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": own}]
        elsewhere = {"NodeID": "elsewhere", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}
        monkeypatch.setattr("ray.nodes", lambda: [elsewhere, *nodes])
        ended = lost_ray.silent_part()

        def look() -> str:
            now[0] += 3.0
            return str(ended())

        assert look() == "None"
        raylet.close()
        assert look().startswith(f"the raylet of this node at 127.0.0.1:{own} has not answered")
        head.close()
        assert look().startswith(f"its head at 127.0.0.1:{port} has not answered")

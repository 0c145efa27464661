"""Commands whose processes are killed at random: drivers, workers, replicas, trials, tasks, nodes, the head.

The number of kills, over all commands in turn, is that of the environment variable `RAYNAS_TEST_KILLS`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from raynas.documents import write_yaml
from raynas.presets.preset import override
from tests.cluster.simulated import SimulatedCluster, autoscaling_cluster
from tests.commands.test_killed import results
from tests.small_run import PRESET, SPACE, small_run

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("RAYNAS_TEST_KILLS", "8"))
SETTINGS: dict[str, Any] = {
    "recipe": {"epochs": 4, "checkpoints": {"every_epochs": 1}, "health": {"probe_every": 1}},
    "retrain": {"seeds": [0, 1], "recipe": {"epochs": 4}},
    "space_evolution": {"iterations": 2, "archs": 20, "fewest": 1},
    "tune": {
        "params": {"recipe.lr": {"low": 1e-3, "high": 1e-2}, "fix.depth": {"choices": [3, 4]}},
        "objectives": {"searched": "max"},
        "sampler": {"name": "tpe", "n_startup_trials": 2},
        "pruner": {"name": "asha", "min_resource": 1, "reduction_factor": 2},
        "trials": 3,
    },
}
ADAPTED: dict[str, Any] = {
    "recipe.teachers": {"models": [{"network": "original"}]},
    "adapt": {"images": 32, "untrained": 12, "head": "new"},
    "reference": None,
    "retrain.seeds": [0],
}
ABLATION = {
    "rows": {"as it is": {}, "not smoothed": {"recipe.smoothing": 0.0}},
    "seeds": [0],
    "measure": ["probes", "searched"],
}
COMMANDS = {
    "pipeline": "{preset} --run {run} --replicas 2",
    "evolve-space": "{preset} --run {run} --replicas 1",
    "rank": "{run} --archs 24 --buckets 2 --proxies naswot --train 2 --set retrain.recipe.epochs=4 --replicas 2",
    "adapt": "{folder}/model --preset {folder}/adapted.yaml --run {run} --replicas 2",
    "tune": "{preset} --run {run} --replicas 1 --at-a-time 1",  # so that a tuning repeats itself
    "ablate": "{folder}/ablation.yaml --run {run} --replicas 1",
}
"""The words of each command, which get `--workers 1`, too."""
EACH = max(1, KILLS // len(COMMANDS))
"""The most kills in one command."""
PROCESSES = {"worker": b"TrainWorker", "replica": b"Replica", "trial": b"ImplicitFunc", "task": b"_with_threads"}
"""Part of the title of each kind of Ray process."""
BETWEEN = (0.0, 0.6)
"""Time between a kill, or a start, and the next kill, as a part of what the undisturbed command takes."""
A_LOOK = 0.2
"""Probability that a process is killed when it is seen, ten times a second, once it is time to."""


def victims(cluster: SimulatedCluster, driver: subprocess.Popen[bytes]) -> dict[str, list[int]]:
    """Return the pids of what can be killed now, by kind; the head's are those of its GCS."""
    titles = {pid: Path(f"/proc/{pid}/cmdline") for pid in cluster.processes()}
    found: dict[str, list[int]] = {"driver": [driver.pid], "node": cluster.raylets(), "head": []}
    for pid, file in titles.items():
        with suppress(OSError):
            title = file.read_bytes()
            if title.split(b"\0")[0].endswith(b"gcs_server"):
                found["head"].append(pid)
            for kind, part in PROCESSES.items():
                if title.startswith(b"ray::") and part in title:
                    found.setdefault(kind, []).append(pid)
    return {kind: sorted(pids) for kind, pids in found.items() if pids}


class Killer:
    """Kills of random processes at random times, the same for a seed as far as the machine's speed allows.

    The kind killed least so far comes next and is waited for, since some live briefly.

    Attributes:
        left: number of kills to come in the command that is disturbed.
        seconds: what it takes when it is not.
        kinds: kinds of processes that it has.
    """

    def __init__(self, seed: int):
        self.random, self.killed, self.head_lost = random.Random(seed), Counter[str](), False
        self.left, self.seconds, self.kinds = 0, 0.0, frozenset[str]()

    def wait(self) -> None:
        """Let some time go by before the next kill."""
        self.next = time.monotonic() + self.random.uniform(*BETWEEN) * self.seconds

    def strike(self, found: dict[str, list[int]]) -> str | None:
        """Kill one of these processes if it is time to; return its kind."""
        if not self.left or self.head_lost or (late := time.monotonic() - self.next) < 0:
            return None
        among = sorted(self.kinds if late < self.seconds else found)
        kind = min(among, key=lambda kind: (self.killed[kind], self.random.random()))
        if kind not in found or self.random.random() > A_LOOK:
            return None
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(found[kind]), signal.SIGKILL)
            self.killed[kind] += 1
            self.left -= 1
        self.head_lost = kind == "head"  # then nothing else is worth a kill
        self.wait()
        return kind


def command(name: str, folder: Path, run: str) -> list[str]:
    words = COMMANDS[name].format(folder=folder, preset=folder / "preset.yaml", run=folder / run)
    return [sys.executable, "-m", "raynas", name, *words.split(), "--workers", "1"]


def write_inputs(folder: Path) -> None:
    """Write what the commands are given."""
    preset = override(PRESET, SETTINGS)
    for name, each in {"preset": preset, "adapted": override(preset, ADAPTED)}.items():
        write_yaml(folder / f"{name}.yaml", each.model_dump(mode="json", exclude_unset=True))
    write_yaml(folder / "ablation.yaml", {"preset": "preset.yaml", **ABLATION})
    small_run(folder / "model").write_arch("best", SPACE.largest())


@contextmanager
def running(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, whose output is appended to a file, and kill it at the end of the block if it still runs."""
    with (folder / "output.txt").open("a") as output:
        more = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words, env={**environment, **more}, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(name: str, folder: Path, run: str, clusters: Clusters, killer: Killer) -> frozenset[str]:
    """Give a command again and again until it ends by itself; return the kinds of processes that were seen."""
    seen = set[str]()
    if name == "rank":
        small_run(folder / run)
    for _ in range(50):
        killer.wait()
        killer.head_lost = False
        kinds: list[str] = []
        with running(command(name, folder, run), folder, clusters.now.environment) as process:
            until = time.monotonic() + 1200
            while process.poll() is None:
                assert time.monotonic() < until, f"after {kinds} it hangs: {(folder / 'output.txt').read_text()}"
                found = victims(clusters.now, process)
                seen.update(found)
                if (kind := killer.strike(found)) is not None:
                    kinds.append(kind)
                    until = time.monotonic() + 1200
                time.sleep(0.1)
        with (folder / "output.txt").open("a") as output:
            print(f"--- {name} {run}: {kinds} killed, exit {process.returncode}", file=output)
        if "head" in kinds:  # even if the command had just ended
            clusters.renew()
        if process.returncode == 0:
            return frozenset(seen)
        assert kinds, (folder / "output.txt").read_text()
    raise AssertionError((folder / "output.txt").read_text())


class Clusters:
    """The cluster in use, and new ones in place of those whose head was lost."""

    def __init__(self, folder: Path):
        self._folder, self._stack, self._count = folder, ExitStack(), 0

    def __enter__(self) -> Clusters:
        self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def renew(self) -> None:
        self._stack.close()
        self._count += 1
        folder = self._folder / f"cluster{self._count}"
        self.now = self._stack.enter_context(autoscaling_cluster(folder, {"CPU": 1}, most=2, idle_s=30))


@pytest.mark.slow
@pytest.mark.timeout(3000 + 180 * KILLS)
def test_random_kills_change_no_result(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    killer = Killer(seed=int(os.environ.get("RAYNAS_TEST_SEED", "0")))
    undisturbed, seconds, kinds, runs = {}, {}, {}, 0
    with Clusters(tmp_path) as clusters:
        for name in COMMANDS:
            began = time.monotonic()
            kinds[name] = finish(name, tmp_path, f"undisturbed-{name}", clusters, killer)
            seconds[name] = time.monotonic() - began
            undisturbed[name] = results(tmp_path / f"undisturbed-{name}")
            assert any(undisturbed[name].values())
        while left := KILLS - sum(killer.killed.values()):
            name = list(COMMANDS)[runs % len(COMMANDS)]
            killer.left, killer.seconds, killer.kinds = min(left, EACH), seconds[name], kinds[name]
            finish(name, tmp_path, f"run{runs}", clusters, killer)
            found = results(tmp_path / f"run{runs}")
            assert {key: value for key, value in found.items() if undisturbed[name].get(key) != value} == {}
            assert found.keys() == undisturbed[name].keys()
            runs += 1
    print(f"killed: {dict(killer.killed)} in {runs} runs; there were {sorted(set().union(*kinds.values()))}")

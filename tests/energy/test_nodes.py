"""Counters of other nodes, on a real cluster of three on this machine; one goes and one comes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own: a process has one Ray, and the other tests' is another one.
SCRIPT = """
import json, logging, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from raynas.energy import counters
from raynas.energy.nodes import OtherNodes

folder = Path(sys.argv[1])
counters.POWERCAP, counters.GPUS = folder / "powercap", folder / "gpus"
memory = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **memory})
ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
node = cluster.add_node(num_cpus=1, **memory)
cluster.wait_for_nodes()
others, rounds = OtherNodes(), []

@ray.remote(num_cpus=1)
class Busy:
    def ready(self): ...

busy = [Busy.remote() for _ in range(2)]
ray.get([actor.ready.remote() for actor in busy])  # every CPU is taken: readings need none
rounds.append(others.read(last=False))
(folder / "powercap" / "intel-rapl:0" / "energy_uj").write_text("9000000")
rounds.append(others.read(last=False))
cluster.add_node(num_cpus=1, **memory)
cluster.wait_for_nodes()
rounds.append(others.read(last=False))
cluster.remove_node(node)
time.sleep(1)
rounds.append(others.read(last=True))
counters.POWERCAP = folder / "none"  # what does not wrap is not read in between
quiet = OtherNodes()
rounds.append([len(quiet.read(last)) for last in (False, False, True)])

def plain(reading):
    return [reading.machine, *(counter.joules for counter in reading.counters.values())]

Path(sys.argv[2]).write_text(json.dumps([[[plain(reading) for reading in each] for each in rounds[:-1]], rounds[-1]]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_every_other_node_is_read(tmp_path: Path) -> None:
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, value in {"name": "package-0", "energy_uj": "5000000", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(value)
    out = tmp_path / "rounds.json"
    script = tmp_path / "rounds.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{SCRIPT}")
    subprocess.run([sys.executable, script, tmp_path, out], check=True, timeout=200, cwd=ROOT)
    rounds, quiet = json.loads(out.read_text())
    machines = {reading[0] for each in rounds for reading in each}
    assert len(machines) == 1  # nodes of one machine know that they are
    assert [[reading[1:] for reading in each] for each in rounds] == [[[5.0]], [[9.0]], [[9.0]] * 2, [[9.0]]]
    assert quiet == [1, 0, 1]

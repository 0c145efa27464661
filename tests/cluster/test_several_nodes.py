"""Replicas on several nodes of a real cluster on this machine, whose head computes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In a process of its own: a process has one Ray, and the other tests' is another one.
SCRIPT = """
import json, logging, sys
import numpy as np
import ray, torch
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.space import load_space
from tests.scoring.scoring_parts import Linear

memory = {"object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
for _ in range(3):
    cluster.add_node(num_cpus=2, **memory)
cluster.wait_for_nodes()
ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
space = load_space("digits/vit")
archs = list(dict.fromkeys(space.decode(space.sample_codes(np.random.default_rng(0), 60))))[:40]
images = 2**18
pixels = torch.randint(0, 256, (images, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
parts = space, Linear(4), pixels, torch.arange(images) % 10
with ScorePool.from_parts(*parts, replicas=6, batch_size=2**14) as pool:
    pool.supervisor.wait_for_all()
    blocks = pool.score_block(archs, 0, 64)
    pool.supervisor.ask_all(lambda actor: actor.verify.remote(), 60.0)  # reads every page
    found = {}
    for node in ray.nodes():
        store = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats
        found[node["NodeID"]] = store.object_store_bytes_used
    replicas = [member.node for member in pool.supervisor.ready]
with LocalScorer.from_parts(*parts, batch_size=2**14) as local:
    expected = local.score_block(archs, 0, 64)
same = all(np.array_equal(*pair) for pair in zip(blocks, expected, strict=True)) and len(blocks) == 40
head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
print(json.dumps([found, replicas, same, head]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_each_node_holds_weights_and_images_once(tmp_path: Path) -> None:
    """4 MiB of weights and 16 MiB of images, mapped by two replicas on each of three nodes."""
    script = tmp_path / "several.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{SCRIPT}")
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0
    bytes_, replicas, same, head = json.loads(done.stdout.splitlines()[-1])
    assert sorted(map(replicas.count, set(replicas))) == [2, 2, 2] and head not in replicas
    assert same
    once = 20 * 2**20 + 8 * 2**18  # weights, images, and a label of 8 bytes for each image
    for node, held in bytes_.items():
        assert once <= held < once + 2**20, (node, bytes_)

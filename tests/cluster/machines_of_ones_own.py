"""cluster.yaml for machines of one's own, as docs/cluster.md says."""

from __future__ import annotations

import copy
from typing import Any


def on_machines_of_ones_own(config: dict[str, Any], head: str, worker: str) -> dict[str, Any]:
    """Return cluster.yaml with another provider; of its commands only the head's number of CPUs is not the file's."""
    local = {key: copy.deepcopy(value) for key, value in config.items() if "node_type" not in key}
    local["provider"] = {"type": "local", "head_ip": head, "worker_ips": [worker]}
    local["auth"] = {"ssh_user": "root", "ssh_private_key": "~/.ssh/id_ed25519"}
    local["min_workers"] = local["max_workers"] = 1
    start = local["head_start_ray_commands"]
    start[-1] = start[-1].replace("--num-gpus=0", "--num-cpus=0 --num-gpus=0")
    return local

"""The columns of an arch in tables."""

from __future__ import annotations

import json
from typing import Any

from raynas.costs.cost import cost
from raynas.space import Arch


def arch_columns(arch: Arch) -> dict[str, Any]:
    """Return the columns that every table of networks has of an arch."""
    costs = cost(arch.space, [arch])
    return {
        "arch": arch.id,
        "network": arch.network_id,
        "values": json.dumps(arch.to_dict()),
        "macs": int(costs["macs"][0]),
        "params": int(costs["params"][0]),
        "space": arch.space.fingerprint,
    }

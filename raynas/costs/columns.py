"""The columns of an arch in tables."""

from __future__ import annotations

import json
from typing import Any

from raynas.costs.cost import cost
from raynas.space import Arch


def named(arch: Arch) -> dict[str, Any]:
    """Return the columns that say which arch a row is about."""
    return {"arch": arch.id, "network": arch.network_id, "values": json.dumps(arch.to_dict())}


def arch_columns(arch: Arch) -> dict[str, Any]:
    """Return the columns that every table of networks has of an arch."""
    costs = cost(arch.space, [arch])
    counted = {"macs": int(costs["macs"][0]), "params": int(costs["params"][0])}
    return {**named(arch), **counted, "space": arch.space.fingerprint}

"""Costs of archs without building a network: multiply-accumulates, parameters, and sampling within bounds."""

from raynas.costs.chain_builder import span
from raynas.costs.constraints import Bounds, Constraints, CostFunction
from raynas.costs.cost import COSTS, breakdown, cost
from raynas.costs.sampling import sample_within
from raynas.costs.scaling import scale_to_macs

__all__ = [
    "COSTS",
    "Bounds",
    "Constraints",
    "CostFunction",
    "breakdown",
    "cost",
    "sample_within",
    "scale_to_macs",
    "span",
]

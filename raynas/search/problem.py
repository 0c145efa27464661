"""The problem that a search solves: a space, objectives, constraints and costs."""

from __future__ import annotations

from collections.abc import Mapping

from raynas.costs import COSTS, Bounds, Constraints, CostFunction, cost
from raynas.errors import UserError
from raynas.search.objectives import Direction, Objectives
from raynas.space import Arch, Space, check_space
from raynas.text import shown


class Problem:
    """A search problem: the archs of a space within bounds on their costs, and the objectives that rank them.

    Attributes:
        space: the search space.
        objectives: the objectives and their directions.
        constraints: inclusive bounds on costs.
    """

    def __init__(
        self,
        space: Space,
        objectives: Mapping[str, Direction] | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        costs: Mapping[str, CostFunction] | None = None,
    ):
        """Build the problem.

        Args:
            space: the search space.
            objectives: `max` or `min` by name, of scores or of costs; by default the largest accuracy.
            constraints: inclusive bounds by cost.
            costs: custom costs by name, as functions of codes, for objectives and constraints.

        Raises:
            UserError: an objective, a constraint or a cost is wrong; the message names it.
        """
        check_space(space)
        self.space = space
        self.constraints = Constraints(space, {} if constraints is None else constraints, costs)
        known = [*COSTS, *self.constraints.functions]
        self.objectives = Objectives({"accuracy": "max"} if objectives is None else objectives, known)

    @property
    def tie_costs(self) -> list[str]:
        """The costs that decide between equal scores: the constrained ones in order, or MACs if there are none."""
        return list(self.constraints.bounds) or ["macs"]

    def allows(self, costs: Mapping[str, float]) -> bool:
        """Return True if the costs of one arch meet every bound."""
        return all(low <= costs[name] <= high for name, (low, high) in self.constraints.bounds.items())

    def costs_of(self, arch: Arch) -> dict[str, float]:
        """Return the costs of one arch, by name; it may be off the grid of the space if all costs are counted.

        Raises:
            UserError: there are custom costs, and the arch has no code.
        """
        on_grid = arch in self.space
        counted = cost(self.space if on_grid else arch.space, [arch])
        costs = {name: float(values[0]) for name, values in counted.items()}
        if functions := self.constraints.functions:
            if not on_grid:
                raise UserError(
                    f"{', '.join(functions)} of arch {arch.id} is not known: it is off the grid of "
                    f"space {shown(self.space.name)}"
                )
            codes = self.space.encode([arch])
            costs |= {name: float(self.constraints.custom(name, codes)[0]) for name in functions}
        return costs

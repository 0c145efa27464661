"""The recipe of each network that is retrained: the preset's, with its changes for small networks."""

from __future__ import annotations

import math
from collections.abc import Callable

from raynas.costs import cost
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.space import Arch
from raynas.text import shown
from raynas.training.recipe import Recipe

RecipeOf = Callable[[Arch], Recipe]


def recipe_of(preset: Preset, size: tuple[int, int], progress: Progress = silent, finetune: bool = False) -> RecipeOf:
    """Return a function that gives each network's recipe, and says in a line which of `retrain.below` hold for it.

    Args:
        size: the run's image size (height, width), at which multiply-accumulates are counted.
        progress: called with these lines.
        finetune: True for the recipe of fine-tuning at another image size.
    """

    def of(arch: Arch) -> Recipe:
        macs = math.inf
        if preset.retrain.below:
            space = arch.space.with_input(size=size)
            macs = int(cost(space, [space.arch(arch)])["macs"][0])
        for rule in preset.retrain.below:
            if macs < rule.macs:
                progress(
                    f"{arch.id} has {macs:,} MACs, fewer than {rule.macs:,.0f}: its recipe has {shown(rule.recipe)}"
                )
        return preset.finetune_recipe_at(macs) if finetune else preset.retrain_recipe_at(macs)

    return of

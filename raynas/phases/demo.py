"""The demo: the whole way on 1,797 real images of digits, in a few minutes on two CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from raynas.progress.heartbeat import heartbeat

if TYPE_CHECKING:
    from raynas.phases.pipeline import PipelineResult

PRESET = "digits/preset"
OVERRIDES = {"retrain.seeds": [0]}


def run_demo(
    run_dir: str | Path, workers: int = 2, replicas: int = 2, say: Callable[[str], None] = print
) -> PipelineResult:
    """Run the demo, or go on with it.

    Args:
        run_dir: where everything goes.
        workers, replicas: as of `raynas.phases.pipeline.pipeline`.
        say: called with the lines of the story.
    """
    began = time.monotonic()
    say(
        "raynas looks for the best small vision transformer that reads handwritten digits (8 x 8 pixels)\n"
        "within a budget of multiply-accumulates (MACs). It trains one large network that contains all candidates,\n"
        "scores hundreds of them without training them, and trains only the winner.\n"
        f"Everything goes to {run_dir}. Stop it whenever you like: the same command goes on where it was."
    )
    with heartbeat("importing PyTorch"):
        from raynas.phases.pipeline import pipeline
        from raynas.presets.preset import load_preset

        outcome = pipeline(load_preset(PRESET, OVERRIDES), run_dir, workers, replicas, say=say)
    say(f"\nThe winner: {outcome.run.name}/best/arch.yaml")
    say(f"Its files:  {outcome.exported}")
    say(f"Took {(time.monotonic() - began) / 60:.1f} minutes. Open the report in a browser:")
    say(outcome.report)
    return outcome

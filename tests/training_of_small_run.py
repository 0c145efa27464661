"""What a finished training leaves in a run directory, made without Ray Train, whose start takes longest of all."""

from __future__ import annotations

from pathlib import Path

from raynas.data.load import load_data
from raynas.phases.training_record import Recorder, write_supernet
from raynas.runs.run import Run
from raynas.training.context import Context
from raynas.training.loop import train_loop
from tests.small_run import PRESET, SPACE


def trained_run(path: Path) -> Run:
    """A run directory that the job takes for one that it has finished."""
    run, data = Run(path, create=True), load_data("digits")
    state = train_loop(SPACE, data, PRESET.plan, PRESET.recipe)
    recorder = Recorder(run, SPACE, data, PRESET.recipe)
    recorder.history(state.history)
    write_supernet(run, state.capture(Context()), SPACE, data, PRESET.recipe)
    return run

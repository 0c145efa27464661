"""Measurement of spaces as in S3: a supernet is trained on each space, and its subnets are scored."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raynas.cluster.resources import Resources
from raynas.documents import write_yaml
from raynas.outer.evolution.loop import can_move, check_evolution
from raynas.outer.evolution.record import iteration_run, read_space_file, space_file
from raynas.outer.evolution.warm_start import check_inheritable
from raynas.phases.phase import phase
from raynas.phases.preflight import preflight
from raynas.phases.search import make_scorer
from raynas.phases.train import recorded, train
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run
from raynas.runs.searches import Scoring
from raynas.search.config import TIMED
from raynas.space import Arch, Space

INIT = "init.safetensors"
Bounds = dict[str, tuple[float | None, float | None]]


def prepare(preset: Preset, resources: Resources, progress: Progress = silent) -> tuple[Space, dict[str, Any]]:
    """Refuse a preset whose evolution cannot be carried out; return its first space and what measurements depend on."""
    ready = preflight(preset, resources, progress=progress, look=False)
    space = ready.space
    config, bounds = preset.space_evolution, constraints_of(preset)
    check_evolution(space, config, bounds)
    if not can_move(space, config, bounds):
        progress(
            f"nothing will move in {space.name}: of the {config.archs} archs to be scored no axis has two choices with "
            f"{config.fewest} each: raise space_evolution.archs, or lower space_evolution.fewest"
        )
    if config.warm_start:
        check_inheritable(space)
    if timed := [name for name in TIMED if name in preset.search.constraints]:
        progress(f"limits on {' and '.join(timed)} are for searches in the spaces; the spaces evolve without them")
    about = recorded(ready)
    return space, {name: about[name] for name in ("data", "plan", "recipe")}


def constraints_of(preset: Preset) -> Bounds:
    """Return the bounds for scored subnets: those of the preset's search on counted costs."""
    return {name: bounds for name, bounds in preset.search.constraints.items() if name not in TIMED}


def by_supernet(
    run: Run, preset: Preset, resources: Resources, progress: Progress
) -> Callable[[int, Space, Sequence[Arch]], list[float | None]]:
    """Return a `raynas.outer.evolution.loop.Measure` that trains a supernet and scores its subnets.

    Finished parts are read back from the iteration's run directory.
    """

    def measure(index: int, space: Space, archs: Sequence[Arch]) -> list[float | None]:
        here = iteration_run(run, index, create=True)
        progress(
            f"iteration {index}: training a supernet on {space.name}, {space.cardinality():,} archs, in {here.name}"
        )
        with _as_file(run, index, space) as path:
            own = preset.model_copy(update={"space": path})
            init = _inherited(run, here, index, space, own, progress) if preset.space_evolution.warm_start else None
            train(preflight(own, resources, here, look=False), here, progress, init)
        attempt = phase(here, "search", "space evolution", cluster=resources.replicas > 0, progress=progress)
        with make_scorer(here, Scoring(), resources) as scorer, attempt:
            rows = scorer.score(archs, progress, f"iteration {index}")
        failed = [row for row in rows if row["accuracy"] is None]
        if failed:
            progress(f"{len(failed):,} of {len(rows):,} subnets could not be scored: {failed[0]['reason']}")
        return [row["accuracy"] for row in rows]

    return measure


def _inherited(run: Run, here: Run, index: int, space: Space, preset: Preset, progress: Progress) -> str | None:
    """Return the file of an iteration's initial weights, inherited from the one before; None for the first iteration.

    Weights that the earlier supernet does not hold are drawn as usual.
    """
    import torch

    from raynas.nets import build_supernet
    from raynas.nets.weights import load_supernet, weights_file
    from raynas.outer.evolution.warm_start import inherit
    from raynas.training.streams import derive

    if not index:
        return None
    if not here.exists(INIT):
        before = iteration_run(run, index - 1)
        old = load_supernet(read_space_file(run, index - 1), before.weights())
        torch.manual_seed(derive(preset.recipe.seed, "weights"))
        new = build_supernet(space)
        share = inherit(new, old)
        with here.lock():
            here.write_bytes(INIT, weights_file(new.state_dict()))
        progress(f"  it begins with {share:.0%} of its weights from iteration {index - 1}")
    return INIT


@contextmanager
def _as_file(run: Run, index: int, space: Space) -> Iterator[str]:
    """Provide an iteration's space as a local file, since presets name spaces by files."""
    if run.path is not None:
        yield run.local_or_uri(space_file(index))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{index}.yaml"
        write_yaml(path, space.to_dict())
        yield str(path)

"""Supernet training, as a Ray Train job or in this process; the driver alone writes the run directory.

Workers keep their checkpoints through Ray Train (several, on the run's own filesystem) and send events to a mailbox.
The driver reads it, shows progress, and appends rows. A row belongs to one entry of the training's history, which every
checkpoint carries, so that no entry is lost or written twice if a process is killed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from raynas.cluster.connection import ray_cluster
from raynas.phases.phase import phase
from raynas.phases.preflight import Ready
from raynas.phases.teachers import teacher_settings
from raynas.phases.training_job import TrainingJob, train_here
from raynas.phases.training_record import WHAT, Recorder, probed, write_supernet
from raynas.phases.where import placed
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.files import SUPERNET_WEIGHTS
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.space.counting import shown_count
from raynas.training.context import Event
from raynas.training.progress import TrainingLines


def train(
    ready: Ready,
    run_dir: Run | str | os.PathLike[str],
    progress: Progress = silent,
    init: str | None = None,
    after_epoch: Callable[[int, float], None] = lambda epoch, accuracy: None,
) -> Run:
    """Train the supernet of a checked preset, with Ray Train or in this process; see `raynas.train`.

    Args:
        init: a safetensors file in the run directory with the weights to begin with, instead of random ones.
        after_epoch: called with the epoch and the mean accuracy of the probes each time that these are scored; a
            training that is resumed calls it for its earlier epochs first.
    """
    progress = reporter(progress)
    preset, space, images, resources = ready.preset, ready.space, ready.data, placed(ready.resources)
    recipe, where = preset.recipe, f"shared by {resources.shown_workers} worker(s)"
    if not resources.workers:
        where = f"in this process with {resources.cpus} thread(s)"
    run = Run(run_dir, create=True)
    with run.lock():
        begins = {} if init is None else {"init": hashlib.sha256(run.read_bytes(init)).hexdigest()[:12]}
        begin(run, "train", {**recorded(ready), **begins})
        run.write_space(space)
        run.write_preset(preset)
        if run.is_trained:
            progress(f"the supernet in {run.name} is trained already")
            return run
        progress(
            f"training the supernet of {space.name} ({shown_count(space.cardinality())} archs) on {images.name}: "
            f"{len(images.train):,} images, {recipe.epochs} epochs, sampler {preset.plan.sampler.name}"
        )
        progress(f"  {ready.estimate}")
        base = f"{recipe.lr:g} per {recipe.lr_base_batch}" if recipe.lr_base_batch else "as given"
        progress(
            f"  batch {recipe.batch_size}, {where}"
            + (f" in {recipe.accumulate} parts each" if recipe.accumulate > 1 else "")
            + f"; learning rate {recipe.effective_lr:.3g} ({base})"
            + (f" after {recipe.warmup_epochs} epoch(s) of warm-up" if recipe.warmup_epochs else "")
        )
        with progress.doing("training the supernet", unit="steps") as activity:
            recorder, lines = Recorder(run, space, images, recipe), TrainingLines(progress, activity, recipe.epochs)
            told = 0  # scorings of the probes

            def take(event: Event) -> None:
                nonlocal told
                history = event.get("history", ())
                recorder.history(history)
                lines.event(event)
                for epoch, accuracy in probed(history)[told:]:
                    told += 1
                    after_epoch(epoch, accuracy)

            assert preset.data is not None
            job = TrainingJob(WHAT, space, preset.data, preset.plan, recipe, start=init)
            if not resources.workers:
                with phase(run, WHAT, progress=progress):
                    trained = train_here(run, job, images, ready.teachers, resources, take)
            else:
                cluster = ray_cluster(resources.most_workers * resources.cpus, progress, dashboard=True)
                with cluster, phase(run, WHAT, cluster=True, progress=progress):
                    from raynas.phases.ray_train import fit  # local: it imports Ray

                    trained = fit(run, job, resources, take, progress)
            recorder.history(trained.history)
            lines.history(trained.history)
        write_supernet(run, trained.state, space, images, recipe)
        progress(f"supernet written to {run.local_or_uri(SUPERNET_WEIGHTS)}")
    return run


def recorded(ready: Ready) -> dict[str, Any]:
    """Return the settings that the weights depend on, as a run directory keeps them."""
    return {
        "space": ready.space.to_dict(),
        "data": ready.data.config.recorded(ready.data.fingerprint),
        "plan": ready.preset.plan.model_dump(mode="json"),
        "recipe": ready.preset.recipe.model_dump(mode="json", exclude={"checkpoints"}),
        **teacher_settings(ready.teachers),
    }

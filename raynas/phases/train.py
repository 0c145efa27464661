"""Supernet training, as a Ray Train job or in this process; the driver alone writes the run directory.

Workers keep their checkpoints through Ray Train (several, on the run's own filesystem) and send events to a mailbox.
The driver reads it, shows progress, and appends rows. A row belongs to one entry of the
training's history, which every checkpoint carries: whatever is killed, no entry is written twice and none is lost.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from raynas.cluster.connection import ray_cluster
from raynas.data.config import DataConfig
from raynas.data.load import Data
from raynas.errors import ConfigError, UserError
from raynas.phases.images import check_images, check_made_for, describe_reading
from raynas.phases.inputs import estimate, load_inputs, resolve_data, with_known_skips
from raynas.phases.phase import phase
from raynas.phases.preflight import check_later, check_training
from raynas.phases.run_context import RunContext, read_weights
from raynas.phases.teachers import teacher_settings
from raynas.phases.training_record import WHAT, Recorder, write_supernet
from raynas.presets.preset import Preset, load_preset, override
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.files import SUPERNET_WEIGHTS
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun
from raynas.space import Space, load_space
from raynas.space.counting import shown_count
from raynas.training.context import Event
from raynas.training.loop import train_loop
from raynas.training.progress import TrainingLines
from raynas.training.teachers import Teachers


def train(
    preset: Preset | str | os.PathLike[str],
    data: DataConfig | Mapping[str, Any] | str | None = None,
    run_dir: Run | str | os.PathLike[str] = "runs/supernet",
    workers: int = 1,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    overrides: Mapping[str, Any] | None = None,
    max_failures: int = 3,
    wait_s: float = 1800.0,
    progress: Progress = silent,
    init: str | None = None,
    look: bool = True,
) -> Run:
    """Train a preset's supernet into a run directory, with Ray Train or in this process; see `raynas.train`.

    Args:
        max_failures: failures in a row, without an epoch finished between them, after which training gives up.
        wait_s: seconds to wait for a cluster whose resources are not there or not free yet.
        init: a safetensors file in the run directory with the weights to begin with, instead of random ones.
        look: True to read every image once before training begins, to report all faulty ones at once.

    Raises:
        UserError: see `raynas.train`.
    """
    progress = reporter(progress)
    preset = _resolved(preset, data, overrides)
    recipe = preset.recipe
    ranks = 1 if workers == 0 else workers
    micro_batch = recipe.micro_batch(ranks)
    if workers == 0 and use_gpu and not torch.cuda.is_available():
        raise UserError(
            "torch finds no GPU here: leave out --gpu (use_gpu), or train with Ray Train workers that have one"
        )
    if recipe.amp == "fp16" and not use_gpu:
        raise ConfigError("recipe.amp fp16 needs GPUs: train with use_gpu, or set recipe.amp to none (or bf16)")
    begun = has_begun(run_dir, "train")
    if begun:
        preset = with_known_skips(preset, Run(run_dir))
    elif look:
        check_images(preset, progress)
    preset, asked = preset.model_copy(update={"data": resolve_data(preset, load_space(preset.space))}), preset
    space, images = load_inputs(preset)
    if look and not begun:
        for line in describe_reading(asked, images):
            progress(line)
    per_worker = {"CPU": 1.0, **({"GPU": 1.0} if use_gpu else {}), **(resources_per_worker or {})}

    # What can be refused is refused before anything is written: a run directory remembers what it began with.
    teachers = check_training(preset, space, images, workers)
    check_later(preset, space, progress)
    estimated = estimate(space, images, preset.plan, recipe)

    run = Run(run_dir, create=True)
    with run.lock():
        begins = {} if init is None else {"init": hashlib.sha256(run.read_bytes(init)).hexdigest()[:12]}
        begin(run, "train", {**_settings(preset, space, images, teachers), **begins})
        run.write_space(space)
        run.write_preset(preset)
        if run.is_trained:
            progress(f"the supernet in {run.name} is trained already")
            return run
        progress(
            f"training the supernet of {space.name} ({shown_count(space.cardinality())} archs) on {images.name}: "
            f"{len(images.train):,} images, {recipe.epochs} epochs, sampler {preset.plan.sampler.name}"
        )
        progress(f"  {estimated}")
        base = f"{recipe.lr:g} per {recipe.lr_base_batch}" if recipe.lr_base_batch else "as given"
        progress(
            f"  {f'{workers} worker(s)' if workers else 'this process'} x {micro_batch} images"
            + (f" x {recipe.accumulate} accumulated" if recipe.accumulate > 1 else "")
            + f" = batch {recipe.batch_size}; learning rate {recipe.effective_lr:.3g} ({base})"
            + (f" after {recipe.warmup_epochs} epoch(s) of warm-up" if recipe.warmup_epochs else "")
        )
        with progress.doing("training the supernet", unit="steps") as activity:
            recorder, lines = Recorder(run, space, images, recipe), TrainingLines(progress, activity, recipe.epochs)

            def take(event: Event) -> None:
                recorder.event(event)
                lines.event(event)

            if workers == 0:
                with phase(run, WHAT, progress=progress), _threads(int(per_worker["CPU"])):
                    context = RunContext(run, recipe.checkpoints.keep, take, "cuda" if use_gpu else "cpu")
                    weights = read_weights(run, init)
                    trained = train_loop(space, images, preset.plan, recipe, context, init=weights, teachers=teachers)
                    state = trained.capture(context)
            else:
                cluster = ray_cluster(cpus=int(max(1, workers * per_worker["CPU"])))
                with cluster, phase(run, WHAT, cluster=True, progress=progress):
                    from raynas.phases.ray_train import fit  # local: it imports Ray

                    options: dict[str, Any] = {"init": init, "max_failures": max_failures, "wait_s": wait_s}
                    state = fit(
                        run,
                        preset,
                        space,
                        workers,
                        per_worker,
                        **options,
                        take=take,
                        progress=progress,
                        activity=activity,
                    )
            recorder.history(state["history"])
            lines.history(state["history"])
        write_supernet(run, state, space, images, recipe)
        progress(f"supernet written to {run.local_or_uri(SUPERNET_WEIGHTS)}")
    return run


def _resolved(preset: Preset | str | os.PathLike[str], data: Any, overrides: Mapping[str, Any] | None) -> Preset:
    loaded = preset if isinstance(preset, Preset) else load_preset(os.fspath(preset))
    before = loaded
    if data is not None:
        given = data.model_dump() if isinstance(data, DataConfig) else data
        loaded = override(loaded, {"data": DataConfig.model_validate(given).model_dump()})
    loaded = override(loaded, overrides or {})
    check_made_for(before, loaded)
    return loaded


def _settings(preset: Preset, space: Space, data: Data, teachers: Teachers | None) -> dict[str, Any]:
    """What the weights depend on."""
    return {
        "space": space.to_dict(),
        "data": data.config.recorded(data.fingerprint),
        "plan": preset.plan.model_dump(mode="json"),
        "recipe": preset.recipe.model_dump(mode="json", exclude={"checkpoints"}),
        **teacher_settings(teachers),
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """In the block torch uses so many threads, as a Ray Train worker does: results differ with their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)

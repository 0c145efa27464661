"""Supernet training, as a Ray Train job or in this process; the driver alone writes the run directory.

Workers keep their checkpoints through Ray Train (several, on the run's own filesystem) and send events to a small
actor, the board. The driver reads the board, prints progress, and appends rows. A row belongs to one entry of the
training's history, which every checkpoint carries: whatever is killed, no entry is written twice and none is lost.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from raynas.cluster.connection import on_loopback, ray_cluster
from raynas.cluster.mailbox import Mailbox
from raynas.data.config import DataConfig
from raynas.data.load import Data
from raynas.errors import ConfigError, TrainingCollapsed, UserError
from raynas.phases.images import check_images, check_made_for, describe_reading
from raynas.phases.inputs import estimate, load_inputs, resolve_data, with_known_skips
from raynas.phases.phase import phase
from raynas.phases.preflight import check_later, check_training
from raynas.phases.run_context import RUN, STATE, RunContext, read_weights
from raynas.phases.teachers import teacher_settings
from raynas.phases.training_record import WHAT, Recorder, write_supernet
from raynas.presets.preset import Preset, load_preset, override
from raynas.progress.reporter import Progress, Reporter, reporter, silent
from raynas.runs.files import CHECKPOINTS, SUPERNET_WEIGHTS
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun
from raynas.space import Space, load_space
from raynas.space.counting import shown_count
from raynas.training.context import Event, State, read_state
from raynas.training.loop import train_loop
from raynas.training.progress import TrainingLines
from raynas.training.teachers import Teachers

ERRORS = {kind.__name__: kind for kind in (ConfigError, TrainingCollapsed, UserError)}
LAST_NEWS_S = 30.0


def train(
    preset: Preset | str | os.PathLike[str],
    data: DataConfig | Mapping[str, Any] | str | None = None,
    run_dir: Run | str | os.PathLike[str] = "runs/supernet",
    workers: int = 1,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    overrides: Mapping[str, Any] | None = None,
    max_failures: int = 3,
    wait_s: float = 300.0,
    progress: Progress = silent,
    init: str | None = None,
    look: bool = True,
) -> Run:
    """Train a preset's supernet into a run directory, with Ray Train or in this process.

    Run again with the same arguments it goes on from the last checkpoint, whatever had been killed, and returns at once
    when training is finished. The number of workers may change in between.

    Args:
        preset: a preset, a shipped preset's name, or a path to one.
        data: in place of the preset's dataset: a name, folder, URI or `DataConfig`.
        run_dir: a local path or any pyarrow filesystem URI; on a cluster all nodes must reach it.
        workers: Ray Train workers; each takes an equal share of every batch. 0 trains in this process, without Ray,
            to the same weights as one worker.
        use_gpu: one GPU for each worker, or for this process.
        resources_per_worker: as Ray's ScalingConfig takes them; by default one CPU (and one GPU with `use_gpu`).
            Torch uses as many threads, without Ray, too.
        overrides: of the preset, by dotted key: `{"recipe.epochs": 3}`.
        max_failures: how often dead workers are replaced before the job gives up.
        wait_s: how long to wait for a cluster that has not the resources yet (it may be growing).
        progress: called with lines of text, such as `print`.
        init: a safetensors file in the run directory, with the weights to begin with instead of random ones.
        look: whether every image is read once before training begins, to tell all that cannot be read at once.

    Returns:
        The run, with its space, preset and supernet, and the tables `training`, `probes` and `phases`.

    Raises:
        ConfigError: preset, data and number of workers do not fit each other, or what comes after training is wrong.
        InfeasibleError: nothing in the space meets the sampler's budget, or the search's constraints.
        RunDirError: the run directory is in use, or began with other settings.
        TrainingCollapsed: training broke down twice; the message is the verdict.
        UserError: the cluster has not the resources, or training failed for good.
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
        with progress.doing("training the supernet") as activity:
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
                    _wait_for_resources(workers, per_worker, wait_s, progress)
                    progress(f"  starting {workers} Ray Train worker(s)")
                    given = (workers, use_gpu, per_worker, max_failures, init)
                    state = _fit(run, preset, space, *given, take, progress)
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


def _wait_for_resources(workers: int, per_worker: Mapping[str, float], wait_s: float, progress: Reporter) -> None:
    """Ray would wait for resources for ever and in silence: wait in the open, and not for ever.

    Raises:
        UserError: they did not come.
    """
    import ray

    began = time.monotonic()
    with progress.doing("waiting for the cluster to grow") as activity:
        while True:
            have = ray.cluster_resources()
            missing = {key: need * workers for key, need in per_worker.items() if have.get(key, 0) < need * workers}
            if not missing:
                return
            text = ", ".join(f"{need:g} {key} (the cluster has {have.get(key, 0):g})" for key, need in missing.items())
            if time.monotonic() - began >= wait_s:
                raise UserError(f"{workers} worker(s) need {text}: use fewer workers, or a larger cluster")
            activity.update(detail=f"{workers} worker(s) need {text}")
            time.sleep(min(1.0, wait_s))


def _fit(
    run: Run,
    preset: Preset,
    space: Space,
    workers: int,
    use_gpu: bool,
    per_worker: dict[str, float],
    max_failures: int,
    init: str | None,
    take: Callable[[Event], None],
    progress: Reporter,
) -> State:
    """Run the Ray Train job to its end; the final state."""
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # workers import the user's modules from where they are
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")  # a busy machine imports torch slowly
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from raynas.training.rendezvous import FileRendezvous

    def work(config: dict[str, Any]) -> None:
        """Travels by value: Ray's controller, which only hands it on, need not import what workers do."""
        from raynas.phases import train_worker

        train_worker.work(config)

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    board: Any = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
    meeting = tempfile.TemporaryDirectory() if on_loopback() else None
    trainer = TorchTrainer(
        work,
        torch_config=None if meeting is None else FileRendezvous(folder=meeting.name),
        train_loop_config={
            "preset": preset.model_dump(mode="json"),
            "space": space.to_dict(),
            "mailbox": board,
            "run": run.uri,
            "init": init,
        },
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu, resources_per_worker=per_worker),
        run_config=RunConfig(
            name=RUN,
            storage_path=run.at(CHECKPOINTS),
            storage_filesystem=run.filesystem,
            failure_config=FailureConfig(max_failures=max_failures),
            checkpoint_config=CheckpointConfig(
                num_to_keep=max(2, preset.recipe.checkpoints.keep), checkpoint_score_attribute="probe_accuracy"
            ),
        ),
    )
    # Ray would replace the process's Ctrl-C handler for good by one that exits with its own code and no word of how to
    # go on. The interrupt is ours: Ray ends with this process, and the checkpoints are kept.
    trainer._register_sigint_handler = lambda controller: None  # type: ignore[attr-defined]
    news = _News(board, take)
    try:
        with progress.polling(news.fetch):
            result = trainer.fit()
        news.fetch(LAST_NEWS_S)
    except TrainingFailedError as error:
        news.fetch(LAST_NEWS_S)
        raise news.user_error or UserError(_why(error, run)) from error
    finally:
        ray.kill(board)
        if meeting is not None:
            meeting.cleanup()
    if news.user_error is not None:
        raise news.user_error
    if result.checkpoint is None:
        raise UserError(f"{run.name}: training ended without a checkpoint; run the same command again")
    with result.checkpoint.as_directory() as folder:
        return read_state(Path(folder) / STATE)


def _why(error: Exception, run: Run) -> str:
    failures = getattr(error, "worker_failures", None) or {}
    causes = {rank: str(cause).strip().splitlines()[-1] for rank, cause in failures.items() if str(cause).strip()}
    text = "; ".join(f"worker {rank}: {cause}" for rank, cause in causes.items()) or str(error).splitlines()[-1]
    return (
        f"training failed for good ({text}). The checkpoints are kept: run the same command again to go on ({run.name})"
    )


class _News:
    """Hands the mailbox's events to a function, and keeps a mistake of the user's that a worker met."""

    def __init__(self, mailbox: Any, take: Callable[[Event], None]):
        self.user_error: UserError | None = None
        self._mailbox, self._take = mailbox, take
        self._asked: Any = None  # an answer that is on its way

    def fetch(self, wait_s: float = 0.0) -> None:
        """Hand over what has arrived, after waiting for it so many seconds at most."""
        import ray

        self._asked = self._asked or self._mailbox.take.remote()
        if not ray.wait([self._asked], timeout=wait_s)[0]:
            return
        asked, self._asked = self._asked, None
        try:
            events, error = ray.get(asked)
        except ray.exceptions.RayActorError:
            return  # progress is lost, nothing else: rows are in the checkpoints, too
        for event in events:
            self._take(event)
        if error is not None:
            self.user_error = ERRORS.get(error[0], UserError)(error[1])

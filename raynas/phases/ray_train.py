"""Training with Ray Train: workers wherever the cluster has room, checkpoints in the run directory, events by mailbox.

The workers' resources are asked for at once, so that a cluster grows for them, and what is missing is shown. Workers
that are lost, with or without their node, are replaced, and training continues from the newest checkpoint.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from raynas.cluster.connection import is_local, on_loopback
from raynas.cluster.growth import describe_shortage
from raynas.cluster.mailbox import STARTED, open_mailbox
from raynas.cluster.resources import Resources
from raynas.errors import ClusterError, ConfigError, TrainingCollapsed, UserError
from raynas.phases.run_context import RUN, STATE
from raynas.presets.preset import Preset
from raynas.progress.reporter import Activity, Reporter
from raynas.runs.files import CHECKPOINTS
from raynas.runs.run import Run
from raynas.space import Space
from raynas.text import duration, one_line
from raynas.training.context import Event, State, read_state
from raynas.training.rendezvous import FileRendezvous

ERRORS = {kind.__name__: kind for kind in (ConfigError, TrainingCollapsed, UserError)}
MOST_FAILURES = 3  # in a row, without an epoch finished between them, that are made good
WAIT_S = 1800.0  # for the workers' resources, whenever workers are started
LAST_NEWS_S = 30.0
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks


def fit(
    run: Run,
    preset: Preset,
    space: Space,
    resources: Resources,
    init: str | None,
    take: Callable[[Event], None],
    progress: Reporter,
    activity: Activity,
) -> State:
    """Train with Ray Train workers to the end, and return the final state.

    Args:
        space: with the image size, channels and classes of the data.
        resources: the workers.
        init: the run's file with the weights to begin with; None for random ones.
        take: gets the workers' events.
        activity: shows what workers wait for until they run.

    Raises:
        UserError: the resources did not come, or training failed for good.
    """
    check_this_machine(resources)
    config = {
        "preset": preset.model_dump(mode="json"),
        "space": space.to_dict(),
        "run": run.uri,
        "init": init,
    }
    checkpoints = CheckpointConfig(
        num_to_keep=max(2, preset.recipe.checkpoints.keep), checkpoint_score_attribute="probe_accuracy"
    )
    failures = 0
    progress(f"  starting {resources.workers} Ray Train worker(s)")
    while True:
        attempt = _Attempt(run, config, resources, checkpoints, take)
        try:
            return attempt.train(progress, activity)
        except TrainingFailedError as error:
            failures = 1 if attempt.epochs else failures + 1
            if failures > MOST_FAILURES:
                raise UserError(
                    f"training failed for good ({_causes(error)}). The checkpoints are kept: run the same command "
                    f"again to go on ({run.name})"
                ) from error
            progress(f"  {_causes(error)}: starting again from the newest checkpoint")


def check_this_machine(resources: Resources) -> None:
    """Check that a local Ray has some resources, since no machine is ever added to it.

    Raises:
        UserError: it has not; the message names the missing resources.
    """
    needed = resources.of(resources.workers)
    have = ray.cluster_resources() if is_local() else needed
    missing = [
        f"{need:g} {name} (this machine has {have.get(name, 0):g})"
        for name, need in needed.items()
        if have.get(name, 0) < need
    ]
    if missing:
        raise UserError(
            f"{resources.workers} worker(s) need {', '.join(missing)}: use fewer workers, or a cluster (RAY_ADDRESS)"
        )


class _Attempt:
    """One run of Ray Train's controller, which ends when training is finished or a worker is lost.

    Attributes:
        epochs: epochs that its workers finished.
    """

    def __init__(
        self,
        run: Run,
        config: Mapping[str, Any],
        resources: Resources,
        checkpoints: CheckpointConfig,
        take: Callable[[Event], None],
    ):
        self.epochs = 0
        self._run, self._workers, self._take = run, resources.workers, take
        self._needed = resources.of(resources.workers)
        self._config, self._checkpoints = dict(config), checkpoints
        self._scaling = ScalingConfig(
            num_workers=resources.workers, use_gpu=resources.gpus > 0, resources_per_worker=resources.of(1)
        )
        self._mailbox: Any = None
        self._controller: Any = None
        self._asked: Any = None  # pending answer of the mailbox
        self._error: UserError | None = None
        self._began = self._looked = time.monotonic()
        self._started = False
        self._first_epoch: int | None = None

    def train(self, progress: Reporter, activity: Activity) -> State:
        """Train to the end, or until a worker is lost.

        Raises:
            TrainingFailedError: a worker was lost.
            UserError: a worker met a user's mistake, or the resources did not come.
        """
        # Workers import the user's modules from where they are, and a lost one is soon noticed.
        os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
        self._mailbox = open_mailbox()
        meeting = tempfile.TemporaryDirectory() if on_loopback() else None
        trainer = TorchTrainer(
            _work,
            torch_config=None if meeting is None else FileRendezvous(folder=meeting.name),
            train_loop_config={**self._config, "mailbox": self._mailbox},
            scaling_config=self._scaling,
            run_config=RunConfig(
                name=RUN,
                storage_path=self._run.at(CHECKPOINTS),
                storage_filesystem=self._run.filesystem,
                checkpoint_config=self._checkpoints,
            ),
        )
        # Ray would replace the process's Ctrl-C handler for good by one that exits with its own code and no advice on
        # resuming. raynas handles the interrupt itself, and ends Ray's part through the controller given here.
        trainer._register_sigint_handler = self._keep_controller  # type: ignore[attr-defined]
        try:
            with progress.polling(lambda: self._poll(activity)):
                result = trainer.fit()
            self._fetch(activity, LAST_NEWS_S)
        except RayActorError as error:  # the controller was told to end
            raise self._error or ClusterError(f"Ray Train's controller was lost: {one_line(str(error))}") from error
        except TrainingFailedError:
            self._fetch(activity, LAST_NEWS_S)
            if self._error is not None:
                raise self._error from None
            raise
        except BaseException:
            self._end()
            raise
        finally:
            ray.kill(self._mailbox)
            if meeting is not None:
                meeting.cleanup()
        if self._error is not None:
            raise self._error
        if result.checkpoint is None:
            raise UserError(f"{self._run.name}: training ended without a checkpoint; run the same command again")
        with result.checkpoint.as_directory() as folder:
            return read_state(Path(folder) / STATE)

    def _keep_controller(self, controller: Any) -> None:
        self._controller = controller

    def _end(self) -> None:
        """End Ray Train's controller, with its workers and its requests to the autoscaler."""
        if self._controller is not None:
            ray.wait([self._controller.abort.remote()], timeout=10)

    def _poll(self, activity: Activity) -> None:
        """Handle the workers' events; before the first one, show what the cluster lacks, and give up after `WAIT_S`."""
        self._fetch(activity)
        now = time.monotonic()
        if self._started or self._error is not None or now - self._looked < LOOK_S:
            return
        self._looked = now
        lack = describe_shortage(self._needed)
        if lack is None:
            self._began = now
            activity.update(detail="workers are starting")
            return
        activity.update(detail=f"{self._workers} worker(s) wait for {lack}; for {duration(WAIT_S)} at most")
        if now - self._began > WAIT_S and self._controller is not None:
            self._error = UserError(
                f"{self._workers} worker(s) need {lack}; waited {duration(WAIT_S)}: use fewer workers, or a "
                "larger cluster"
            )
            self._end()

    def _fetch(self, activity: Activity, wait_s: float = 0.0) -> None:
        """Handle the events that have arrived, after waiting for them at most `wait_s` seconds."""
        self._asked = self._asked or self._mailbox.take.remote()
        if not ray.wait([self._asked], timeout=wait_s)[0]:
            return
        asked, self._asked = self._asked, None
        try:
            events, error = ray.get(asked)
        except RayActorError:
            return  # only progress is lost: rows are in the checkpoints, too
        for event in events:
            self._started = True
            if event["kind"] == STARTED:
                activity.update(detail="")
                continue
            if event["kind"] == "history":  # the first is of the checkpoint that training continues from
                epoch = event["history"][-1]["epoch"] if event["history"] else 0
                self._first_epoch = epoch if self._first_epoch is None else self._first_epoch
                self.epochs = epoch - self._first_epoch
            self._take(event)
        if error is not None:
            self._error = ERRORS.get(error[0], UserError)(error[1])


def _work(config: dict[str, Any]) -> None:
    """Train, as one worker. Imports are local, since Ray's controller, which only passes this on, needs none."""
    from raynas.phases import train_worker

    train_worker.work(config)


def _causes(error: Exception) -> str:
    """Return the reasons why workers were lost, in one line."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = {rank: str(cause).strip() for rank, cause in failures.items() if str(cause).strip()}
    text = "; ".join(f"worker {rank}: {_cause(cause)}" for rank, cause in causes.items())
    return text or str(error).strip().splitlines()[-1]


def _cause(text: str) -> str:
    if "node has died" in text or "node died" in text.lower():
        return "its node was lost"
    return text.splitlines()[-1]

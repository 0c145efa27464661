"""One training in a run directory, of a supernet or of a network: what is trained, on what, and from which weights.

This process carries it out, or Ray Train workers do (`raynas.phases.ray_train`), by the same loop.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from raynas.cluster.resources import Resources
from raynas.data.config import DataConfig
from raynas.data.held import Streamed
from raynas.data.load import Data, load_data
from raynas.nets import build_supernet
from raynas.nets.device import threads
from raynas.nets.weights import parse_weights
from raynas.phases.run_context import RunContext
from raynas.phases.where import device_here
from raynas.results.schemas import Row
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.scoring.replica import device_name
from raynas.scoring.score_arch import score_arch
from raynas.space import Space
from raynas.training.context import Context, Event, State
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe
from raynas.training.state import TrainingState
from raynas.training.teachers import Teachers


@dataclass(frozen=True)
class TrainingJob:
    """The training of a supernet, or of a network, which is the supernet of a one-point space.

    Attributes:
        name: name of its checkpoints' folder.
        space: space with the image size, channels and classes of the images.
        data: data, perhaps at another image size than the space's.
        train_on: `train` or `train+search`.
        start: weights to begin with: a safetensors file of the run, or a network of the run, which is resized to the
            space's images; None for random ones.
        scored: True to score the network on the search split when it is trained.
    """

    name: str
    space: Space
    data: DataConfig
    plan: Plan
    recipe: Recipe
    train_on: str = "train"
    start: str | Network | None = None
    scored: bool = False

    def load_data(self) -> Data:
        """Load the images, at the space's size."""
        return load_data(self.data).resized(self.space.input_size)


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        accuracy: accuracy on the search split; None if it was not scored.
        device: name of the device that it was trained on.
    """

    state: State
    accuracy: float | None
    device: str

    @property
    def weights(self) -> dict[str, Tensor]:
        """The result of training: averaged weights if there are any, else the raw ones."""
        return self.state["model" if self.state["ema"] is None else "ema"]

    @property
    def history(self) -> list[Row]:
        """One entry for each epoch and each rollback."""
        return self.state["history"]


def train_here(
    run: Run,
    job: TrainingJob,
    data: Data,
    teachers: Teachers | None,
    resources: Resources,
    take: Callable[[Event], None],
) -> Trained:
    """Train in this process, to the weights of one worker with the same CPUs.

    Args:
        resources: CPUs and GPUs of this process.
    """
    try:
        with threads(resources.cpus):
            return _train_here(run, job, data, teachers, device_here(resources), take)
    finally:
        if teachers is not None:
            teachers.leave()
        if torch.cuda.is_initialized():  # its memory is for the replicas that come next
            gc.collect()
            torch.cuda.empty_cache()


def _train_here(
    run: Run, job: TrainingJob, data: Data, teachers: Teachers | None, device: str, take: Callable[[Event], None]
) -> Trained:
    context = RunContext(run, job.name, job.recipe.checkpoints.keep, take, device)
    state = carry_out(job, run, data, teachers, context)
    return Trained(state.capture(context), *score(job, data, state, context.device))


def carry_out(job: TrainingJob, run: Run, data: Data, teachers: Teachers | None, context: Context) -> TrainingState:
    """Train to the end as one rank, from the newest checkpoint."""
    return train_loop(
        job.space,
        data,
        job.plan,
        job.recipe,
        context,
        init=_weights_to_start_from(job, run, context),
        train_on=job.train_on,
        teachers=teachers,
    )


def _weights_to_start_from(job: TrainingJob, run: Run, context: Context) -> dict[str, Tensor] | None:
    """Return the weights to begin with; batch norms of an inherited subnet are calibrated by rank 0 alone."""
    if job.start is None:
        return None
    if isinstance(job.start, str):
        return parse_weights(run.read_bytes(job.start), job.start)
    model = run.model(job.start, run.supernet(context.device), calibrated=context.rank == 0)
    return model.fitted_to(job.space).state_dict()


def score(job: TrainingJob, data: Data, state: TrainingState, device: torch.device) -> tuple[float | None, str]:
    """Return the accuracy of a trained network on the search split, or None, and the name of the device."""
    if not job.scored:
        return None, device_name(device)
    model = build_supernet(job.space)
    model.load_state_dict(state.weights)
    images = data.search.at(job.space.input_size, job.space.channels)
    labels = torch.from_numpy(images.labels).to(device)
    # Streamed whatever their number, since they are read once.
    found = score_arch(model.to(device).eval(), job.space.smallest(), Streamed(images), labels, data.normalisation)
    return float(found.top1.mean()), device_name(device)

"""Retraining of found networks: from scratch, or fine-tuned from the weights that they inherit or were trained to.

Images may be of another size than the run's. A network is the supernet of a one-point space, trained by the same loop.
Several seeds run side by side as Ray tasks if there are enough CPUs or GPUs. Finished networks are kept, and the same
call resumes with the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from raynas.costs.columns import arch_columns
from raynas.data.preprocessing import Preprocessing, preprocessing_of
from raynas.errors import ConfigError, RunDirError, UserError
from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases.network_training import NetworkTraining, Size, TrainedNetwork, device_here, train_all
from raynas.phases.phase import phase
from raynas.phases.teachers import load_teachers, teacher_settings
from raynas.progress.reporter import Progress, silent
from raynas.results.schemas import Row
from raynas.runs.networks import Network, check_images, input_size
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.runs.trained_supernet import TrainedSupernet
from raynas.space import Arch, Space
from raynas.training.preflight import check_recipe
from raynas.training.recipe import Recipe

How = Literal["scratch", "finetuned"]


def retrain(
    run: Run,
    archs: Sequence[Arch],
    recipe: Recipe,
    how: How = "scratch",
    seeds: Sequence[int] = (0,),
    train_on: str = "train",
    parallel: int | None = None,
    progress: Progress = silent,
    labels: Mapping[str, str] | None = None,
    size: int | Size | None = None,
    purpose: str = "retraining",
) -> list[Row]:
    """Train networks into `networks/<arch>-<how>-<seed>/` and table `networks`; see `raynas.retrain`.

    Args:
        recipe: recipe of the training; each of `seeds` replaces its seed.
        how: `scratch`, or `finetuned` from the weights inherited from the run's supernet.
        train_on: `train`, or `train+search` once the search is over.
        labels: names in progress lines by arch id, such as `winner`; by default the id.
        size: image size in pixels if not the run's; the folder's name then ends in it.
        purpose: name of the phase in table `phases`.

    Returns:
        The rows of table `networks`, all seeds of an arch together.
    """
    with run.lock():
        check_images(archs, run.space)
        data = run.data_config
        jobs = []
        for arch in archs:
            at, other_size = _at_size(arch, size)
            start = Network(arch, "inherited") if how == "finetuned" else None
            for seed in seeds:
                label = _label(arch, seed, other_size, labels)
                seeded = recipe.model_copy(update={"seed": seed})
                jobs.append(NetworkTraining(at, seeded, data, train_on, label, start, other_size))
        return _train_and_keep(run, jobs, parallel, progress, purpose)


def finetune_resized(
    run: Run,
    networks: Sequence[Network],
    recipe: Recipe,
    size: int | Size,
    parallel: int | None = None,
    progress: Progress = silent,
    labels: Mapping[str, str] | None = None,
) -> list[Row]:
    """Fine-tune networks that were trained in a run on images of another size; see `raynas.retrain`.

    Position embeddings are resized, and all other weights are kept (`Supernet.resized`). Each network keeps its seed
    and its training images. The new networks are in folders `networks/<network>-resized-<size>/`.

    Raises:
        RunDirError: a network of that name was trained with other settings.
        UserError: a network was not trained in this run, has this size already or cannot take such images, or the
            recipe does not fit.
    """
    with run.lock():
        data, rows = run.data_config, {row["path"]: row for row in run.network_rows()}
        jobs = []
        for network in networks:
            row = rows.get(network.path)
            if row is None:
                raise UserError(
                    f"{network.name} is no network that was trained in {run.name}: raynas retrain trains one"
                )
            at, other_size = _at_size(network.arch, size)
            if other_size is None:
                height, width = at.space.input_size
                raise UserError(f"{network.name} is of {height} x {width} pixels already: give another size")
            label = _label(network.arch, row["seed"], other_size, labels)
            seeded = recipe.model_copy(update={"seed": row["seed"]})
            jobs.append(NetworkTraining(at, seeded, data, row["trained_on"], label, network, other_size))
        return _train_and_keep(run, jobs, parallel, progress)


def _label(arch: Arch, seed: int, size: Size | None, labels: Mapping[str, str] | None) -> str:
    where = "" if size is None else f", {size[0]} x {size[1]}"
    return f"{(labels or {}).get(arch.id, arch.id)}, seed {seed}{where}"


def _at_size(arch: Arch, size: int | Size | None) -> tuple[Arch, Size | None]:
    """Return the arch for an image size, and that size; the arch itself and None if it has that size already."""
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is None or wanted == arch.space.input_size:
        return arch, None
    with torch.device("meta"):
        network = build_supernet(arch.space.fix(arch))
    return network.space_at(wanted).smallest(), wanted


def _train_and_keep(
    run: Run,
    jobs: Sequence[NetworkTraining],
    parallel: int | None,
    progress: Progress,
    purpose: str = "retraining",
) -> list[Row]:
    """Train jobs whose recipes differ in seeds alone, unless trained already; return the rows in their order."""
    if not jobs:
        return []
    _check_folders(run, jobs)
    supernet, recipe = run.supernet(), jobs[0].recipe
    jobs = [replace(job, checkpoints=run.checkpoints_of(job.network)) for job in jobs]
    todo = [job for job in jobs if not run.has_network(job.network)]
    for train_on in dict.fromkeys(job.train_on for job in todo):
        progress(_images_in_words(train_on))
    # Check everything before anything is written.
    if todo and (device := device_here(todo, parallel)) is not None:
        recipe.check_device(device)
    for job in todo:
        check_recipe(job.arch.space.fix(job.arch), job.recipe)
    teachers = {} if recipe.teachers is None else teacher_settings(load_teachers(recipe, supernet.data))
    for job in jobs:
        _begin(run, job, teachers)
    for job in jobs:
        if job not in todo:
            progress(f"{job.label}: trained already, {run.name}/{job.network.path}")
    if todo:
        data, starts = supernet.data, [_weights_to_start_from(run, job, supernet) for job in todo]
        attempt = partial(phase, run, purpose, jobs[0].network.how, progress=progress)
        with closing(train_all(todo, starts, parallel, progress, attempt)) as finished:
            for job, trained in finished:
                _keep(run, job, trained, preprocessing_of(data.resized(job.arch.space.input_size)))
                progress(f"{job.label}: trained, {run.name}/{job.network.path}")
    rows = {row["path"]: row for row in run.network_rows()}
    return [rows[job.network.path] for job in jobs]


def _images_in_words(train_on: str) -> str:
    """Return a line about the images that networks are trained on."""
    if train_on == "train":
        return "training on the training images alone: the search split is left for scoring (train_on: train)"
    return (
        "training on the training images and the search split, since the search is over (train_on: train+search); "
        "raynas retrain --on train leaves the search split out"
    )


def _check_folders(run: Run, jobs: Sequence[NetworkTraining]) -> None:
    """Refuse archs of equal values and different constants, which would share a folder.

    Raises:
        RunDirError: there are such archs; the message names the difference.
    """
    spaces: dict[str | None, Space] = {}
    for job in jobs:
        path = job.network.path
        if path not in spaces and (there := run.network_arch(job.network)) is not None:
            spaces[path] = there.space
        try:
            spaces.setdefault(path, job.arch.space).check_own(job.arch)
        except ConfigError as error:
            raise RunDirError(f"{run.name}/{path}: {error}; delete that folder to train this one") from error


def _begin(run: Run, job: NetworkTraining, teachers: Mapping[str, Any]) -> None:
    """Record the settings of a training, or check them if it began before."""
    network = job.network
    settings = {"recipe": job.recipe, "data": job.data, "train_on": job.train_on, "how": network.how}
    if job.size is not None:
        settings["size"] = job.size
    again = f"give the same, or delete {run.name}/{network.path} to train it anew"
    if not begin(run, f"{network.path}/training", {**settings, **teachers}, again) and job.checkpoints is not None:
        shutil.rmtree(job.checkpoints, ignore_errors=True)  # left by a network whose folder was deleted


def _weights_to_start_from(run: Run, job: NetworkTraining, supernet: TrainedSupernet) -> dict[str, Tensor] | None:
    """Return the initial weights of a training, for its image size; None for random ones."""
    if job.start is None:
        return None
    return run.model(job.start, supernet).resized(job.arch.space.input_size).state_dict()


def _keep(run: Run, job: NetworkTraining, trained: TrainedNetwork, reading: Preprocessing) -> None:
    """Write a network's files, then its rows, which mark it as complete."""
    network, path = job.network, job.network.path
    row = {
        **arch_columns(job.arch),
        **trained.row,
        "how": network.how,
        "trained_on": job.train_on,
        "path": path,
        "weights": weights_fingerprint(trained.weights),
        "seed": job.recipe.seed,
        **input_size(job.arch),
        "start": None if job.start is None else job.start.path or "supernet",
    }
    run.write_network(network, trained.weights, {**row, "preprocessing": reading})
    names = ("epoch", "step", "loss", "learning_rate", "gradient_norm", "images", "seconds", "workers", "event")
    what = network.name
    about = {"what": what, "seed": job.recipe.seed, "data": row["data"], "device": row["device"]}
    epochs = [{**about, **{name: entry.get(name) for name in names}} for entry in trained.history]
    done = {entry["epoch"] for entry in run.store.read("training").to_pylist() if entry["what"] == what}
    run.store.append("training", [entry for entry in epochs if entry["epoch"] not in done])
    run.store.append("networks", [row])
    if job.checkpoints is not None:
        shutil.rmtree(job.checkpoints, ignore_errors=True)

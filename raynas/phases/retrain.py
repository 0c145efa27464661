"""Retraining of found networks: from scratch, or fine-tuned from the weights that they inherit or were trained to.

Images may be of another size than the run's. A network is the supernet of a one-point space, trained by the same loop,
in this process or by Ray Train workers, several networks side by side where there is room. Finished networks are kept,
and the same call resumes with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, Literal

import torch

from raynas.cluster.resources import Resources
from raynas.costs.columns import arch_columns
from raynas.data.load import Data
from raynas.data.preprocessing import preprocessing_of
from raynas.errors import ConfigError, RunDirError, UserError
from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases.network_training import NetworkTraining, Size, train_all
from raynas.phases.phase import phase
from raynas.phases.recipes import RecipeOf
from raynas.phases.teachers import load_teachers, teacher_settings
from raynas.phases.training_job import Trained
from raynas.phases.where import default_resources, device_here, placed
from raynas.progress.reporter import Progress, silent
from raynas.results.schemas import Row
from raynas.results.store import having
from raynas.runs.files import ray_checkpoints
from raynas.runs.networks import Network, check_images, input_size
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.space import Arch, Space
from raynas.training.plan import Plan
from raynas.training.preflight import check_trainable
from raynas.training.recipe import Recipe

How = Literal["scratch", "finetuned"]
Windows = Literal["kept", "scaled"]


def retrain(
    run: Run,
    archs: Sequence[Arch],
    recipe: Recipe | RecipeOf,
    how: How = "scratch",
    seeds: Sequence[int] = (0,),
    train_on: str = "train",
    parallel: int | None = None,
    progress: Progress = silent,
    labels: Mapping[str, str] | None = None,
    size: int | Size | None = None,
    purpose: str = "retraining",
    resources: Resources | None = None,
    name: str | None = None,
    windows: Windows = "kept",
) -> list[Row]:
    """Train networks into `networks/<arch>-<how>-<seed>/` and table `networks`; see `raynas.retrain`.

    Args:
        recipe: recipe of the training, or a function that gives each network's; each of `seeds` replaces its seed.
        how: `scratch`, or `finetuned` from the weights inherited from the run's supernet.
        train_on: `train`, or `train+search` once the search is over.
        labels: names in progress lines by arch id, such as `winner`; by default the id.
        size: image size in pixels if not the run's; the folder's name then ends in it.
        purpose: name of the phase in table `phases`.
        resources: workers of each training; None for those of `default_resources`.
        name: name of these trainings, if the run holds others of the same archs and seeds by other recipes.
        windows: at another size, windows are `kept` (as many tokens) or `scaled` with the images.

    Returns:
        The rows of table `networks`, all seeds of an arch together.
    """
    with run.lock():
        check_images(archs, run.space)
        data = run.data_config
        trainings = []
        for arch in archs:
            at, other_size = at_size(arch, size, windows)
            start = Network(arch, "inherited") if how == "finetuned" else None
            own = recipe if isinstance(recipe, Recipe) else recipe(arch)
            for seed in seeds:
                label = _label(arch, seed, other_size, labels)
                seeded = own.model_copy(update={"seed": seed})
                trainings.append(NetworkTraining(at, seeded, data, train_on, label, start, other_size, name))
        return _train_and_keep(run, trainings, resources, parallel, progress, purpose)


def finetune_resized(
    run: Run,
    networks: Sequence[Network],
    recipe: Recipe | RecipeOf,
    size: int | Size,
    parallel: int | None = None,
    progress: Progress = silent,
    labels: Mapping[str, str] | None = None,
    resources: Resources | None = None,
    name: str | None = None,
    windows: Windows = "kept",
) -> list[Row]:
    """Fine-tune networks that were trained in a run on images of another size; see `raynas.retrain`.

    Position embeddings are resized, and all other weights are kept (`Supernet.resized`). Each network keeps its seed
    and its training images. The new networks are in folders `networks/<network>-resized-<size>/`.

    Args:
        name: the name that the networks were trained under, if they have one.

    Raises:
        RunDirError: a network of that name was trained with other settings, or from weights that are no longer there.
        UserError: a network was not trained in this run, has this size already or cannot take such images, or the
            recipe does not fit.
    """
    with run.lock():
        data, rows = run.data_config, {row["path"]: row for row in run.network_rows()}
        trainings = []
        for network in networks:
            row = rows.get(network.path)
            if row is None:
                raise UserError(
                    f"{network.name} is no network that was trained in {run.name}: raynas retrain trains one"
                )
            at, other_size = at_size(network.arch, size, windows)
            if other_size is None:
                height, width = at.space.input_size
                raise UserError(f"{network.name} is of {height} x {width} pixels already: give another size")
            label = _label(network.arch, row["seed"], other_size, labels)
            own = recipe if isinstance(recipe, Recipe) else recipe(network.arch)
            seeded = own.model_copy(update={"seed": row["seed"]})
            training = NetworkTraining(at, seeded, data, row["trained_on"], label, network, other_size, name)
            trainings.append(training)
            if (there := rows.get(training.network.path)) is not None and there["time"] < row["time"]:
                raise RunDirError(
                    f"{run.name}/{there['path']} began with an earlier {network.name}, which was trained anew since: "
                    "delete that folder to fine-tune the new one"
                )
        return _train_and_keep(run, trainings, resources, parallel, progress)


def finetune_model(run: Run, given: Network, recipe: Recipe, progress: Progress, resources: Resources) -> Network:
    """Fine-tune the model that a run adapts on the run's training images; return the network."""
    with run.lock():
        training = NetworkTraining(given.arch, recipe, run.data_config, "train", "the model", given)
        _train_and_keep(run, [training], resources, None, progress)
        return training.network


def _label(arch: Arch, seed: int, size: Size | None, labels: Mapping[str, str] | None) -> str:
    where = "" if size is None else f", {size[0]} x {size[1]}"
    return f"{(labels or {}).get(arch.id, arch.id)}, seed {seed}{where}"


def at_size(arch: Arch, size: int | Size | None, windows: Windows) -> tuple[Arch, Size | None]:
    """Return the arch for an image size, and that size; the arch itself and None if it has that size already.

    Args:
        size: in pixels; None for the arch's own.
    """
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is None or wanted == arch.space.input_size:
        return arch, None
    with torch.device("meta"):
        network = build_supernet(arch.space.fix(arch))
    return network.space_at(wanted, scaled=windows == "scaled").smallest(), wanted


def _train_and_keep(
    run: Run,
    trainings: Sequence[NetworkTraining],
    resources: Resources | None,
    parallel: int | None,
    progress: Progress,
    purpose: str = "retraining",
) -> list[Row]:
    """Train networks, unless trained already; return the rows in their order."""
    if not trainings:
        return []
    _check_folders(run, trainings)
    data = run.supernet().data
    todo = list({each.network.path: each for each in trainings if not run.has_network(each.network)}.values())
    for train_on in dict.fromkeys(each.train_on for each in todo):
        progress(_images_in_words(train_on))
    # Check everything before anything is written.
    several = parallel != 1 and len(todo) > 1
    if resources is None:
        resources = default_resources(here=not several)
    elif resources.workers is None:
        resources = placed(resources, several)
    elif parallel not in (None, 1) and not resources.workers:
        raise UserError("without Ray one network is trained after the other: leave out --parallel, or give --workers")
    data_at = cache(data.resized)
    for each in todo:
        on_gpu = resources.gpus if resources.workers else device_here(resources) != "cpu"
        each.recipe.check_device("cuda" if on_gpu else "cpu")
        space, workers = each.arch.space.fix(each.arch), max(resources.most_workers, 1)
        check_trainable(space, data_at(space.input_size), Plan(), each.job.recipe, workers, each.train_on)
    # Before any settings are recorded, since teachers may be missing.
    taught = {repr(each.recipe.teachers): each.recipe for each in trainings}
    teachers = {key: teacher_settings(load_teachers(recipe, data, run)) for key, recipe in taught.items()}
    for each in trainings:
        _begin(run, each, teachers[repr(each.recipe.teachers)])
    for each in trainings:
        if each not in todo:
            progress(f"{each.label}: trained already, {run.name}/{each.network.path}")
    if todo:
        how, name = trainings[0].network.how, trainings[0].name
        way, names = how if name is None else f"{how}-{name}", [each.network.name for each in todo]
        attempt = partial(phase, run, purpose, way, progress=progress, networks=names)
        with closing(train_all(run, todo, resources, parallel, progress, attempt)) as finished:
            for each, trained in finished:
                _keep(run, each, trained, data_at(each.arch.space.input_size))
                progress(f"{each.label}: trained, {run.name}/{each.network.path}")
    rows = {row["path"]: row for row in run.network_rows()}
    return [rows[each.network.path] for each in trainings]


def _images_in_words(train_on: str) -> str:
    """Return a line about the images that networks are trained on."""
    if train_on == "train":
        return "training on the training images alone: the search split is left for scoring (train_on: train)"
    return (
        "training on the training images and the search split, since the search is over (train_on: train+search); "
        "raynas retrain --on train leaves the search split out"
    )


def _check_folders(run: Run, trainings: Sequence[NetworkTraining]) -> None:
    """Refuse archs of equal values and different constants, which would share a folder; the message says which."""
    spaces: dict[str | None, Space] = {}
    for training in trainings:
        path = training.network.path
        if path not in spaces and (there := run.network_arch(training.network)) is not None:
            spaces[path] = there.space
        try:
            spaces.setdefault(path, training.arch.space).check_own(training.arch)
        except ConfigError as error:
            raise RunDirError(f"{run.name}/{path}: {error}; delete that folder to train this one") from error


def _begin(run: Run, training: NetworkTraining, teachers: Mapping[str, Any]) -> None:
    """Record the settings of a training, or check them if it began before."""
    network = training.network
    settings = {
        "recipe": training.recipe,
        "data": training.data,
        "train_on": training.train_on,
        "how": network.how,
        **({} if training.size is None else {"size": training.size}),
        **({} if (of := getattr(training.arch.space.constants, "windows_for", None)) is None else {"windows_for": of}),
    }
    again = f"give the same, or delete {run.name}/{network.path} to train it anew"
    if not begin(run, f"{network.path}/training", {**settings, **teachers}, again):
        run.delete(ray_checkpoints(network.name))  # left by a network whose folder was deleted


def _keep(run: Run, training: NetworkTraining, trained: Trained, data: Data) -> None:
    """Write a network's files, then its rows, which mark it as complete.

    Args:
        data: the images at the network's size.
    """
    network, history = training.network, trained.history
    row = {
        **arch_columns(training.arch),
        "accuracy": trained.accuracy,
        "loss": next(entry["loss"] for entry in reversed(history) if "loss" in entry),
        "epochs": training.recipe.epochs,
        "seconds": sum(entry.get("seconds", 0.0) for entry in history),
        "data": data.fingerprint,
        "device": trained.device,
        "how": network.how,
        "trained_on": training.train_on,
        "path": network.path,
        "weights": weights_fingerprint(trained.weights),
        "seed": training.recipe.seed,
        **input_size(training.arch),
        "start": None if training.start is None else training.start.path or "supernet",
    }
    run.write_network(network, trained.weights, {**row, "preprocessing": preprocessing_of(data)})
    names = ("epoch", "step", "loss", "learning_rate", "gradient_norm", "images", "seconds", "workers", "event")
    what = network.name
    about = {"what": what, "seed": training.recipe.seed, "data": row["data"], "device": row["device"]}
    epochs = [{**about, **{name: entry.get(name) for name in names}} for entry in history]
    # Epochs from before the last row of this folder are those of a network that was deleted since.
    ended = run.store.read("networks", ["time"], having({"path": network.path}))["time"].to_pylist()
    known = run.store.read("training", ["epoch", "time"], having({"what": what})).to_pylist()
    done = {entry["epoch"] for entry in known if not ended or entry["time"] > max(ended)}
    run.store.append("training", [entry for entry in epochs if entry["epoch"] not in done])
    run.store.append("networks", [row])
    run.delete(ray_checkpoints(what))

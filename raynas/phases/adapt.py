"""Adapting of a trained model: it becomes the largest subnet of a supernet, which is trained and searched.

The model's units are put in the order of their importance, so that smaller subnets keep the important ones: an exact
reordering. All results are in the run directory, and the same call continues where it stopped.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from raynas.cluster.resources import Resources
from raynas.correlation import FEWEST
from raynas.costs.columns import arch_columns
from raynas.data.images import choose_images, decode
from raynas.data.load import Data, load_data
from raynas.data.pixels import normalise
from raynas.data.preprocessing import preprocessing_of
from raynas.errors import RunDirError, UserError
from raynas.nets.calibration import wants_calibration
from raynas.nets.ordering import block_importance, order_units
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet, parse_weights, weights_fingerprint
from raynas.phases.export import example
from raynas.phases.inputs import resolve_data
from raynas.phases.phase import phase
from raynas.phases.pipeline import PipelineResult, Stages, Start, carry_out
from raynas.phases.preflight import Ready, preflight
from raynas.phases.pretrained import Pretrained, check_unfixed, read_pretrained
from raynas.phases.rank import sample_by_budget
from raynas.phases.retrain import finetune_model
from raynas.phases.search import make_scorer
from raynas.phases.teachers import load_teachers
from raynas.phases.where import compute, default_resources, for_short_work
from raynas.presets.adapt import AdaptConfig
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, reporter, silent
from raynas.reports.adapting import adapting_lines, chance_lines
from raynas.reports.sampled import ORDERED, RANDOM, RANGES, WORDS
from raynas.results.store import having
from raynas.runs.files import NETWORKS, PRESET, START_WEIGHTS
from raynas.runs.network_folder import ABOUT_FILE
from raynas.runs.networks import PRETRAINED, Network, input_size
from raynas.runs.run import Run
from raynas.runs.searches import Scoring
from raynas.runs.settings import begin, has_begun
from raynas.scoring.scored_supernet import make_scored_supernet
from raynas.space import Arch, Space
from raynas.space.elastic import Elastic, check_largest, elastic_space
from raynas.training.preflight import check_recipe

BLOCK_IMAGES = 64
"""Training images on which the importance of blocks is measured, before anything is written."""

EXACT = 1e-4
"""Greatest difference of logits, over the largest of them, between a model and the supernet made of it."""


@dataclass(frozen=True)
class Adapted:
    """A model fitted to a dataset, and the space whose largest arch it is.

    Attributes:
        preset: the preset, with image size, channels and normalisation of its data as the model wants them.
        new_head: True if the classifier is new.
        blocks: the model's blocks by importance, the least important first; empty if its space does not depend on it.
    """

    model: Pretrained
    space: Space
    preset: Preset
    data: Data
    new_head: bool
    blocks: Sequence[str]

    @property
    def config(self) -> AdaptConfig:
        """The settings of adapting."""
        return self.preset.adapt or AdaptConfig()

    @property
    def is_transferred(self) -> bool:
        """True if the model is fine-tuned to the data before."""
        return self.new_head or self.config.finetune.always


def adapt(
    source: str | os.PathLike[str],
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    weights_file: str | Path | None = None,
    space: Space | None = None,
    progress: Progress = silent,
) -> PipelineResult:
    """Adapt a model to a dataset and a budget, or go on with it; see `raynas.adapt`."""
    progress = reporter(progress)
    if has_begun(run_dir, "train") and not has_begun(run_dir, "adapt"):
        raise RunDirError(f"{Run(run_dir).name} holds other work (its train.yaml): give another run directory")
    with progress.doing("checking all stages"):
        adapted = fit(source, preset, for_short_work(resources), weights_file, space, progress, _blocks_of(run_dir))
        settled = adapted.preset
        checked = preflight(_untaught(settled), resources, run_dir, progress, retrained=True, space=adapted.space)
        if adapted.is_transferred:
            check_recipe(adapted.space.fix(adapted.space.largest()), settled.model_recipe)
            settled.model_recipe.micro_batch(max(resources.most_workers, 1))
    run = Run(run_dir, create=True)
    with run.lock():
        otherwise = "give the same (finetune is recipe with adapt.finetune.recipe), or another run directory"
        begun = begin(run, "adapt", _recorded(adapted, checked), otherwise)
        if not begun or not run.exists(PRESET):
            # Before the training, since networks of the run are read with its data; later on training writes them, when
            # its settings have been compared.
            run.write_space(checked.space)
            run.write_preset(settled.model_copy(update={"data": checked.preset.data}))
        sample = _sample(checked.space, adapted.config.untrained)
        make = partial(_make_start, run, adapted, checked, sample, progress)
        return carry_out(checked, run, progress, Start(1 + adapted.is_transferred, make, sample))


def fit(
    source: str | os.PathLike[str],
    preset: Preset,
    resources: Resources,
    weights_file: str | Path | None = None,
    space: Space | None = None,
    progress: Progress = silent,
    blocks: Sequence[str] | None = None,
) -> Adapted:
    """Read a model, fit it to the preset's data, and derive its space.

    Args:
        resources: say where the importance of blocks is measured: in a Ray task if there are replicas, else here.
        space: space to use instead of the derived one; its largest arch must be the model.
        blocks: the model's blocks by importance, if they are known.

    Raises:
        UserError: the model or the data cannot be read, they do not fit each other, or the space is of another model.
    """
    check_unfixed(preset)
    model = read_pretrained(source, weights_file)
    config = preset.adapt or AdaptConfig()
    data = load_data(model.as_trained(resolve_data(preset, model.network.space), "crop_pct"))
    model.check_channels(data)
    if data.config.mean is None:
        data = load_data(model.as_trained(data.config, "mean", "std"))
    new_head = config.head == "new" or not model.knows(data)
    if not new_head:
        model.accept_classes(data, progress, "; for a new classifier: --set adapt.head=new")
    model = model.fitted(data, new_head, preset.recipe.seed, progress, scaled=preset.retrain.windows == "scaled")
    model.compare_reading(data, progress)
    own = model.network.space
    if space is None:
        if blocks is None:
            wanted = config.blocks == "importance" and config.elastic.dropped
            blocks = _by_importance(model, data, resources, progress) if wanted else []
        space = elastic_space(own, config.elastic, blocks)
    else:
        space = space.with_input(size=own.input_size, channels=own.channels, classes=own.classes)
        check_largest(space, own)
    _check_exact(space, model)
    return Adapted(model, space, preset.model_copy(update={"data": data.config}), data, new_head, blocks or [])


def derive(
    source: str | os.PathLike[str],
    preset: Preset,
    weights_file: str | Path | None = None,
    progress: Progress = silent,
) -> Space:
    """Return the space of a model, for the preset's data if it names some; see `raynas.elastic_space`.

    Without data nothing is known of the importance of blocks, and every second one may be left out.
    """
    check_unfixed(preset)
    if preset.data is not None and preset.data.name:
        return fit(source, preset, default_resources(), weights_file, progress=progress).space
    return elastic_space(read_pretrained(source, weights_file).network.space, (preset.adapt or AdaptConfig()).elastic)


def _by_importance(model: Pretrained, data: Data, resources: Resources, progress: Progress) -> list[str]:
    """Return a model's blocks, first those without which its predictions change least."""
    space = elastic_space(model.network.space, Elastic(width=(), heads=(), mlp=(), dropped=0))
    images, _ = _some_images(data, space, BLOCK_IMAGES)
    arguments = space, model.network.state_dict(), images
    return compute(
        "measuring the importance of blocks", _rank_blocks, *arguments, resources=resources, progress=progress
    )


def _rank_blocks(space: Space, weights: Mapping[str, Tensor], images: Tensor, device: str) -> list[str]:
    return list(block_importance(load_supernet(space, weights).to(device), images))


def _blocks_of(run_dir: Run | str | os.PathLike[str]) -> list[str] | None:
    """Return the blocks by importance as a run directory has them; None if no model is adapted there yet.

    Measured again, on another machine, two blocks that are alike might change places, and the space with them.
    """
    if not has_begun(run_dir, "adapt"):
        return None
    settings = Run(run_dir).read_yaml("adapt.yaml", "settings")["settings"]
    return list(settings.get("blocks", []))


@torch.no_grad()
def _check_exact(space: Space, model: Pretrained) -> None:
    """Refuse a space whose supernet does not compute what the model does at its largest arch."""
    wrong = f"the largest arch of space {space.name} is not {model.name}"
    try:
        supernet = load_supernet(space, model.network.state_dict()).eval()
    except UserError as error:
        raise UserError(f"{wrong}: {error}") from error
    x = example(model.network)
    expected, found = model.network(x), supernet(x, space.largest())
    difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1))
    if not difference <= EXACT:
        raise UserError(f"{wrong}: their logits differ by {difference:.2g} of the largest")


def _untaught(preset: Preset) -> Preset:
    """Return the preset without the teacher that is there only when the model is fine-tuned."""
    taught = preset.recipe.teachers
    if taught is None or not any(one.is_original for one in taught.models):
        return preset
    return preset.model_copy(update={"recipe": preset.recipe.model_copy(update={"teachers": None})})


def _recorded(adapted: Adapted, checked: Ready) -> dict[str, Any]:
    """Return the settings that the start of the supernet depends on, as a run directory keeps them."""
    config = adapted.config
    recipe = adapted.preset.model_recipe.model_dump(mode="json", exclude={"checkpoints"})
    return {
        "weights": weights_fingerprint(adapted.model.network.state_dict()),
        "space": checked.space.to_dict(),
        "data": checked.data.config.recorded(checked.data.fingerprint),
        "adapt": config.model_dump(mode="json", exclude={"elastic", "finetune"}),
        "finetune": recipe if adapted.is_transferred else None,
        **({"blocks": [*adapted.blocks]} if adapted.blocks else {}),
    }


def _sample(space: Space, count: int) -> list[Arch]:
    """Return subnets over the whole range of MACs; the largest, which is the model, is always among them."""
    if space.cardinality() < FEWEST or not count:
        return [space.largest()]
    found = sample_by_budget(space, max(count, RANGES), RANGES).spread(count)
    return list(dict.fromkeys([space.largest(), *found]))


# -- the start of the supernet -----------------------------------------------------------------------------------------


def _make_start(
    run: Run,
    adapted: Adapted,
    checked: Ready,
    sample: Sequence[Arch],
    progress: Progress,
    stage: Stages,
    later: Resources,
) -> tuple[Ready, str]:
    """Make the weights that the training of the supernet begins with; see `Start`."""
    config, preset, model, arch = adapted.config, adapted.preset, adapted.model, checked.space.largest()
    original = Network(arch, PRETRAINED, path=f"{NETWORKS}/{arch.id}-{PRETRAINED}")
    _write_given(run, original, model, checked.data)
    if adapted.is_transferred:
        with stage("Fine-tuning the model", "it is the start of all networks, and their teacher"):
            original = finetune_model(run, original, preset.model_recipe, progress, checked.resources)
    with stage(f"Ordering units by {config.importance}", "so that smaller networks keep the important ones"):
        if any(_unscored(run, sample, order) for order in (ORDERED, RANDOM)):
            with phase(run, "ordering", cluster=later.replicas > 0, progress=progress):
                _order_and_score(run, original, checked, config, sample, progress, later)
        if not adapted.is_transferred:
            _note_given(run, original)
        for line in [*adapting_lines(run), *([] if adapted.is_transferred else chance_lines(run))]:
            progress(line)
    # With the teacher, which was not there when the preset was checked.
    teachers = load_teachers(preset.recipe, checked.data, run)
    taught = checked.preset.model_copy(update={"recipe": preset.recipe})
    return replace(checked, preset=taught, teachers=teachers), START_WEIGHTS


def _write_given(run: Run, given: Network, model: Pretrained, data: Data) -> None:
    """Write the model's files as they were given, unless they are there."""
    weights, about = model.network.state_dict(), f"{given.path}/{ABOUT_FILE}"
    row = {
        **arch_columns(given.arch),
        "epochs": 0,
        "seconds": 0.0,
        "data": data.fingerprint,
        "how": given.how,
        "path": given.path,
        "weights": weights_fingerprint(weights),
        **input_size(given.arch),
    }
    if not run.exists(about) or run.read_json(about, "weights")["weights"] != row["weights"]:
        run.write_network(given, weights, {**row, "preprocessing": preprocessing_of(data), "model": model.name})


def _note_given(run: Run, given: Network) -> None:
    """Write the model's row among the run's networks; its accuracy is the score of the largest subnet."""
    if run.has_network(given):
        return
    row = run.read_json(f"{given.path}/{ABOUT_FILE}", "preprocessing", "model")
    del row["preprocessing"], row["model"]
    of_largest = having({"arch": given.arch.id, "supernet": run.about_start[ORDERED]})
    (score,) = run.table("scores", ["accuracy", "device"], of_largest).slice(0, 1).to_pylist()
    run.store.append("networks", [{**row, **score}])


def _unscored(run: Run, sample: Sequence[Arch], order: str) -> bool:
    """Return True if some of the sample have no score yet with units in an order."""
    weights = run.about_start.get(order, "")
    known = run.table("scores", ["arch"], pc.field("supernet") == weights)["arch"].to_pylist()
    return not {arch.id for arch in sample} <= {*known}


def _order_and_score(
    run: Run,
    original: Network,
    checked: Ready,
    config: AdaptConfig,
    sample: Sequence[Arch],
    progress: Progress,
    later: Resources,
) -> None:
    """Write the weights with ordered units, unless they are there, and score subnets with them, and in random order."""
    space, seed = checked.space, checked.preset.recipe.seed
    if not run.about_start:
        ordering = "ordering units", _order, run, original, config, seed
        weights = compute(*ordering, resources=later, progress=progress)
        shuffled = _shuffled(load_supernet(space, weights), seed).state_dict()
        prints = {ORDERED: weights_fingerprint(weights), RANDOM: weights_fingerprint(shuffled)}
        how = config.model_dump(include={"importance", "labels", "images"})
        run.write_start(weights, {"original": original.path, **how, **prints})
    ordered = load_supernet(space, parse_weights(run.read_bytes(START_WEIGHTS), START_WEIGHTS)).eval()
    calibration = run.calibration(checked.data) if wants_calibration(ordered) else None
    for order in (ORDERED, RANDOM):
        if _unscored(run, sample, order):
            supernet = ordered if order == ORDERED else _shuffled(ordered, seed)
            scored = make_scored_supernet(space, supernet, checked.data, calibration=calibration)
            with make_scorer(run, Scoring(), checked.resources, scored) as scorer:
                scorer.score(sample, progress, f"scoring subnets without training, units in {WORDS[order]}")


def _order(run: Run, original: Network, config: AdaptConfig, seed: int, device: str) -> dict[str, Tensor]:
    """Return the original's weights with units in the order of their importance on training images."""
    space = run.space
    images, labels = _some_images(run.data(), space, config.images)
    supernet = load_supernet(space, run.model(original).state_dict()).eval().to(device)
    order_units(supernet, config.importance, images, labels if config.labels else None, rng=np.random.default_rng(seed))
    return {name: tensor.cpu() for name, tensor in supernet.state_dict().items()}


def _some_images(data: Data, space: Space, count: int) -> tuple[Tensor, Tensor]:
    """Return training images, normalised, and their labels; always the same ones."""
    chosen = choose_images(len(data.train), min(count, len(data.train)))
    pixels, labels = decode(data.train.take(chosen).at(space.input_size, space.channels))
    return normalise(pixels, data.normalisation), labels


def _shuffled(supernet: Supernet, seed: int) -> Supernet:
    """Return the supernet with its units in random order."""
    shuffled = copy.deepcopy(supernet)
    order_units(shuffled, "random", rng=np.random.default_rng(seed))
    return shuffled

"""Check of the memory that a preset needs against what a cluster's nodes have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from raynas.costs import Constraints, cost, sample_within
from raynas.data.calibration import calibration_bytes
from raynas.data.config import Size
from raynas.data.held import HELD, has_room
from raynas.data.images import ImageSet, decoded_bytes
from raynas.data.load import load_test
from raynas.data.loader import loader_bytes
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.calibration import wants_calibration
from raynas.phases.check_node import HERE, Seen
from raynas.phases.check_place import Finding, Place
from raynas.phases.preflight import Ready, preflight
from raynas.phases.retrain import at_size
from raynas.phases.teachers import load_teachers
from raynas.presets.preset import Preset
from raynas.scoring.score_arch import BATCH
from raynas.search.config import TIMED
from raynas.space import Arch, Space
from raynas.training.memory import forward_bytes, training_memory, weights_bytes
from raynas.training.recipe import Recipe
from raynas.training.teachers import predictions_bytes

PROCESS = 900 * 2**20  # bytes of a process with torch and what reads images, before it holds anything
CUDA = 2**30  # bytes of a GPU that CUDA's context and its libraries take
TRIED = 256  # archs within the limits of the search, of which the dearest is taken for its winner


def check_memory(place: Place, preset: Preset, seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """Check the preset as its commands would, and its memory against that of the nodes."""
    try:
        # The rest cannot be read without the names of the images that are skipped.
        skips = preset.data is not None and preset.data.skip == "unreadable"
        ready = preflight(preset, place.resources, look=skips, retrained=True)
    except UserError as error:
        yield Finding("preset", "it would be refused", str(error))
        return
    yield Finding("preset", str(ready.estimate))
    yield _memory(place, ready, seen)
    if place.resources.replicas and place.nodes:
        yield _store(place, ready)


@dataclass(frozen=True)
class _Need:
    """The memory of a process of one phase, in bytes.

    Attributes:
        parts: what takes the memory.
        device: what it holds at most on its GPU, or else beside the rest.
        host: what it holds at most in the machine's memory in any case.
        count: number of such processes.
        mend: what makes it smaller.
    """

    what: str
    parts: str
    device: int
    host: int
    count: int
    mend: str

    @property
    def total(self) -> int:
        """All of it."""
        return self.device + self.host


def _memory(place: Place, ready: Ready, seen: Mapping[str, Seen]) -> Finding:
    """Compare the memory that the processes of all phases need with what nodes and GPUs have; the worst is shown."""
    room = int(HELD * min(this.memory for this in seen.values())) if seen else 0
    needs = [_training(place, ready), *_retrainings(place, ready), *_calibrating(ready), *_evaluating(ready, room)]
    needs += [] if place.nodes or place.resources.replicas else [_scoring(ready, room)]
    short = {need.what: lines for need in needs if (lines := list(_shortages(place, need, seen)))}
    worst = max(needs, key=lambda need: (need.what in short, need.total * need.count))
    gpus = place.resources.gpus
    found = f"{worst.what} needs {_size(worst.total + (CUDA if gpus else PROCESS))} in a process: {worst.parts}"
    others = [f"{need.what} {_size(need.total)}" for need in needs if need is not worst]
    found += f"; the rest needs less ({', '.join(others)})" if others and not short else ""
    lines = [f"{what}: {line}" for what, each in short.items() for line in each]
    mends = dict.fromkeys(need.mend for need in needs if need.what in short)
    return Finding("memory", "; ".join([found, *lines]), ", or ".join(mends) if short else None)


def _shortages(place: Place, need: _Need, seen: Mapping[str, Seen]) -> Iterator[str]:
    """Yield for each node that has too little what it has."""
    gpus = place.resources.gpus
    for name, room in ({node.name: node.holds(place.resources.of(1)) for node in place.nodes} or {HERE: 1}).items():
        this, count = seen.get(name), min(room, need.count)
        if this is None or not count:
            continue
        if count * (need.host + (0 if gpus else need.device) + PROCESS) > this.memory:
            yield f"{name} has {_size(this.memory)} for {count} process(es)"
        on_one = min(max(1, int(1 / gpus)) if gpus else 0, count)
        if gpus and this.gpu_memory and on_one * (need.device + CUDA) > min(this.gpu_memory):
            yield f"{name} has {_size(min(this.gpu_memory))} on a GPU for {on_one} process(es)"


def _training(place: Place, ready: Ready) -> _Need:
    recipe = ready.preset.recipe
    return _of_training("training the supernet", ready.space, recipe, place, ready, "recipe", _sets(ready))


def _retrainings(place: Place, ready: Ready) -> Iterator[_Need]:
    """Yield the memory of the winner's training on its own, and of its fine-tuning at another image size."""
    preset, winner = ready.preset, _largest_winner(ready)
    macs = int(cost(winner.space, [winner])["macs"][0])
    stages: list[tuple[str, Recipe, Size | None, str]] = []
    stages.append(("retraining", preset.retrain_recipe_at(macs), None, "retrain.recipe"))
    if (finetune := preset.retrain.finetune) is not None:
        stages.append(("fine-tuning", preset.finetune_recipe_at(macs), finetune.size, "retrain.finetune.recipe"))
    for what, recipe, size, keys in stages:
        arch, _ = at_size(winner, size, preset.retrain.windows)
        yield _of_training(what, arch.space.fix(arch), recipe, place, ready, keys)


def _of_training(
    what: str, space: Space, recipe: Recipe, place: Place, ready: Ready, keys: str, sets: int = 1
) -> _Need:
    """Return the memory of a training's worker.

    Args:
        keys: where the recipe's keys are in the preset.
        sets: gradients that the policy keeps apart.
    """
    workers = max(place.resources.fewest_workers, 1)
    need, taught = training_memory(space, recipe, workers, sets), _taught(recipe, ready)
    loaded = loader_bytes(ready.data.train.at(space.input_size, space.channels), recipe.augment)
    parts = (
        f"weights {_size(need.parameters)}, gradients {_size(need.gradients)}, optimiser {_size(need.optimizer)}, "
        f"activations of {recipe.micro_batch(workers)} image(s) {_size(need.activations)}"
    )
    parts += f", teachers {_size(taught)}" if taught else ""
    parts += f", decoded training images {_size(loaded)}" if loaded else ""
    mend = f"raise {keys}.accumulate, lower {keys}.batch_size, or take more workers or larger nodes"
    return _Need(what, parts, need.total + taught, loaded, max(place.resources.most_workers, 1), mend)


def _taught(recipe: Recipe, ready: Ready) -> int:
    """Return the bytes of a recipe's teachers, and of their predictions if they are kept."""
    if recipe.teachers is None:
        return 0
    teachers = ready.teachers if recipe.teachers == ready.preset.recipe.teachers else None
    teachers = teachers or load_teachers(recipe, ready.data)
    assert teachers is not None
    weights = sum(t.numel() * t.element_size() for one in teachers.teachers for t in one.network.state_dict().values())
    return weights + predictions_bytes(recipe, len(ready.data.train), ready.data.classes)


def _largest_winner(ready: Ready) -> Arch:
    """Return an arch as large as the search's winner may be: the largest one, or the dearest of some within the limits.

    Limits on latency and throughput are left out.
    """
    space = ready.space
    bounds = {name: each for name, each in ready.preset.search.constraints.items() if name not in TIMED}
    limits = Constraints(space, bounds)
    if limits.feasible(space.encode([space.largest()])).all():
        return space.largest()
    codes = sample_within(space, limits, np.random.default_rng(0), TRIED)
    return space.decode(codes[[int(cost(space, codes)["macs"].argmax())]])[0]


def _calibrating(ready: Ready) -> Iterator[_Need]:
    """Yield the memory of a subnet's calibration, which holds all images at once."""
    if drawn := _calibration_bytes(ready):
        held = weights_bytes(ready.space)
        batch = forward_bytes(ready.space, ready.preset.calibration.batch_size)
        parts = f"weights {_size(held)}, a batch {_size(batch)}, {_drawn(ready)}"
        mend = "lower calibration.images or calibration.batch_size, or take larger nodes"
        yield _Need("calibrating a subnet", parts, held + batch, drawn, 1, mend)


def _scoring(ready: Ready, room: int) -> _Need:
    """Return the memory of scoring in this process."""
    held, batch = weights_bytes(ready.space), forward_bytes(ready.space, BATCH)
    images, words = _images(ready.data.search.at(ready.space.input_size, ready.space.channels), room, "images")
    parts = f"weights {_size(held)}, a batch {_size(batch)}, {words}{_drawn(ready, ', ')}"
    host = images + _calibration_bytes(ready)
    return _Need("scoring", parts, held + batch, host, 1, "lower calibration.images, or take a larger machine")


def _evaluating(ready: Ready, room: int) -> Iterator[_Need]:
    """Yield the memory of the evaluation of the winner, at the larger of its image sizes.

    Its process also has the supernet, from which the network may inherit, and the images of the calibration.
    """
    preset = ready.preset
    assert preset.data is not None
    try:
        images = load_test(preset.data)
    except UserError:  # there is none, which evaluating says
        return
    finetune, winner = preset.retrain.finetune, _largest_winner(ready)
    sizes = [None, *([] if finetune is None else [finetune.size])]
    spaces = [arch.space.fix(arch) for arch in (at_size(winner, size, preset.retrain.windows)[0] for size in sizes)]
    needs = []
    for space in spaces:
        held, batch = weights_bytes(ready.space) + weights_bytes(space), forward_bytes(space, BATCH)
        decoded, words = _images(images.at(space.input_size, space.channels), room, "test images")
        parts = f"weights {_size(held)}, a batch {_size(batch)}, {words}{_drawn(ready, ', ')}"
        host = decoded + _calibration_bytes(ready)
        needs.append(_Need("evaluating", parts, held + batch, host, 1, "take larger nodes"))
    yield max(needs, key=lambda need: need.total)


def _images(images: ImageSet, room: int, what: str) -> tuple[int, str]:
    """Return the bytes of images that a process holds, or decodes batch by batch, and a part of a line about them."""
    if has_room(images, room):
        held = decoded_bytes(images)
        return held, f"{len(images):,} decoded {what} {_size(held)}"
    held = 2 * decoded_bytes(images.take(np.arange(min(BATCH, len(images)))))  # one in use, one to come
    return held, f"{len(images):,} {what} ({_size(decoded_bytes(images))}) decoded {BATCH} at a time {_size(held)}"


def _sets(ready: Ready) -> int:
    """Return the number of gradients that the preset's policy keeps apart."""
    plan, recipe = ready.preset.plan, ready.preset.recipe
    opened = plan.open_space(ready.space, recipe.epochs - 1, recipe.epochs)
    rng = np.random.default_rng(recipe.seed)
    passes = plan.build_sampler()(opened, rng, lambda archs: [0.0] * len(archs))
    return len(set(plan.build_gradients().assign(passes)))


def _store(place: Place, ready: Ready) -> Finding:
    """Compare weights and decoded images, which replicas map from each node's object store, with its size."""
    from raynas.scoring.shared_images import HERE_UP_TO  # local: it imports Ray

    weights, images = weights_bytes(ready.space), ready.estimate.search_bytes
    count = ready.estimate.search_images
    found = f"weights {_size(weights)} and {count:,} decoded images {_size(images)} once on each node"
    if drawn := _drawn_bytes(ready):
        found += f", with {ready.preset.calibration.images:,} calibration images {_size(drawn)}"
    in_driver = images if images <= HERE_UP_TO else 0  # on the head; more images are decoded where they are scored
    small, full = [], []
    for node in place.nodes:
        scores, store = node.holds(place.resources.of(1)), node.resources.get("object_store_memory", 0)
        if (scores or node.is_head) and store < weights + (drawn if scores else in_driver):
            small.append(f"{node.name} has {_size(store)}")
        elif scores and store < weights + drawn + images:
            full.append(f"{node.name} has {_size(store)}")
    if full:
        full.append(
            "replicas decode the images anew for each subnet: lower data.search_per_class, or start Ray with a larger "
            "--object-store-memory (and machine), and scoring is faster"
        )
    fewer = "lower calibration.images, or " if drawn else ""
    mend = f"{fewer}start Ray with a larger --object-store-memory (and machine)"
    return Finding("object store", "; ".join([found, *small, *full]), mend if small else None)


def _calibration_bytes(ready: Ready) -> int:
    """Return the size of what a process holds to calibrate batch norms; 0 without calibration."""
    return _drawn_bytes(ready) and _drawn_bytes(ready) + loader_bytes(ready.data.train, ready.preset.recipe.augment)


def _drawn_bytes(ready: Ready) -> int:
    """Return the size of the images that batch norms are calibrated on, float32; 0 without calibration."""
    with torch.device("meta"):
        if not wants_calibration(build_supernet(ready.space)):
            return 0
    return calibration_bytes(ready.preset.calibration, ready.space.channels, ready.space.input_size)


def _drawn(ready: Ready, before: str = "") -> str:
    """Return a part of a line about what a process holds to calibrate batch norms."""
    if not (drawn := _drawn_bytes(ready)):
        return ""
    text = f"{before}{ready.preset.calibration.images:,} calibration images {_size(drawn)}"
    loaded = _calibration_bytes(ready) - drawn
    return f"{text}, drawn from decoded training images {_size(loaded)}" if loaded else text


def check_shared_memory(place: Place, seen: Mapping[str, Seen]) -> Finding:
    """Compare /dev/shm, in which Ray keeps its object store, with the store's size."""
    stores = {node.name: node.resources.get("object_store_memory", 0) for node in place.nodes}
    small = [
        f"{name}: {_size(this.shared_memory)} for an object store of {_size(stores[name])}"
        for name, this in seen.items()
        if stores.get(name, 0) > this.shared_memory
    ]
    if small:
        return Finding(
            "/dev/shm",
            "; ".join(small),
            "give a container more of it (docker run --shm-size, a memory emptyDir at /dev/shm on Kubernetes): Ray "
            "keeps its store on the disk otherwise",
        )
    return Finding("/dev/shm", ", ".join(f"{name} {_size(this.shared_memory)}" for name, this in seen.items()))


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"

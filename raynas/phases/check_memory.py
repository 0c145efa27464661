"""Check of the memory that a preset needs against what a cluster's nodes have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.calibration import wants_calibration
from raynas.phases.check_node import HERE, Seen
from raynas.phases.check_place import Finding, Place
from raynas.phases.preflight import Ready, preflight
from raynas.presets.preset import Preset
from raynas.training.memory import TrainingMemory, training_memory, weights_bytes

PROCESS = 700 * 2**20  # bytes of a worker's process with torch and Ray, before it holds anything
CUDA = 2**30  # bytes of a GPU that CUDA's context and its libraries take


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


def _memory(place: Place, ready: Ready, seen: Mapping[str, Seen]) -> Finding:
    """Compare the memory of a training's workers with what nodes and GPUs have."""
    workers, gpus = max(place.resources.fewest_workers, 1), place.resources.gpus
    need = training_memory(ready.space, ready.preset.recipe, workers, _sets(ready))
    found = f"a worker needs {_size(need.total + (CUDA if gpus else PROCESS))}: {_parts(need, ready, workers)}"
    lines = []
    counts = {node.name: place.workers_on(node) for node in place.nodes} or {HERE: 1}
    for name, count in counts.items():
        this = seen.get(name)
        if this is None or not count:
            continue
        if not gpus and count * (need.total + PROCESS) > this.memory:
            lines.append(f"{name} has {_size(this.memory)} for {count} worker(s)")
        on_one = max(1, int(1 / gpus)) if gpus else 0
        if gpus and this.gpu_memory and min(on_one, count) * (need.total + CUDA) > min(this.gpu_memory):
            lines.append(f"{name} has {_size(min(this.gpu_memory))} on a GPU for {min(on_one, count)} worker(s)")
    mend = "raise recipe.accumulate, lower recipe.batch_size, or take more workers or larger nodes"
    return Finding("memory", "; ".join([found, *lines]), mend if lines else None)


def _sets(ready: Ready) -> int:
    """Return the number of gradients that the preset's policy keeps apart."""
    plan, recipe = ready.preset.plan, ready.preset.recipe
    opened = plan.open_space(ready.space, recipe.epochs - 1, recipe.epochs)
    rng = np.random.default_rng(recipe.seed)
    passes = plan.build_sampler()(opened, rng, lambda archs: [0.0] * len(archs))
    return len(set(plan.build_gradients().assign(passes)))


def _parts(need: TrainingMemory, ready: Ready, workers: int) -> str:
    images = ready.preset.recipe.micro_batch(workers)
    return (
        f"weights {_size(need.parameters)}, gradients {_size(need.gradients)}, optimiser {_size(need.optimizer)}, "
        f"activations of {images} image(s) {_size(need.activations)}"
    )


def _store(place: Place, ready: Ready) -> Finding:
    """Compare weights and decoded images, which replicas map from each node's object store, with its size."""
    from raynas.scoring.shared_images import HERE_UP_TO  # local: it imports Ray

    weights, images = weights_bytes(ready.space), ready.estimate.search_bytes
    count = ready.estimate.search_images
    found = f"weights {_size(weights)} and {count:,} decoded images {_size(images)} once on each node"
    if drawn := _calibration_bytes(ready):
        found += f", with {ready.preset.calibration.images:,} calibration images {_size(drawn)}"
    in_driver = images if images <= HERE_UP_TO else 0  # on the head; more images are decoded where they are scored
    small = []
    for node in place.nodes:
        scores, store = node.holds(place.resources.of(1)), node.resources.get("object_store_memory", 0)
        if (scores or node.is_head) and store < weights + (images + drawn if scores else in_driver):
            small.append(f"{node.name} has {_size(store)}")
    fewer = "data.search_per_class or calibration.images" if drawn else "data.search_per_class"
    mend = f"lower {fewer}, or start Ray with a larger --object-store-memory (and machine)"
    return Finding("object store", "; ".join([found, *small]), mend if small else None)


def _calibration_bytes(ready: Ready) -> int:
    """Return the size of the images that batch norms are calibrated on, float32; 0 without calibration."""
    with torch.device("meta"):
        if not wants_calibration(build_supernet(ready.space)):
            return 0
    return 4 * ready.preset.calibration.images * ready.space.channels * math.prod(ready.space.input_size)


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

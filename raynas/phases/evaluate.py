"""Evaluation of finished networks on the test split, the only code that reads it; each reading is a row.

Rows count the earlier readings, since a network that is chosen by test accuracy is overfitted to the test split.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch

from raynas.cluster.resources import Resources
from raynas.costs.columns import arch_columns
from raynas.data.held import held
from raynas.data.images import ImageSet, decode
from raynas.data.load import Data, load_data, load_test
from raynas.data.pixels import Normalisation, normalise
from raynas.errors import UserError
from raynas.nets.attention_maps import attention_maps
from raynas.nets.supernet import Supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases.where import computing, default_resources
from raynas.progress.reporter import Progress, reporter, silent
from raynas.results.schemas import Row
from raynas.runs.networks import Network, belongs, input_size, of_arch
from raynas.runs.run import Run
from raynas.runs.trained_supernet import TrainedSupernet
from raynas.scoring.replica import device_name
from raynas.scoring.score_arch import BATCH, placed_images, score_arch

ATTENDED = 8
"""Number of test images on which attention is looked at, as far as `MOST_WEIGHTS` allows."""

MOST_WEIGHTS = 2**28
"""The most attention weights that are held at once (1 GiB), of all images, blocks and 16 heads of each."""

KEY = ("network", "how", "weights", "data", "test")
"""The columns of a row that its result depends on; older versions wrote no `test`."""

Key: TypeAlias = tuple[str | None, ...]
"""Values of `KEY`."""


def networks_to_evaluate(run: Run, arch: str | None = None, progress: Progress = silent) -> list[Network]:
    """Return the finished networks of a run: its winner with inherited weights, and all retrained networks.

    Args:
        arch: return only the networks of this arch (see `Run.arch`), or of a front (`front` or `NAME/front`).
        progress: called with a line if the arch is for other images than the run's.

    Raises:
        UserError: there is no such arch, or nothing is finished yet.
    """
    trained = run.networks()
    if arch is None and trained and not run.has_arch("best"):
        return trained
    if arch is not None and arch.rpartition("/")[2] == "front":
        front = run.front(arch)
        return [Network(one, "inherited") for one in front] + [
            each for each in trained if any(of_arch([each], one) for one in front)
        ]
    chosen = run.arch("best" if arch is None else arch, progress)
    own = belongs(chosen, space := run.space)
    if arch in (None, "best") and not own:
        told = "; ".join(space.differences(chosen.space).values()) or "its values are none of the space's"
        raise UserError(
            f"{run.name}/{run.search().winner_file} is no subnet of the run's space: {told}. It was changed after the "
            "search: restore it, or search again under another name"
        )
    if arch is not None:
        trained = of_arch(trained, chosen)
    if trained and not own:
        return trained  # such as a reference, which is no subnet and inherits no weights
    return [Network(chosen, "inherited"), *trained]


def evaluate(
    run: Run,
    networks: Sequence[Network],
    again: bool = False,
    batch_size: int = BATCH,
    progress: Progress = silent,
    resources: Resources | None = None,
) -> list[Row]:
    """Measure networks of a run on the test split, in passes of `batch_size` images; see `raynas.evaluate`.

    Args:
        resources: with replicas, a Ray task with the resources of one measures; None for those of `default_resources`.

    Returns:
        Rows of table `evaluations`, in the order of the networks. Networks that have a row are not measured unless
        `again` is True.
    """
    resources = resources or default_resources()
    with run.lock(), reporter(progress).doing("evaluating", len(networks), "networks") as activity:
        known, keys = _newest(run), dict[Network, Key]()
        skipped = set() if again else set(known)
        ordered = sorted(networks, key=_size)  # so that the images of one size at a time are held
        arguments = measure, run, ordered, skipped, batch_size
        with computing(*arguments, resources=resources, progress=progress, activity=activity) as found:
            for place, network in enumerate(ordered, 1):
                keys[network] = key = tuple(next(found))
                if key not in skipped:
                    progress(f"evaluating {network.name} on the test split ({place} of {len(networks)})")
                    reading = 1 + max((row["reading"] for row in _newest(run).values()), default=0)
                    run.store.append("evaluations", [{**next(found), "reading": reading}])
                activity.advance()
        known = _newest(run)
        return [known[keys[network]] for network in networks]


def measure(
    run: Run, networks: Sequence[Network], skipped: set[Key], batch_size: int, device: str
) -> Generator[Any, None, None]:
    """Yield for each network its key and, unless this is among the skipped ones, its row, which lacks the reading."""
    data, parent = load_data(run.data_config), run.supernet(device)
    for size, some in groupby(networks, _size):
        yield from _measure_at_size(run, parent, some, data.resized(size), skipped, batch_size, device)


def _size(network: Network) -> tuple[int, int]:
    return network.arch.space.input_size


def _measure_at_size(
    run: Run,
    parent: TrainedSupernet,
    networks: Iterator[Network],
    data: Data,
    skipped: set[Key],
    batch_size: int,
    device: str,
) -> Iterator[Any]:
    """Yield what `measure` does, of networks for images of one size."""
    test = load_test(data.config).at(data.size, data.channels)
    pixels = cache(lambda: placed_images([held(test)], torch.device(device)))
    for network in networks:
        model = run.model(network, parent)
        weights = weights_fingerprint(model.state_dict())
        key = (network.arch.network_id, network.how, weights, data.fingerprint, test.fingerprint)
        old = (*key[:-1], None)
        yield old if old in skipped and key not in skipped else key
        if skipped & {key, old}:
            continue
        model, labels = model.to(device).eval(), torch.from_numpy(test.labels).to(device)
        try:
            score = score_arch(model, model.space.smallest(), pixels(), labels, data.normalisation, batch_size)
        except FloatingPointError as error:
            raise UserError(f"{network.name}: weights are finite and outputs are not: train it again") from error
        yield {
            **arch_columns(network.arch),
            "how": network.how,
            "path": network.path,
            "weights": weights,
            "accuracy": float(score.top1.mean()),
            "top5": None if score.top5 is None else float(score.top5.mean()),
            "loss": score.loss,
            "images": len(labels),
            "seconds": score.seconds,
            "data": data.fingerprint,
            "test": test.fingerprint,
            "seed": network.seed,
            "device": device_name(torch.device(device)),
            **input_size(network.arch),
            **_attention(model, test, torch.device(device), data.normalisation),
        }


def _attention(model: Supernet, images: ImageSet, device: torch.device, normalisation: Normalisation) -> dict[str, Any]:
    """Return the columns about the attention of a network on the first images.

    There are none for two paths, whose logits are averaged, nor if the weights of one image are too many.
    """
    if len(model.sides) > 1:
        return {}
    weights = 16 * sum(attending.pairs for attending in model.attending())
    if not (count := min(ATTENDED, len(images), MOST_WEIGHTS // max(weights, 1))):
        return {}
    pixels = decode(images.take(np.arange(count)))[0].to(device)
    maps = attention_maps(model, normalise(pixels, normalisation))
    return {
        "distances": [each.distance().tolist() for each in maps],
        "similarities": [each.mean_similarity() for each in maps],
    }


def _newest(run: Run) -> dict[Key, Row]:
    """Return the last row of every evaluated network, by the columns that its result depends on."""
    rows = run.store.read("evaluations").to_pylist()
    return {tuple(row[name] for name in KEY): row for row in rows}

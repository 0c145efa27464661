"""A user's own map-style torch dataset, named as `module:function`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from raynas.data.pool import Pool, spread
from raynas.data.reading import spread_values
from raynas.errors import UserError
from raynas.user_code import load_object, running

MOST_CLASSES = 2**24


@dataclass(frozen=True)
class TorchSource:
    """Items of a map-style dataset: (PIL image or tensor, label).

    Attributes:
        dataset: the user's dataset.
        function: the function that made it, for messages.
        items: the items in use, int64 [n]; None for all. Messages name items by their number in the dataset.
        pixel_range: the values of black and white in items of more than 8 bits.
        part: `test ` for the second dataset of a pair.
    """

    dataset: Dataset
    function: str
    items: np.ndarray | None = None
    pixel_range: tuple[float, float] | None = None
    part: str = ""

    def image(self, index: int) -> Image.Image | Tensor:
        image = _item(self, index)[0]
        with running(f"{self.where(index)}: reading its pixels"):  # tensors come in kinds that few functions take
            return _pixels(image, self.where(index), self.pixel_range)

    def where(self, index: int) -> str:
        return f"{self.function} {self.name(index)}"

    def name(self, index: int) -> str:
        return f"{self.part}item {self.item(index)}"

    def item(self, index: int) -> int:
        """Return an image's number in the dataset."""
        return index if self.items is None else int(self.items[index])

    def keep(self, indices: np.ndarray) -> TorchSource:
        return replace(self, items=indices if self.items is None else self.items[indices])

    def signature(self, indices: np.ndarray) -> bytes:
        """Return a hash of 16 images spread over the set, since reading all may take too long."""
        digest = hashlib.sha256(f"{self.function} {len(indices)}".encode())
        for index in indices[spread(len(indices))].tolist():
            image = self.image(index)
            digest.update(image.tobytes() if isinstance(image, Image.Image) else image.numpy().tobytes())
        return digest.digest()


def read_torch_dataset(
    name: str, pixel_range: tuple[float, float] | None = None
) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return images for training, separate test images if the function returns a pair, and class names in label order.

    The function takes no argument and returns a map-style dataset or (train, test). Items are (image, label): a PIL
    image, a uint8 tensor [channels, height, width], or a float tensor of that shape within [0, 1]; integer labels from
    0. With `pixel_range`, tensors may have any other type and range. The dataset must not augment: raynas does.
    Labels are read from `targets` or `labels` if the dataset has them and they agree with its items, else from every
    item; class names from `classes`.

    Raises:
        UserError: it cannot be imported or called, or returns something else.
    """
    function = load_object(name, {}, "data")
    with running(f"data {name!r}: the function"):
        returned = function()
    with running(f"data {name!r}: reading its labels and classes"):
        return _pools(returned, name, pixel_range)


def _pools(
    returned: Any, name: str, pixel_range: tuple[float, float] | None
) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return the images, labels and class names of a user's datasets."""
    datasets = returned if isinstance(returned, tuple) else (returned,)
    if len(datasets) not in (1, 2) or not all(_map_style(dataset) for dataset in datasets):
        raise UserError(
            f"data {name!r}: expected a map-style torch dataset (with __len__ and __getitem__) or a pair (train, test) "
            f"of them, found {', '.join(type(dataset).__name__ for dataset in datasets)}"
        )
    sources = [
        TorchSource(dataset, name, None, pixel_range, part)
        for dataset, part in zip(datasets, ("", "test "), strict=False)
    ]
    labels = [_labels(source) for source in sources]
    names = getattr(datasets[0], "classes", None)
    count = len(names) if isinstance(names, (list, tuple)) else int(labels[0].max()) + 1
    if count > MOST_CLASSES:
        raise UserError(f"data {name!r}: {count:,} classes by its largest label; labels count from 0 without gaps")
    class_names = tuple(map(str, names)) if isinstance(names, (list, tuple)) else tuple(map(str, range(count)))
    for source, values in zip(sources, labels, strict=True):
        wrong = np.flatnonzero((values < 0) | (values >= count))
        if len(wrong):
            raise UserError(f"{source.where(int(wrong[0]))}: label {values[wrong[0]]} is outside 0..{count - 1}")
    if count < 2:
        raise UserError(f"data {name!r}: only one class; telling classes apart takes at least two")
    pools = [Pool(source, values) for source, values in zip(sources, labels, strict=True)]
    return pools[0], pools[1] if len(pools) == 2 else None, class_names


def _map_style(dataset: Any) -> bool:
    usable = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return usable and not isinstance(dataset, (IterableDataset, dict, str)) and len(dataset) > 0


def _item(source: TorchSource, index: int) -> tuple[Any, Any]:
    with running(f"{source.where(index)}: reading (image, label)"):
        image, label = source.dataset[source.item(index)]
    return image, label


def _labels(source: TorchSource) -> np.ndarray:
    dataset = source.dataset
    count = len(dataset)  # type: ignore[arg-type]
    for name in ("targets", "labels"):
        known = getattr(dataset, name, None)
        if known is not None and len(known) == count:
            values = np.asarray(known)
            sample = spread(count).tolist()
            if values.ndim == 1 and all(values[k] == _label(source, k) for k in sample):
                return values.astype(np.int64)
    return np.array([_label(source, k) for k in range(count)], dtype=np.int64)


def _label(source: TorchSource, index: int) -> int:
    label = _item(source, index)[1]
    value = np.asarray(label)
    if value.ndim or value.dtype.kind not in "iu":
        raise UserError(f"{source.where(index)}: the label is {label!r}; expected an integer class")
    return int(value)


def _pixels(image: Any, where: str, pixel_range: tuple[float, float] | None) -> Image.Image | Tensor:
    if isinstance(image, Image.Image):
        if not all(image.size):
            raise UserError(f"{where}: the image has no pixels ({image.width} x {image.height})")
        return image
    if not isinstance(image, Tensor):
        raise UserError(f"{where}: the image is a {type(image).__name__}; return a PIL image or a tensor")
    if image.is_meta or image.is_quantized or image.layout != torch.strided:
        raise UserError(f"{where}: the image is a tensor of an unusual kind; return an ordinary one")
    image = image.detach().cpu()
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.numel() == 0:
        raise UserError(f"{where}: the image has shape {tuple(image.shape)}; expected [channels, height, width]")
    if image.dtype == torch.uint8:
        return image
    if image.is_complex() or image.dtype == torch.bool:
        raise UserError(f"{where}: the image is {image.dtype}; expected uint8, or float within [0, 1]")
    if pixel_range is not None or not image.is_floating_point():
        return torch.from_numpy(spread_values(image.double().numpy(), pixel_range, where))
    if not torch.isfinite(image).all():
        raise UserError(f"{where}: the image has NaN or infinite pixels")
    if image.min() < 0 or image.max() > 1:
        low, high = image.min().item(), image.max().item()
        raise UserError(
            f"{where}: pixels span [{low:.4g}, {high:.4g}]; float images must be within [0, 1], unnormalised, "
            "or data.pixel_range must say which values are black and white"
        )
    return (image * 255).round().to(torch.uint8)

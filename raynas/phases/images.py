"""Checks and description of a preset's images before anything is trained."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from raynas.cluster.resources import Resources
from raynas.data.class_order import order_of
from raynas.data.config import EMBEDDED, DataConfig
from raynas.data.load import Data, count_splits, load_data, look_at, sample_shapes
from raynas.data.look import Findings
from raynas.errors import UserError
from raynas.locations import hide_secrets
from raynas.phases.inputs import are_files, named_data, resolve_data, space_of
from raynas.phases.look_elsewhere import see_with
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress
from raynas.training.recipe import Recipe

CLASSES_SHOWN = 50
NAMES_SHOWN = 20
FEW = 200  # images of the search split: with fewer the standard error of an accuracy of 90 % is over 2 points
PIXELS = "PIXELS"  # in place of a size that has to be chosen
TRANSPARENT = ("RGBA", "RGBa", "LA", "La", "PA")


def check_made_for(before: Preset, preset: Preset) -> None:
    """Refuse a replacement of the preset's dataset whose images would lose colour or size in the preset's space.

    Args:
        before: the preset with its own data.
        preset: the preset with the other data.

    Raises:
        UserError: images would lose colour or size without a setting that asks for it.
    """
    if (follow := follow_images(before, preset)) is None:
        return
    config, space = named_data(preset), space_of(preset)
    seen, read = _shapes_text(sample_shapes(config)), _shape_text((*space.input_size, space.channels))
    chosen_for = "" if before.data is None else before.data.name
    all_the_same = {"data.size": _one_number(space.input_size), "data.channels": space.channels}
    raise UserError(
        f"the images are {seen}, and {space.name}, which this preset chose for other data ({chosen_for}), reads "
        f"{read}: to follow the images give {_settings(follow)}; to read them so all the same, "
        f"{_settings(all_the_same)}"
    )


def follow_images(before: Preset, preset: Preset) -> dict[str, str] | None:
    """Return the settings by which the space follows other images; None if none of them loses colour or size without.

    A size that has to be chosen is `PIXELS`. Arguments are those of `check_made_for`.
    """
    config = preset.data
    chosen_for = "" if before.data is None else before.data.name
    if config is None or chosen_for in ("", config.name) or not are_files(config):
        return None
    space = space_of(preset)
    shapes = sample_shapes(config)
    loses_colour = config.channels is None and space.channels == 1 and any(shape[2] > 1 for shape in shapes)
    smaller = any(min(shape[:2]) > max(space.input_size) for shape in shapes)
    if not loses_colour and not (config.size is None and smaller):
        return None
    one = len({shape[:2] for shape in shapes}) == 1
    follow = {"data.size": "own" if one else PIXELS} if config.size is None else {}
    return follow | ({"data.channels": "own"} if config.channels is None else {})


def _settings(values: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in values.items())


def _one_number(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"'[{size[0]}, {size[1]}]'"


def _shape_text(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    return f"{height} x {width} {_colours(channels)}"


def _colours(channels: int) -> str:
    return {1: "grey", 3: "RGB"}.get(channels, f"of {channels} channels")


def _shapes_text(shapes: Iterable[tuple[int, int, int]]) -> str:
    """Return the shapes of some of the images in words: `16 x 16 RGB`, `of sizes such as 2 x 3 and 40 x 60, RGB`."""
    listed = list(shapes)
    sizes = sorted({shape[:2] for shape in listed}, key=lambda size: (size[0] * size[1], size))
    colours = " and ".join(_colours(channels) for channels in sorted({shape[2] for shape in listed}))
    ends = [f"{height} x {width}" for height, width in (sizes[0], sizes[-1])]
    return f"{ends[0]} {colours}" if len(sizes) == 1 else f"of sizes such as {' and '.join(ends)}, {colours}"


def check_images(preset: Preset, resources: Resources, progress: Progress) -> None:
    """Read every image before anything is trained, and list those that cannot be read.

    Args:
        resources: of the work to come; see `see_with`.

    Raises:
        UserError: some image cannot be read and is not skipped by the settings, or each image has a single colour.
    """
    config = named_data(preset)
    if config.name not in EMBEDDED:
        _refuse_unreadable(config, look_at(config, progress, see_with(resources)), progress)


def _refuse_unreadable(config: DataConfig, found: Findings, progress: Progress) -> None:
    for line in _unreadable_lines(found):
        progress(f"{'skipped' if config.skip == 'unreadable' else 'unreadable'}: {line}")
    if found.unranged is not None:
        raise UserError(found.unranged)
    if len(found.unreadable) == found.count:
        raise UserError("none of the images can be read (see above): give images that Pillow reads")
    if found.unreadable and config.skip != "unreadable":
        raise UserError(
            f"{len(found.unreadable):,} of {found.count:,} images cannot be read (see above): mend or "
            "remove them, or leave them out: --set data.skip=unreadable"
        )
    if found.flat:
        raise UserError(
            "every image is read as one colour all over, such as black: convert them to grey or RGB of 8 bits a channel"
        )


def _unreadable_lines(found: Findings) -> list[str]:
    """Return a line for each reason why images cannot be read: how many, why, and the names of the first."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for name, line in found.unreadable.items():
        why = line.split(name, 1)[-1].removeprefix(": ")
        kinds.setdefault(re.sub(r"\d+", "0", why), (why, []))[1].append(name)  # "12 bytes" and "13 bytes": one reason
    lines = []
    for why, names in kinds.values():
        more = f", and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        lines.append(f"{len(names):,} image(s) {why}: {', '.join(names[:NAMES_SHOWN])}{more}")
    return lines


def check_data(config: DataConfig | None, preset: Preset | None, resources: Resources, progress: Progress) -> Data:
    """Describe a dataset and its preprocessing, for a preset if one is given, and return it; see `raynas.check`."""
    if preset is not None:
        config = named_data(preset)
    assert config is not None
    found = look_at(config, progress, see_with(resources))
    total = Counter(found.modes)
    progress(f"data      {hide_secrets(config.name)}")
    unreadable = f", of which {len(found.unreadable):,} unreadable" if found.unreadable else ""
    progress(f"images    {found.count:,}{unreadable}")
    if found.sizes:
        progress(f"sizes     {_sizes_text(found.sizes)}")
        progress(f"modes     {', '.join(f'{mode} {count:,}' for mode, count in total.most_common())}")
        transparent = sum(count for mode, count in total.items() if mode in TRANSPARENT)
        if transparent:
            progress(f"          transparency is left out: the colours under it are seen ({transparent:,} images)")
    if found.turned:
        how = "left as they are stored: data.exif=ignored" if config.exif == "ignored" else "turned upright"
        progress(f"EXIF      {found.turned:,} image(s) are not stored upright, and are {how}")
    splits, classes = count_splits(config)
    progress(f"splits    {', '.join(f'{name} {count:,}' for name, count in splits.items())}")
    for line in describe_few(splits["search"]):
        progress(f"          {line}")
    shown = ", ".join(f"{name} {count:,}" for name, count in list(classes.items())[:CLASSES_SHOWN])
    more = f", and {len(classes) - CLASSES_SHOWN:,} more" if len(classes) > CLASSES_SHOWN else ""
    progress(f"classes   {len(classes):,}: {shown}{more}")
    progress(f"order     {_order_text(config, tuple(classes))}")
    _refuse_unreadable(config, found, progress)
    if preset is None:
        data = load_data(config)
        lines = [f"{_shape_text((*data.size, data.channels))}, where neither the preset nor its space says otherwise"]
    else:
        data = load_data(resolve_data(preset, space_of(preset)))
        lines = describe_reading(preset, data) or ["the images are read as they are"]
    progress(f"read as   {lines[0]}")
    return data


def _sizes_text(sizes: Counter[tuple[int, int]]) -> str:
    """Return sizes in words, height before width."""
    if len(sizes) <= 4:
        return ", ".join(f"{height} x {width} {count:,}" for (height, width), count in sizes.most_common())
    heights, widths = (f"{min(sides)} to {max(sides)}" for sides in zip(*sizes, strict=True))
    (height, width), count = sizes.most_common(1)[0]
    return f"heights {heights}, widths {widths}; most often {height} x {width} ({count:,})"


def _order_text(config: DataConfig, names: tuple[str, ...]) -> str:
    order = order_of(names)
    if order == "any":
        return "plain and natural order are the same here"
    if order == "other":
        return "as the dataset gives them"
    if not are_files(config):
        return f"{order}, as the dataset gives them"
    if order == "plain":
        return "plain, as torchvision's; timm's is natural: --set data.class_order=natural"
    return "natural, as timm's" + ("; torchvision's is plain" if config.class_order == "natural" else "")


def describe_reading(preset: Preset, data: Data) -> list[str]:
    """Return a line about the preprocessing, and one about the order of the classes if there is a choice.

    Args:
        preset: preset with the data settings as given by the user.
    """
    config = data.config
    height, width, channels = *data.size, data.channels
    lines = []
    if config.name not in EMBEDDED:
        shapes = sample_shapes(config)
        read = _shape_text((height, width, channels))
        if {*shapes} == {(height, width, channels)}:
            lines.append(f"the images are read as they are: {read}")
        else:
            asked = named_data(preset)
            given = preset.space is not None and asked.size is not None and asked.channels is not None
            why = (
                "the settings say so"
                if given or not are_files(config)
                else f"{preset.space or 'the model'} is of such images"
            )
            lines.append(f"the images, {_shapes_text(shapes)}, are read as {read}: {why}")
    if are_files(config) and order_of(data.class_names) == "plain":
        names = ", ".join(data.class_names[:4])
        lines.append(
            f"the classes are in plain order ({names}{', ...' if data.classes > 4 else ''}), as torchvision's; "
            "in timm's it is natural: --set data.class_order=natural"
        )
    return lines


def describe_few(count: int) -> list[str]:
    """Return a line if the search split has too few images to tell subnets apart."""
    if count >= FEW:
        return []
    error = 100 * math.sqrt(0.9 * 0.1 / count)
    return [
        f"the search split has {count} images, so that an accuracy of 90 % has a standard error of {error:.1f} points: "
        "too few to tell like subnets apart; more by --set data.search_fraction=0.5, or with more images"
    ]


def describe_jitter(recipes: Iterable[Recipe], channels: int) -> list[str]:
    """Return a line for each way in which a recipe's `color_jitter` does less than it seems to."""
    given = [recipe.augment for recipe in recipes if recipe.augment.color_jitter]
    lines = []
    if not all(augment.jitters for augment in given):
        lines.append(
            "color_jitter has no effect beside auto_augment, as in timm: recipe.augment.force_color_jitter=true has it"
        )
    if channels == 1 and any(augment.jitters for augment in given):
        lines.append("the images are grey: color_jitter changes their brightness and contrast alone")
    return lines

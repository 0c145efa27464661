"""Arguments of the public functions: what a user has at hand (names, paths, Python values), as checked values."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from raynas.arguments import checked
from raynas.documents import check_overrides
from raynas.errors import UserError
from raynas.progress.reporter import Progress, reporter

if TYPE_CHECKING:
    from raynas.data.config import DataConfig
    from raynas.presets.preset import Preset
    from raynas.runs.run import Run
    from raynas.space import Arch, Space

RunLike: TypeAlias = "Run | str | os.PathLike[str]"
"""A run directory: opened, or its path or URI (any pyarrow filesystem: `s3://`, `gs://`)."""

PresetLike: TypeAlias = "Preset | str | os.PathLike[str]"
"""A preset, the name of a shipped one, or the path of a YAML file."""

DataLike: TypeAlias = "DataConfig | Mapping[str, Any] | str | os.PathLike[str]"
"""A dataset: a name, a folder, a URI, `module:function`, or settings as in a preset."""


typed = checked(
    Run="raynas.runs.run",
    Preset="raynas.presets.preset",
    DataConfig="raynas.data.config",
    Arch="raynas.space",
    Space="raynas.space",
)


@contextmanager
def loading(progress: Progress) -> Iterator[None]:
    """Show that a block imports PyTorch, and what is built on it, which takes many seconds the first time.

    The garbage collector rests: it would go through the imported objects again and again, for a fifth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with reporter(progress).doing("loading PyTorch"):
            yield
    finally:
        if collects:
            gc.enable()


def run_preset(run: Run, overrides: Mapping[str, Any] | None = None) -> Preset:
    """Return the preset of a run with changes by dotted key.

    Raises:
        UserError: the run has none yet, or a change does not fit.
    """
    from raynas.presets.preset import override

    check_overrides(overrides or {})
    return override(run.preset, overrides or {})


def opened_run(run: RunLike) -> Run:
    """Return a run, opened if its path is given."""
    from raynas.runs.run import open_run

    return open_run(run)


def chosen_arch(run: Run, arch: Arch | str, progress: Progress) -> Arch:
    """Return an arch, read from a run if it is named."""
    from raynas.space import Arch

    return arch if isinstance(arch, Arch) else run.arch(arch, progress)


def chosen_space(space: Space | str | os.PathLike[str] | None) -> Space | None:
    """Return a space, read from its file if it is named; None for none."""
    from raynas.space import Space, load_space

    return space if space is None or isinstance(space, Space) else load_space(space)


def read_preset(preset: PresetLike) -> Preset:
    """Return a preset, read from its file if it is named."""
    from raynas.presets.preset import Preset, load_preset

    return preset if isinstance(preset, Preset) else load_preset(os.fspath(preset))


def chosen_preset(
    preset: PresetLike, data: DataLike | None, overrides: Mapping[str, Any] | None, check_data: bool = True
) -> Preset:
    """Return a preset with other data and changes; `check_data`: the data must suit the preset's space."""
    from raynas.presets.preset import override

    before = read_preset(preset)
    changes = dict(overrides or {})
    check_overrides(changes)
    if data is not None and "data" in changes:
        raise UserError("the data is given twice, by name and by an override of data: give it once")
    if data is not None:
        changes = {"data": data_settings(data), **changes}
    after = override(before, changes)
    if check_data and data is not None:
        from raynas.phases.images import check_made_for

        check_made_for(before, after)
    return after


def data_settings(data: DataLike) -> dict[str, Any]:
    """Return the settings of a dataset as plain values."""
    if isinstance(data, str | os.PathLike):
        return {"name": os.fspath(data)}
    return dict(data) if isinstance(data, Mapping) else data.model_dump()


def data_alone(data: DataLike, overrides: Mapping[str, Any]) -> DataConfig:
    """Return the settings of a dataset without a preset, with changes by dotted key."""
    from raynas.config import validate
    from raynas.data.config import DataConfig
    from raynas.documents import Document
    from raynas.presets.preset import with_value

    if wrong := [key for key in overrides if not key.startswith("data.")]:
        raise UserError(f"--set {wrong[0]}: without a preset only values of data can be set, such as data.size=32")
    check_overrides(overrides)
    values: dict[str, Any] = {"data": data_settings(data)}
    for key, value in overrides.items():
        values = with_value(values, key, value)
    return validate(DataConfig, Document(values, "override"), ("data",))


def check_place(run_dir: RunLike, data: DataConfig | None = None) -> None:
    """Refuse a run directory that would mix with other files, or overwrite them.

    Args:
        data: the images, in whose folder it must not lie.

    Raises:
        UserError: it is a file, lies in another run directory or in the images' folder, or is a folder of other files.
    """
    from pyarrow.fs import FileSelector

    from raynas.filesystem import FAILURES, open_filesystem
    from raynas.locations import hide_secrets, is_uri
    from raynas.results.run_dir import MARKER, run_around
    from raynas.text import is_text

    given = os.fspath(run_dir) if isinstance(run_dir, str | os.PathLike) else run_dir.uri
    if not is_uri(given) and is_text(given):  # what is no text is refused below
        place, around = Path(os.path.realpath(given)), run_around(given)
        if place.is_file():
            raise UserError(f"{given} is a file: give a folder for the run")
        if around not in (None, place):
            raise UserError(f"{given} lies in the run directory {around} (it has a {MARKER}): give a folder elsewhere")
        images = None if data is None or not data.name or is_uri(data.name) else Path(os.path.realpath(data.name))
        if images is not None and images.is_dir() and images in (place, *place.parents):
            raise UserError(
                f"{given} lies in the folder of the images, and would be read with them: give one elsewhere"
            )
    filesystem, root = open_filesystem(given)
    try:
        found = filesystem.get_file_info(FileSelector(root, allow_not_found=True))
    except FAILURES as error:
        raise UserError(f"{hide_secrets(given)}: cannot be listed: {error}") from error
    names = sorted(info.base_name for info in found)
    others = [name for name in names if not name.startswith(".")]
    if others and MARKER not in names:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise UserError(
            f"{hide_secrets(given)} is no run directory, and holds other files ({some}): give a new or empty folder"
        )

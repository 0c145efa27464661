"""Functions that find, read and write space and arch files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from pydantic import Field

from raynas.arguments import checked
from raynas.config import Config, validate
from raynas.documents import Document, read_yaml, write_yaml
from raynas.errors import ConfigError
from raynas.space.space import Arch, Space
from raynas.space.values import flatten
from raynas.text import nearest, shown

_PACKAGE = Path(__file__).resolve().parents[1]
SPACES = next(
    (path for path in (_PACKAGE / "spaces", _PACKAGE.parent / "spaces") if path.is_dir()), _PACKAGE / "spaces"
)
"""The shipped spaces' folder: inside an installed package, or beside it in a checkout."""


class ArchConfig(Config):
    """An arch file.

    Attributes:
        space: the arch's space: a shipped name, a path (relative to this file), or an inline definition.
        off_grid: True if the values may differ from the space's choices; the arch then gets a one-point space with the
            named space's constants.
        arch: the values, as `Arch.to_dict` writes them.
        published: the arch's figures from its paper or release, for information.
        found: the arch's figures measured by a search, for information.
    """

    space: str | dict[str, Any]
    off_grid: bool = False
    arch: dict[str, Any]
    published: dict[str, Any] = Field({})
    found: dict[str, Any] = Field({})


def find_shipped(name: str | os.PathLike[str], kind: str, hint: str | None = None) -> Path:
    """Return the file for a name or path: an existing path, or `spaces/<name>.yaml` of this package.

    Args:
        kind: the kind of file, for the error: `space`, `arch`, `preset` or `ablation`.
        hint: text for the error if no shipped file has a similar name; by default the list of shipped files.

    Raises:
        ConfigError: there is no such file; the message names the nearest shipped one.
    """
    if there := _first_file(Path(name), SPACES / f"{name}.yaml"):
        return there
    if name and (inside := _in_folder(Path(name), kind)):
        raise ConfigError(f"{shown(str(name))} is a folder: give a file in it, such as {inside}")
    if os.path.isabs(name) or str(name).startswith("."):
        raise ConfigError(f"no {kind} {shown(str(name))}: no such file or folder")
    shipped = sorted(path.relative_to(SPACES).with_suffix("").as_posix() for path in SPACES.rglob("*.yaml"))
    shipped = [file for file in shipped if _kind(file) == (kind if kind in _KINDS else "")]
    said = nearest(str(name), shipped, hint)
    raise ConfigError(f"no {kind} {shown(str(name))}: not a file, and not shipped{said}")


_KINDS = ("preset", "ablation")
"""Kinds of files that their names begin with; the others are spaces and archs."""


def _kind(file: str) -> str:
    """Return the kind of a shipped file by its name; empty for a space or an arch."""
    name = file.rpartition("/")[2]
    return next((kind for kind in _KINDS if name.startswith(kind)), "")


def _in_folder(folder: Path, kind: str) -> Path | None:
    """Return the likely file in a folder given instead of one, such as a run directory; None if there is none."""
    named = ("{0}.yaml", "{0}s/best.yaml", "{0}s/0.yaml", "*/{0}.yaml", "trials/*/{0}s/0.yaml")
    first = [pattern.format(each) for each in kind.split(" or ") for pattern in named]
    with contextlib.suppress(OSError, ValueError):  # not a legal folder name
        return next((file for pattern in (*first, "*.yaml") for file in sorted(folder.glob(pattern))), None)
    return None


def find_beside(folder: Path, name: str) -> Path | None:
    """Return the file of that name in a folder, with or without `.yaml`; None if there is none."""
    return _first_file(folder / name, folder / f"{name}.yaml")


def _first_file(*paths: Path) -> Path | None:
    for path in paths:
        with contextlib.suppress(OSError):  # not a legal file name
            if path.is_file():
                return path
    return None


def describes_arch(name: str | Path) -> bool:
    """Return True if a space or arch file, given by name or path, holds an arch.

    Raises:
        ConfigError: there is no such file, or it is not YAML.
    """
    data = read_yaml(find_shipped(name, "space or arch")).data
    return isinstance(data, dict) and "arch" in data


@checked()
def load_space(name: str | os.PathLike[str]) -> Space:
    """Load a search space: a shipped name such as `autoformer/tiny`, or a path to a YAML file.

    Raises:
        ConfigError: there is no such file, or it is wrong; the message names file, line and key.
    """
    path = find_shipped(name, "space")
    document = read_yaml(path)
    if isinstance(document.data, dict) and "arch" in document.data:
        raise document.error(("arch",), "this file describes an arch, not a space; read it with raynas.load_arch")
    if isinstance(document.data, dict) and "space" in document.data:
        raise document.error(("space",), f"this file is a preset; its space is {shown(document.data['space'])}")
    return Space.from_document(document, _name(path))


@checked()
def load_arch(name: str | os.PathLike[str]) -> Arch:
    """Load an architecture; `arch.space` is its space.

    Args:
        name: a shipped name such as `autoformer/published/tiny`, or a path. The file is an arch file (see
            `ArchConfig`), or a space file that allows one arch only.

    Raises:
        ConfigError: there is no such file, or it is wrong; the message names file, line and key.
    """
    path = find_shipped(name, "arch")
    return read_arch(read_yaml(path), _name(path), path.parent)


def read_arch(document: Document, name: str, folder: Path | None = None) -> Arch:
    """Return the architecture that a document holds, as `load_arch` does.

    Args:
        name: name of a space whose definition is in the document.
        folder: folder of space files that the document may name.

    Raises:
        ConfigError: the document is wrong.
    """
    if isinstance(document.data, dict) and "family" in document.data and "space" not in document.data:
        space = Space.from_document(document, name)
        if space.cardinality() > 1:
            raise document.error((), f"this file describes a space of {space.cardinality()} archs, not an arch")
        return space.smallest()
    config = validate(ArchConfig, document)
    if isinstance(config.space, dict):
        space = Space.from_document(document, name, ("space",))
    else:
        beside = None if folder is None else find_beside(folder, config.space)
        space = load_space(beside or config.space)
    values = flatten(config.arch)
    try:
        arch = space.off_grid(values) if config.off_grid else space.arch(values)
    except ConfigError as error:
        raise document.error(("arch",), str(error)) from error
    idle = [name for name in values if name not in arch]
    if idle:  # an arch in memory drops inactive genes; in a file they are a mistake
        raise document.error(("arch",), f"{idle[0]!r} does not act in this arch (is the depth right?)")
    return arch


def save_arch(arch: Arch, path: str | Path, **published: Any) -> None:
    """Write an arch with its whole space to one YAML file, which `raynas.load_arch` reads anywhere."""
    content: dict[str, Any] = {"space": arch.space.to_dict(), "arch": arch.to_dict()}
    if published:
        content["published"] = published
    write_yaml(path, content)


def _name(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(SPACES).with_suffix("").as_posix() if path.is_relative_to(SPACES) else path.stem

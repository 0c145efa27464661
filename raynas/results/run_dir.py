"""The run directory: its files, tables and lock, on a local path or any pyarrow filesystem URI."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pyarrow import fs

from raynas.arguments import checked
from raynas.documents import Document, parse_yaml
from raynas.errors import RunDirError
from raynas.filesystem import FAILURES, cannot_write, check_plain, open_filesystem, write_whole
from raynas.locations import hide_secrets, inside, without_credentials
from raynas.results import lock
from raynas.results.folder import whole_folder, write_together
from raynas.results.store import Store
from raynas.text import named

MARKER = "raynas.yaml"
FORMAT = 1


class RunDir:
    """A folder of files and tables with one writer at a time; cheap to make, picklable.

    Args:
        uri: a local path, or a URI with its options as a query: `s3://bucket/run?region=eu-west-1`.
        create: True to create it if it does not exist.

    Attributes:
        uri: the URI, or the absolute local path.
        name: the same without credentials, for messages.
        filesystem: the pyarrow filesystem.
        path: the local path, or None on an object store.

    Raises:
        RunDirError: it does not exist, is not a run directory, or cannot be reached.
    """

    @checked()
    def __init__(self, uri: str | os.PathLike[str] | RunDir, create: bool = False):
        given: str = os.fspath(uri) if isinstance(uri, str | os.PathLike) else uri.uri
        self.filesystem, self.root = open_filesystem(given)
        self.path = Path(self.root) if isinstance(self.filesystem, fs.LocalFileSystem) else None
        self.uri: str = given if self.path is None else str(self.path)
        self.name = hide_secrets(self.uri)
        if self.path is not None and "working_dir_files" in self.path.parts:
            raise RunDirError(
                f"{given} lies in the working directory of a Ray job, which is deleted with the job: give a path that "
                "every node sees, or a URI"
            )
        if not self.exists(MARKER):
            if not create:
                raise RunDirError(f"{self.name} is not a run directory: it has no {MARKER}")
            self.write_yaml(MARKER, {"format": FORMAT})
        elif self._format() > FORMAT:
            raise RunDirError(f"{self.name} was written by a newer raynas: upgrade (pip install -U raynas)")

    def _format(self) -> int:
        found = self.read_yaml(MARKER, "format")["format"]
        if not isinstance(found, int):
            raise RunDirError(f"{self.name}/{MARKER} is damaged: its format is {found!r}; write `format: {FORMAT}`")
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri, True)

    # -- files -----------------------------------------------------------------------------------------------------

    def at(self, name: str) -> str:
        """Return the path of a file for use with `filesystem`."""
        return f"{self.root}/{name}" if name else self.root

    def local_or_uri(self, name: str = "") -> str:
        """Return the local path of a file or folder, or its URI with this one's options."""
        return self.at(name) if self.path is not None else inside(self.uri, name)

    def exists(self, name: str) -> bool:
        """Return True if there is such a file or folder.

        Raises:
            RunDirError: the filesystem cannot be reached.
        """
        return self._kind(name) != fs.FileType.NotFound

    def _kind(self, name: str) -> fs.FileType:
        try:
            return self.filesystem.get_file_info(self.at(name)).type
        except FAILURES as error:
            raise RunDirError(f"{self.name}: cannot be reached: {error}") from error

    def list(self, name: str = "") -> list[str]:
        """Return the sorted visible names in a folder; none if there is no such folder."""
        self._check_plain(name)
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(self.at(name), allow_not_found=True))
        except FAILURES as error:
            raise RunDirError(f"{self.name}/{name}: cannot be listed: {error}") from error
        return sorted(info.base_name for info in found if not info.base_name.startswith("."))

    def read_bytes(self, name: str) -> bytes:
        """Read a file.

        Raises:
            RunDirError: it is not there or cannot be read.
        """
        self._check_plain(name)
        try:
            with self.filesystem.open_input_stream(self.at(name), compression=None) as stream:
                return stream.read()
        except FileNotFoundError:
            raise RunDirError(f"{self.name} has no {name}") from None
        except FAILURES as error:
            raise RunDirError(f"{self.name}/{name}: cannot be read: {error}") from error

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file atomically: readers see the old content or the new.

        Raises:
            RunDirError: it cannot be written; what was there before stays.
        """
        self._check_plain(name)
        write_whole(self.filesystem, self.at(name), data)

    def write_together(self, files: Mapping[str, bytes], last: str) -> None:
        """Write files that belong together; if the last one exists, all are complete.

        Raises:
            RunDirError: one cannot be written.
        """
        for name in files:
            self._check_plain(name)
        write_together(self.filesystem, self.root, files, last)

    @contextmanager
    def folder(self, name: str, last: str, keep: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
        """Yield an empty local folder to write files into, which then replaces a folder of the run in one step.

        See `whole_folder` for the arguments.

        Raises:
            RunDirError: it cannot be written; what was there before stays.
        """
        self._check_plain(name)
        try:
            with whole_folder(self.filesystem, self.at(name), last, keep) as folder:
                yield folder
        except OSError as error:
            raise cannot_write(f"{self.name}/{name}", error) from error

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content, if it exists.

        Raises:
            RunDirError: it cannot be deleted.
        """
        self._check_plain(name)
        kind = self._kind(name)
        try:
            if kind == fs.FileType.Directory:
                self.filesystem.delete_dir(self.at(name))
            elif kind != fs.FileType.NotFound:
                self.filesystem.delete_file(self.at(name))
        except FAILURES as error:
            raise RunDirError(f"{self.name}/{name}: cannot be deleted: {error}") from error

    def _check_plain(self, name: str) -> None:
        if name:  # the run directory itself may be a link
            check_plain(self.filesystem, self.root, name)

    def read_yaml(self, name: str, *keys: str) -> dict[str, Any]:
        """Return the plain values of a YAML file; see `read_document`."""
        return self.read_document(name, *keys).data

    def read_document(self, name: str, *keys: str) -> Document:
        """Read a YAML file, which must hold a mapping.

        Raises:
            RunDirError: it is missing or damaged.
            ConfigError: it is not YAML.
        """
        where = f"{self.name}/{name}"
        try:
            document = parse_yaml(self.read_bytes(name).decode(), where)
        except UnicodeDecodeError as error:
            raise RunDirError(
                f"{where} is damaged: it is not text; restore it, or use another run directory"
            ) from error
        document.data = without_credentials(_mapping(document.data, where, keys))
        return document

    def write_yaml(self, name: str, value: Any) -> None:
        """Write plain values (or a pydantic model) as YAML, keeping the order of keys."""
        self.write_bytes(name, yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True).encode())

    def read_json(self, name: str, *keys: str) -> Any:
        """Return the values of a JSON file; with keys it must hold a mapping that has them.

        Raises:
            RunDirError: it is not there, not JSON, or has not the keys.
        """
        content = self.read_bytes(name)
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:  # Python says of thousands of digits how to have them read
            why = error if isinstance(error, json.JSONDecodeError) else "not text, or a number of too many digits"
            why = "nested too deeply" if isinstance(error, RecursionError) else why
            raise RunDirError(f"{self.name}/{name}: not valid JSON: {why}") from error
        return _mapping(values, f"{self.name}/{name}", keys) if keys else values

    def write_json(self, name: str, value: Any) -> None:
        """Write plain values (or a pydantic model) as JSON."""
        self.write_bytes(name, json_text(value).encode())

    # -- tables and ownership --------------------------------------------------------------------------------------

    @cached_property
    def store(self) -> Store:
        """The tables of this run."""
        return Store(self.filesystem, self.at("tables"), lambda: lock.held(self.root) is not None, self._check_owner)

    def _check_owner(self) -> None:
        current = lock.held(self.root)
        if current is not None and current.lost:
            raise RunDirError(
                f"{self.name}: this process lost its lease (the store was out of reach for too long, or another took "
                "over): nothing more is written; run the same command again"
            )

    @contextmanager
    def lock(self) -> Iterator[RunDir]:
        """Hold the lock, as the only process that writes here; this process may enter again.

        Raises:
            RunDirError: another process holds it; the message names host, process and since when.
        """
        with lock.lock(self.filesystem, self.root, self.name):
            yield self

    def holds(self, name: str) -> bool:
        """Return True if there is such a file, or such a folder with anything in it."""
        kind = self._kind(name)
        return bool(self.list(name)) if kind == fs.FileType.Directory else kind != fs.FileType.NotFound


_KINDS = {"settings": dict, "starts": list, "data": dict, "recipe": dict, "objectives": dict, "values": dict}
"""The kinds of values in the files of run directories, by the last part of their keys."""


def _mapping(content: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the content of a file, which must be a mapping with some (dotted) keys."""
    what = "" if isinstance(content, dict) or keys else "it is no mapping"
    for key in keys:
        value = content
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                what = what or f"it has no {key!r}"
                break
            value = value[part]
        else:
            if not isinstance(value, _KINDS.get(part, object)):
                what = what or f"its {key!r} is {named(value)}"
    if what:
        raise RunDirError(f"{where} is damaged: {what}; restore it, or use another run directory")
    result: dict[str, Any] = content
    return result


def run_around(path: str | os.PathLike[str]) -> Path | None:
    """Return the run directory that a local path is, or lies in, or None."""
    here = Path(os.path.realpath(path))
    return next((folder for folder in (here, *here.parents) if os.path.isfile(folder / MARKER)), None)


def json_text(value: Any) -> str:
    """Return plain values (or a pydantic model) as the text of a JSON file."""
    return json.dumps(plain(value), indent=1) + "\n"


def plain(value: Any) -> Any:
    """Return values as JSON types that compare and reload: tuples become lists, paths and models are written out.

    Credentials are removed from URIs.

    Raises:
        TypeError: a value has no plain form.
    """
    return without_credentials(json.loads(json.dumps(value, default=_plain_object)))


def _plain_object(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):  # numpy and torch scalars
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be recorded: {value!r}")


def first_difference(before: Any, now: Any, path: str = "") -> str | None:
    """The first setting that two sets of plain values do not share, in words; None where they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            inner = f"{path}.{key}" if path else key
            if key not in now:
                return f"{inner} was {before[key]!r}, now not given (or its default)"
            if key not in before:
                return f"{inner} is {now[key]!r}, was not given (or its default)"
            if (found := first_difference(before[key], now[key], inner)) is not None:
                return found
        return None
    return None if before == now else f"{path or 'they'} was {before!r}, is {now!r}"

"""Append-only tables of Parquet fragments: one writer, any number of readers, and no fragment is ever changed.

The writer can be killed at any moment, because:

- `append` writes one complete fragment under a new name that sorts after all others: it exists, or it does not.
- `compact` writes one fragment with the rows of several, and the names that it replaces in its metadata. Readers ignore
  replaced fragments, so their deletion afterwards may be interrupted.
- A reader that misses a fragment lists again: its replacement was there before it was deleted.

In an object store every request takes a while, so that requests are made side by side, and small fragments are fetched
whole.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from itertools import accumulate
from operator import and_, itemgetter
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from raynas.errors import RunDirError, UserError, reason
from raynas.filesystem import REQUESTS, check_plain, write_whole
from raynas.results.schemas import SCHEMAS, Row
from raynas.results.versions import versions_text
from raynas.text import nearest

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{20}-[0-9a-f]{8}\.parquet")
_TABLE, _REPLACES = b"raynas.table", b"raynas.replaces"
COMPACT_AT = 64  # fragments that are appended before small ones are merged,
MERGED_AT_ONCE = 1024  # at most so many at a time
_SMALL = 16 * 2**20  # bytes: larger fragments are left as they are
_WHOLE = 2**20  # bytes: smaller fragments of an object store are fetched whole
_IN_MEMORY = 2**28  # bytes of fragments that are held at a time
_RELISTS = 8  # times a reader lists again when fragments go under its eyes
_PARQUET = ds.ParquetFileFormat()

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_writing = threading.RLock()  # one append or compaction at a time in a process, whichever Store it goes through
_last_stamp = 0


@dataclass(frozen=True)
class _Fragment:
    name: str
    size: int
    schema: pa.Schema
    replaces: frozenset[str]


class Store:
    """The tables in one folder of a filesystem; see `RunDir.store`.

    Args:
        root: the folder that holds one folder for each table.
        may_compact: returns True if this process holds the lock and may merge fragments.
        before_write: called before every write; raises if the lock was lost.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        may_compact: Callable[[], bool] = lambda: True,
        before_write: Callable[[], None] = lambda: None,
    ):
        self._fs = filesystem
        self._root = root
        self._may_compact = may_compact
        self._before_write = before_write
        self._seen: dict[tuple[str, str, int], _Fragment | None] = {}  # None: not a fragment, told once
        self._looking = threading.RLock()  # one thread at a time looks for fragments: a writer may run beside readers
        self._schemas: dict[str, pa.Schema] = {}  # the last one, which most fragments share: thousands take memory
        self._appended: dict[str, int] = {}

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows as one fragment, visible to every reader on return.

        Missing `time` and `versions` are filled in, other missing columns are null.

        Raises:
            UserError: the table or a column is unknown, or a value does not fit its column.
            RunDirError: the fragment cannot be written; nothing of it is left.
        """
        if not rows:
            return
        data = _to_arrow(table, rows)
        with _writing:
            self._before_write()
            first = table not in self._appended
            self._write(table, data, _stamp(self._newest(table) if first else 0))
            count = self._appended[table] = self._appended.get(table, COMPACT_AT // 2) + 1
            if count >= COMPACT_AT and self._may_compact():
                self.compact(table)

    def read(self, table: str, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """Return all rows in the order in which they were appended; an empty table if there are none.

        Args:
            columns: names of columns; None for all.
            filter: a pyarrow expression over columns: `pc.field("status") == "ok"`.

        Raises:
            UserError: the table is unknown.
            RunDirError: the fragments cannot be listed or read.
        """
        schema = _schema(table)
        for attempt in range(_RELISTS):
            opened: dict[str, ds.Fragment] = {}
            live = self._live(table, opened)
            try:
                if live is not None:
                    return self._load(table, live, schema, columns, filter, opened)
            except FileNotFoundError:
                pass  # compacted away between listing and reading
            except (OSError, pa.ArrowException) as error:
                where = self._unreadable(table, live or [])
                raise RunDirError(
                    f"{where}: cannot be read: {reason(error)}. If the file is damaged, move it away: the "
                    "same command then measures again what it held"
                ) from error
            time.sleep(0.05 * attempt)
        raise RunDirError(f"{self._root}/{table}: fragments keep disappearing while they are read; try again")

    def compact(self, table: str) -> None:
        """Merge small fragments of a table into one; no row is lost or doubled if this is interrupted.

        Only for the process that holds the run directory's lock.
        """
        with _writing:
            self._before_write()
            self._compact(table)
            self._appended[table] = 0

    # -- fragments -------------------------------------------------------------------------------------------------

    def _compact(self, table: str) -> None:
        listed = self._list(table)
        opened: dict[str, ds.Fragment] = {}
        live = self._live(table, opened, listed)
        if live is None:  # something else is deleting here: leave it to that
            return
        alive = {fragment.name for fragment in live}
        # Replaced fragments that an earlier, killed compaction left are listed again: the fragment that disowned
        # them may itself be replaced now.
        gone = [name for name, size in listed if name not in alive and self._seen.get((table, name, size))]
        start = max((i + 1 for i, fragment in enumerate(live) if fragment.size >= _SMALL), default=0)
        # In a row, so that the rows keep their order.
        merged = next(_groups(live[start : start + MERGED_AT_ONCE], _IN_MEMORY), [])
        if len(merged) > 1:
            rows = self._load(table, merged, _schema(table), None, None, opened)
            gone += [fragment.name for fragment in merged]
            self._write(table, rows, int(merged[0].name[:20]), gone)
        self._at_once(lambda name: self._delete(table, name), gone)

    def _delete(self, table: str, name: str) -> None:
        try:
            self._fs.delete_file(f"{self._root}/{table}/{name}")
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s/%s/%s is replaced but cannot be deleted: %s", self._root, table, name, error)

    def _write(self, table: str, data: pa.Table, stamp: int, replaces: Sequence[str] = ()) -> None:
        metadata = {_TABLE: table.encode(), **({_REPLACES: json.dumps(list(replaces)).encode()} if replaces else {})}
        buffer = pa.BufferOutputStream()
        pq.write_table(
            data.replace_schema_metadata({**(data.schema.metadata or {}), **metadata}), buffer, compression="zstd"
        )
        name = f"{stamp:020d}-{uuid.uuid4().hex[:8]}.parquet"
        write_whole(self._fs, f"{self._root}/{table}/{name}", buffer.getvalue())

    def _newest(self, table: str) -> int:
        """Return the greatest stamp of a table's files: the clock of the machine that wrote it may have been ahead."""
        stamps = (name[:20] for name, _ in self._list(table))
        return max((int(stamp) for stamp in stamps if stamp.isdecimal()), default=0)

    def _list(self, table: str) -> list[tuple[str, int]]:
        """Return names and sizes of the visible files of a table, sorted by name."""
        self._check_plain(table)
        selector = fs.FileSelector(f"{self._root}/{table}", allow_not_found=True)
        try:
            files = self._fs.get_file_info(selector)
        except OSError as error:
            raise RunDirError(f"{self._root}/{table}: cannot be listed: {error}") from error
        # What is neither a file nor a folder, such as a pipe, is told and ignored as other foreign things are.
        found = (f for f in files if f.type != fs.FileType.Directory and not f.base_name.startswith((".", "_")))
        return sorted((f.base_name, f.size or 0) for f in found)

    def _check_plain(self, name: str) -> None:
        run, _, tables = self._root.rpartition("/")
        check_plain(self._fs, run, f"{tables}/{name}")

    def _live(
        self, table: str, opened: dict[str, ds.Fragment], listed: Sequence[tuple[str, int]] | None = None
    ) -> list[_Fragment] | None:
        """Return the valid fragments in order; None if one vanished while its footer was read.

        Args:
            opened: receives new fragments that were fetched whole, by name, as many as may be held in memory.
            listed: names and sizes of the table's files, if they are known.
        """
        with self._looking:
            return self._look(table, opened, self._list(table) if listed is None else listed)

    def _look(
        self, table: str, opened: dict[str, ds.Fragment], listed: Sequence[tuple[str, int]]
    ) -> list[_Fragment] | None:
        new = [(name, size) for name, size in listed if (table, name, size) not in self._seen]
        sizes = accumulate(size if size <= _WHOLE else 0 for _, size in new)
        room = {name for (name, _), total in zip(new, sizes, strict=True) if total <= _IN_MEMORY}
        vanished = False

        def look(item: tuple[str, int]) -> None:
            nonlocal vanished
            try:
                fragment, source = self._footer(table, *item)
            except FileNotFoundError:
                vanished = True
                return
            name, size = item
            self._seen[table, name, size] = fragment
            if source is not None and source.buffer is not None and name in room:
                opened[name] = source

        self._at_once(look, new)
        if new:
            self._set_apart_misfits(table)
        if vanished:
            return None
        present = {(table, *item) for item in listed}
        for key in [key for key in self._seen if key[0] == table and key not in present]:
            del self._seen[key]  # compacted away: names are never used again
        found = [fragment for name, size in listed if (fragment := self._seen[table, name, size]) is not None]
        replaced = frozenset[str]().union(*(fragment.replaces for fragment in found))
        return [fragment for fragment in found if fragment.name not in replaced]

    def _open(self, table: str, name: str, size: int) -> ds.Fragment:
        """Return a fragment for reading: over memory if it was fetched whole, else over the file."""
        path = f"{self._root}/{table}/{name}"
        if isinstance(self._fs, fs.LocalFileSystem) or size > _WHOLE:
            return _PARQUET.make_fragment(path, self._fs, file_size=size)
        with self._fs.open_input_file(path) as stream:
            return _PARQUET.make_fragment(stream.read_buffer(size))

    def _at_once(self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
        """Return the results of a function that makes requests for each item, in an object store side by side."""
        if isinstance(self._fs, fs.LocalFileSystem) or len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(len(items), REQUESTS)) as pool:
            return list(pool.map(work, items))

    def _footer(self, table: str, name: str, size: int) -> tuple[_Fragment | None, ds.Fragment | None]:
        """Return a file as a fragment, with its rows still to be read; None if it is no fragment of the table."""
        path = f"{self._root}/{table}/{name}"
        if not _NAME.fullmatch(name):
            log.warning("%s is not a fragment of ours and is ignored", path)
            return None, None
        try:
            self._check_plain(f"{table}/{name}")
            source = self._open(table, name, size)
            schema = source.physical_schema
        except FileNotFoundError:
            raise
        except RunDirError as error:
            log.warning("%s; it is ignored", error)
            return None, None
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning("%s is not a whole Parquet file and is ignored: %s", path, reason(error))
            return None, None
        metadata = schema.metadata or {}
        replaces = _names(metadata.get(_REPLACES, b"[]"))
        if metadata.get(_TABLE) != table.encode() or replaces is None:
            log.warning("%s is not a fragment of table %s and is ignored", path, table)
            return None, None
        alike = self._schemas.get(table)
        schema = self._schemas[table] = alike if alike is not None and alike.equals(schema) else schema
        return _Fragment(name, size, schema, replaces), source

    def _set_apart_misfits(self, table: str) -> None:
        """Ignore fragments whose columns do not fit the table or the fragments before them."""
        known, last = _schema(table), None
        for key in sorted(key for key in self._seen if key[0] == table):
            fragment = self._seen[key]
            if fragment is None or fragment.schema is last:
                continue
            last = fragment.schema
            try:
                known = _joined(table, known, fragment.schema)
            except (pa.ArrowException, ValueError, TypeError) as error:
                path = f"{self._root}/{table}/{fragment.name}"
                log.warning("%s does not fit table %s and is ignored: %s", path, table, reason(error))
                self._seen[key] = None

    def _unreadable(self, table: str, fragments: Sequence[_Fragment]) -> str:
        """Return the first fragment that cannot be read; the table's folder if all can."""
        for fragment in fragments:
            path = f"{self._root}/{table}/{fragment.name}"
            try:
                self._load(table, [fragment], _schema(table), None, None, {})
            except (OSError, pa.ArrowException):
                return path
        return f"{self._root}/{table}"

    def _load(
        self,
        table: str,
        fragments: Sequence[_Fragment],
        schema: pa.Schema,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        opened: dict[str, ds.Fragment],
    ) -> pa.Table:
        # Ours first; then columns that another version wrote. Fragments without a column read as null there.
        known = pa.unify_schemas([schema, *(each.schema for each in fragments)], promote_options="permissive")
        known = known.with_metadata(schema.metadata)
        asked = None if columns is None else list(columns)
        if not fragments:
            empty = known.empty_table()
            return empty if asked is None else empty.select(asked)

        def source(fragment: _Fragment) -> ds.Fragment:
            return opened.pop(fragment.name, None) or self._open(table, fragment.name, fragment.size)

        parts = []
        for group in _groups(fragments, _IN_MEMORY):
            dataset = ds.FileSystemDataset(self._at_once(source, group), known, _PARQUET, self._fs)
            parts.append(dataset.to_table(columns=asked, filter=filter))
        rows = pa.concat_tables(parts)
        rows.validate(full=True)  # texts that are not UTF-8 would be told by whoever looks at them
        return rows


def having(values: Mapping[str, Any]) -> pc.Expression:
    """Return the filter of the rows that have values in columns, by their names; None is null."""
    fields = [(pc.field(name), value) for name, value in values.items()]
    each = (field.is_null() if value is None else field == value for field, value in fields)
    return reduce(and_, each, pc.scalar(True))


def rows_by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Return rows in groups of equal values in a column, by the value; in several columns, by the tuple of theirs."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(itemgetter(*columns)(row), []).append(row)
    return groups


def _groups(fragments: Sequence[_Fragment], size: int) -> Iterator[list[_Fragment]]:
    """Yield fragments in order, as many at a time as have a size in bytes, and at least one."""
    first, total = 0, 0
    for place, fragment in enumerate(fragments):
        if place > first and total + fragment.size > size:
            yield list(fragments[first:place])
            first, total = place, 0
        total += fragment.size
    if fragments:
        yield list(fragments[first:])


def _schema(table: str) -> pa.Schema:
    if table not in SCHEMAS:
        raise UserError(f"unknown table {table!r}{nearest(table, sorted(SCHEMAS))}")
    return SCHEMAS[table]


def _names(text: bytes) -> frozenset[str] | None:
    """Return the names of fragments listed in metadata; None if it is no such list."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return None
    return frozenset(listed)


def _joined(table: str, known: pa.Schema, fragment: pa.Schema) -> pa.Schema:
    """Return the columns known so far, extended by those of a fragment; raise an error if they do not fit."""
    ours = _schema(table)
    for name in (ours.names[0], "time"):
        if name not in fragment.names:
            raise ValueError(f"it has no column {name}")
    joined = pa.unify_schemas([known, fragment], promote_options="permissive")
    for name in ours.names:
        if joined.field(name).type != ours.field(name).type:
            raise ValueError(f"its column {name} is of type {fragment.field(name).type}")
    return joined


def _to_arrow(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = _schema(table)
    for key in {key for row in rows for key in row}:
        if key not in schema.names:
            raise UserError(f"table {table} has no column {key!r}{nearest(str(key), schema.names)}")
    filled = {"time": datetime.now(timezone.utc), "versions": versions_text()}
    try:
        return pa.Table.from_pylist([{**filled, **row} for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"table {table}: a row does not fit its columns: {error}") from error


def _stamp(after: int) -> int:
    """Return nanoseconds since 1970, greater than at every call before, and than another stamp."""
    global _last_stamp
    _last_stamp = max(time.time_ns(), _last_stamp + 1, after + 1)
    return _last_stamp

"""Append-only tables of Parquet fragments: one writer, any number of readers, and no fragment is ever changed.

The writer can be killed at any moment, because:

- `append` writes one complete fragment under a new name that sorts after all others: it exists, or it does not.
- `compact` writes one fragment with the rows of several, and the names that it replaces in its metadata. Readers ignore
  replaced fragments, so their deletion afterwards may be interrupted.
- A reader that misses a fragment lists again: its replacement was there before it was deleted.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from raynas.errors import RunDirError, UserError, reason
from raynas.filesystem import check_plain, write_whole
from raynas.results.schemas import SCHEMAS
from raynas.results.versions import versions_text
from raynas.text import nearest

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{20}-[0-9a-f]{8}\.parquet")
_TABLE, _REPLACES = b"raynas.table", b"raynas.replaces"
COMPACT_AT = 64  # small fragments before they are merged
_SMALL = 16 * 2**20  # bytes: larger fragments are left as they are
_RELISTS = 8  # times a reader lists again when fragments go under its eyes

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
        filesystem: any pyarrow filesystem.
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
            self._write(table, data, _stamp())
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
            live = self._live(table)
            try:
                if live is not None:
                    return self._load(table, live, schema, columns, filter)
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

    def compact(self, table: str | None = None) -> None:
        """Merge small fragments into one; no row is lost or doubled if this is interrupted.

        Only for the process that holds the run directory's lock.
        """
        for name in [table] if table else [t for t in SCHEMAS if self._list(t)]:
            with _writing:
                self._before_write()
                self._compact(name)
                self._appended[name] = 0

    # -- fragments -------------------------------------------------------------------------------------------------

    def _compact(self, table: str) -> None:
        listed = self._list(table)
        live = self._live(table)
        if live is None:  # something else is deleting here: leave it to that
            return
        alive = {fragment.name for fragment in live}
        start = max((i + 1 for i, fragment in enumerate(live) if fragment.size >= _SMALL), default=0)
        merged = live[start:]  # the last ones in a row, so that the rows keep their order
        # Replaced fragments that an earlier, killed compaction left are listed again: the fragment that disowned
        # them may itself be replaced now.
        leftovers = [name for name, size in listed if name not in alive and self._seen.get((table, name, size))]
        if len(merged) > 1:
            rows = self._load(table, merged, _schema(table), None, None)
            gone = [fragment.name for fragment in merged] + leftovers
            self._write(table, rows, int(merged[0].name[:20]), gone)
        else:
            gone = leftovers
        for name in gone:
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

    def _live(self, table: str) -> list[_Fragment] | None:
        """Return the valid fragments in order; None if one vanished while its footer was read."""
        listed = self._list(table)
        new = [(name, size) for name, size in listed if (table, name, size) not in self._seen]
        try:
            if len(new) > 4 and not isinstance(self._fs, fs.LocalFileSystem):
                with ThreadPoolExecutor(16) as pool:  # each footer is a round trip
                    footers = list(pool.map(lambda item: self._footer(table, *item), new))
            else:
                footers = [self._footer(table, *item) for item in new]
        except FileNotFoundError:
            return None
        self._seen.update({(table, *item): footer for item, footer in zip(new, footers, strict=True)})
        if new:
            self._set_apart_misfits(table)
        present = {(table, *item) for item in listed}
        for key in [key for key in self._seen if key[0] == table and key not in present]:
            del self._seen[key]  # compacted away: names are never used again
        found = [fragment for name, size in listed if (fragment := self._seen[table, name, size]) is not None]
        replaced = frozenset[str]().union(*(fragment.replaces for fragment in found))
        return [fragment for fragment in found if fragment.name not in replaced]

    def _footer(self, table: str, name: str, size: int) -> _Fragment | None:
        path = f"{self._root}/{table}/{name}"
        if not _NAME.fullmatch(name):
            log.warning("%s is not a fragment of ours and is ignored", path)
            return None
        try:
            self._check_plain(f"{table}/{name}")
            schema = pq.read_schema(path, filesystem=self._fs)
        except FileNotFoundError:
            raise
        except RunDirError as error:
            log.warning("%s; it is ignored", error)
            return None
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning("%s is not a whole Parquet file and is ignored: %s", path, reason(error))
            return None
        metadata = schema.metadata or {}
        replaces = _names(metadata.get(_REPLACES, b"[]"))
        if metadata.get(_TABLE) != table.encode() or replaces is None:
            log.warning("%s is not a fragment of table %s and is ignored", path, table)
            return None
        return _Fragment(name, size, schema, replaces)

    def _set_apart_misfits(self, table: str) -> None:
        """Ignore fragments whose columns do not fit the table or the fragments before them."""
        known = _schema(table)
        for key in sorted(key for key in self._seen if key[0] == table):
            fragment = self._seen[key]
            if fragment is None:
                continue
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
                self._load(table, [fragment], _schema(table), None, None)
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
    ) -> pa.Table:
        # Ours first; then columns that another version wrote. Fragments without a column read as null there.
        known = pa.unify_schemas([schema, *(fragment.schema for fragment in fragments)], promote_options="permissive")
        known = known.with_metadata(schema.metadata)
        paths = [f"{self._root}/{table}/{fragment.name}" for fragment in fragments]
        dataset = ds.dataset(paths, schema=known, format="parquet", filesystem=self._fs) if paths else None
        if dataset is None:
            empty = known.empty_table()
            return empty.select(list(columns)) if columns is not None else empty
        rows = dataset.to_table(columns=None if columns is None else list(columns), filter=filter)
        rows.validate(full=True)  # texts that are not UTF-8 would be told by whoever looks at them
        return rows


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
    """Return the columns known so far, extended by those of a fragment.

    Raises:
        ValueError: a column of the table has another type in the fragment, or the fragment lacks what every version
            wrote.
        ArrowException: a column has another type than in an earlier fragment.
    """
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


def _stamp() -> int:
    """Return nanoseconds since 1970, greater than at every call before."""
    global _last_stamp
    _last_stamp = max(time.time_ns(), _last_stamp + 1)
    return _last_stamp

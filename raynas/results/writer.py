"""Writing to tables in the background, so that what makes rows need not wait for a slow store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from raynas.results.schemas import Row
from raynas.results.store import Store

MOST_ROWS = 20_000  # that wait to be written, before `append` waits


class Writer:
    """Appends rows to a store's tables in a thread of its own, in the order in which they are given.

    All rows that wait for a table become one fragment, so that there are fewer of them if the store is slow. After a
    failure nothing more is written, and every call raises its error.
    """

    def __init__(self, store: Store):
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raynas-writer")
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, Sequence[Row]]] = []
        self._error: BaseException | None = None
        self._last: Future[None] | None = None

    def append(self, *parts: tuple[str, Sequence[Row]]) -> None:
        """Append rows to tables in the background; a kill may lose the last parts, but none before another.

        Raises:
            RunDirError: earlier rows cannot be written.
        """
        if sum(len(rows) for _, rows in self._waiting) > MOST_ROWS:
            self.flush()
        if self._error is not None:
            raise self._error
        with self._lock:
            self._waiting += parts
        self._last = self._thread.submit(self._write)

    def flush(self) -> None:
        """Wait until all rows are written.

        Raises:
            RunDirError: they cannot be written.
        """
        if self._last is not None:
            self._last.result()

    def end(self) -> None:
        """Write what is waiting, and end the thread; an error is that of `flush`."""
        self._thread.shutdown()

    def _write(self) -> None:
        if self._error is not None:
            raise self._error
        with self._lock:
            parts, self._waiting = self._waiting, []
        # A table comes after what was given before its last rows: scores after the correctness that belongs to them.
        tables = list(dict.fromkeys(table for table, _ in reversed(parts)))
        try:
            for table in reversed(tables):
                self._store.append(table, [row for name, rows in parts if name == table for row in rows])
        except BaseException as error:
            self._error = error
            raise

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyarrow import fs

from raynas.errors import RunDirError
from raynas.results import store as store_module
from raynas.results.store import Store
from raynas.results.writer import Writer
from tests.results.slow_store import SlowStore


def _archs(store: Store, table: str = "scores") -> list[str]:
    return store.read(table, ["arch"])["arch"].to_pylist()


def _never() -> bool:
    return False


def _filled(folder: Path, fragments: int) -> list[str]:
    """Write fragments of a row each to a local folder, and return the archs in order."""
    local = Store(fs.LocalFileSystem(), str(folder), may_compact=_never)
    names = [f"{index:04d}" for index in range(fragments)]
    for name in names:
        local.append("scores", [{"arch": name}])
    return names


def test_fragments_of_an_object_store_are_fetched_once_and_side_by_side(tmp_path: Path) -> None:
    names = _filled(tmp_path, 100)
    slow = SlowStore(0.02)  # longer than the start of a thread takes on a busy machine
    store = Store(slow.filesystem(), str(tmp_path))
    assert _archs(store) == names
    assert slow.requests == {"list": 1, "open": 100, "read": 100}
    assert slow.most_at_once > 16
    store.append("scores", [{"arch": "new"}])
    slow.requests.clear()
    assert store.read("scores")["arch"].to_pylist() == [*names, "new"]
    assert slow.requests == {"list": 1, "open": 101, "read": 101}


def test_fragments_that_do_not_fit_into_memory_together_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _filled(tmp_path, 10)
    (one, *_) = (path.stat().st_size for path in (tmp_path / "scores").iterdir())
    for module_name, value in {"_IN_MEMORY": 3 * one, "_WHOLE": 2 * one}.items():
        monkeypatch.setattr(store_module, module_name, value)
        assert _archs(Store(SlowStore().filesystem(), str(tmp_path))) == names
    monkeypatch.setattr(store_module, "_WHOLE", 10)  # all too large to be fetched whole
    assert _archs(Store(SlowStore().filesystem(), str(tmp_path))) == names


def test_many_fragments_are_merged_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MERGED_AT_ONCE", 4)
    names = _filled(tmp_path, 10)
    slow = SlowStore(0.002)
    store = Store(slow.filesystem(), str(tmp_path))
    for left in (7, 4, 1, 1):
        store.compact("scores")
        assert len(os.listdir(tmp_path / "scores")) == left
        assert _archs(store) == _archs(Store(fs.LocalFileSystem(), str(tmp_path))) == names


def test_a_writer_keeps_order_and_writes_together_what_waits(tmp_path: Path) -> None:
    slow = SlowStore()
    slow.open_gate.clear()
    store = Store(slow.filesystem(), str(tmp_path), may_compact=_never)
    writer = Writer(store)
    writer.append(("scores", [{"arch": "failed"}]))
    while not slow.open_gate.is_set() and writer._waiting:  # until it is being written
        time.sleep(0.001)
    for arch in "abc":
        writer.append(("correct", [{"arch": arch}]), ("scores", [{"arch": arch}]))
    assert _archs(store) == []
    slow.open_gate.set()
    writer.flush()
    assert _archs(store) == ["failed", "a", "b", "c"] and _archs(store, "correct") == ["a", "b", "c"]
    paths = sorted((path for path in tmp_path.rglob("*.parquet")), key=lambda path: path.name)
    assert [path.parent.name for path in paths] == ["scores", "correct", "scores"]
    writer.append(("scores", [{"arch": "last"}]))
    writer.end()
    assert _archs(store) == ["failed", "a", "b", "c", "last"]


def test_a_writer_that_has_failed_writes_nothing_more(tmp_path: Path) -> None:
    store = Store(fs.LocalFileSystem(), str(tmp_path / "tables"))
    writer = Writer(store)
    writer.append(("scores", [{"arch": "a"}]))
    writer.flush()
    os.rename(tmp_path / "tables", tmp_path / "away")
    (tmp_path / "tables").write_text("a file in the way")
    writer.append(("scores", [{"arch": "b"}]))
    with pytest.raises(RunDirError, match="cannot be written"):
        writer.flush()
    (tmp_path / "tables").unlink()
    os.rename(tmp_path / "away", tmp_path / "tables")
    for call in (lambda: writer.append(("scores", [{"arch": "c"}])), writer.flush):
        with pytest.raises(RunDirError, match="cannot be written"):
            call()
    writer.end()
    assert _archs(store) == ["a"]


@pytest.mark.slow
def test_ten_thousand_fragments_are_read_within_thirty_seconds(tmp_path: Path) -> None:
    _filled(tmp_path, 100)
    kept = sorted((tmp_path / "scores").iterdir())
    for copy in range(1, 100):
        for path in kept:
            os.link(path, path.with_name(f"{int(path.name[:20]) + copy * 10**15:020d}-{path.name[21:]}"))
    slow = SlowStore(0.02)
    store = Store(slow.filesystem(), str(tmp_path))
    began, worked = time.monotonic(), time.process_time()
    assert _archs(store) == [f"{index:04d}" for index in range(100)] * 100
    seconds, worked = time.monotonic() - began, time.process_time() - worked
    print(f"{seconds:.1f} s, of which {worked:.1f} s of processor time; requests: {dict(slow.requests)}")
    # What it waits for, and what it computes: on a machine that does nothing else these overlap.
    assert sum(slow.requests.values()) * 0.02 / slow.most_at_once + worked < 30

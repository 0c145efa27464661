from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from raynas.errors import RunDirError, UserError
from raynas.results import RunDir
from raynas.results import store as store_module
from raynas.results.schemas import SCHEMAS


def _rows(*names: str) -> list[dict[str, object]]:
    return [{"arch": name, "accuracy": 0.5, "status": "ok"} for name in names]


def _archs(run: RunDir) -> list[str]:
    return run.store.read("scores", ["arch"])["arch"].to_pylist()


@pytest.fixture(params=["local", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    if request.param == "local":
        return RunDir(tmp_path / "run", create=True)
    server: Callable[[str], str] = request.getfixturevalue("s3_server")
    return RunDir(server(f"store/{tmp_path.name}"), create=True)


@pytest.fixture
def local(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run", create=True)


def _folder(run: RunDir) -> Path:
    assert run.path is not None
    return run.path / "tables" / "scores"


def test_the_newest_rows_are_last_though_an_earlier_writer_s_clock_was_ahead(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    for offset, name in ((3600, "a"), (0, "b"), (-60, "c")):  # seconds; each writer is a process of its own
        monkeypatch.setattr(store_module, "_last_stamp", 0)
        monkeypatch.setattr(store_module.time, "time_ns", lambda offset=offset: now + offset * 10**9)
        store = RunDir(run).store
        store.append("scores", _rows(name))
        store.append("scores", _rows(name.upper()))
    assert _archs(RunDir(run)) == ["a", "A", "b", "B", "c", "C"]


def test_rows_come_back_in_order_with_types_and_provenance(run: RunDir) -> None:
    run.store.append("scores", _rows("a", "b"))
    run.store.append("scores", [{"arch": "c", "images": 360}])
    run.store.append("scores", [])
    table = RunDir(run).store.read("scores")
    assert table.schema.equals(SCHEMAS["scores"])
    assert table["arch"].to_pylist() == ["a", "b", "c"]
    assert table["images"].to_pylist() == [None, None, 360]
    assert "torch=" in table["versions"][0].as_py() and table["time"].null_count == 0
    assert run.store.read("scores", ["arch"], pc.field("images") == 360).to_pylist() == [{"arch": "c"}]
    assert run.store.read("probes").num_rows == 0
    assert run.store.read("probes", ["role"]).column_names == ["role"]


def test_compaction_keeps_every_row_once_and_in_order(run: RunDir) -> None:
    for i in range(10):
        run.store.append("scores", _rows(f"{i}a", f"{i}b"))
    expected = [f"{i}{letter}" for i in range(10) for letter in "ab"]
    assert _archs(run) == expected
    run.store.compact("scores")
    assert len(run.list("tables/scores")) == 1
    run.store.append("scores", _rows("z"))
    assert _archs(RunDir(run)) == [*expected, "z"]
    run.store.compact("scores")
    assert _archs(run) == [*expected, "z"] and len(run.list("tables/scores")) == 1


def test_every_state_that_a_killed_compaction_can_leave_reads_the_same(local: RunDir, tmp_path: Path) -> None:
    for i in range(4):
        local.store.append("scores", _rows(str(i)))
    before = tmp_path / "before"
    shutil.copytree(_folder(local), before)
    old = sorted(path.name for path in before.iterdir())
    local.store.compact("scores")
    (merged,) = _folder(local).iterdir()
    for deleted in range(len(old) + 1):  # killed after so many deletions
        state = RunDir(tmp_path / f"state{deleted}", create=True)
        shutil.copytree(before, _folder(state))
        shutil.copy(merged, _folder(state))
        for name in old[:deleted]:
            (_folder(state) / name).unlink()
        assert _archs(state) == ["0", "1", "2", "3"]
        # The next compaction replaces the merged one; what that had replaced must not come back to life, even if this
        # one is killed before its first deletion.
        state.store.append("scores", _rows("4"))
        present = {path.name: path.read_bytes() for path in _folder(state).iterdir()}
        state.store.compact("scores")
        assert _archs(state) == ["0", "1", "2", "3", "4"] and len(list(_folder(state).iterdir())) == 1
        for name in old[deleted:]:
            (_folder(state) / name).write_bytes(present[name])
        assert _archs(RunDir(state)) == ["0", "1", "2", "3", "4"]


_WRITER = """
import sys
from raynas.results import RunDir, store
store.COMPACT_AT = 6
run = RunDir(sys.argv[1])
with run.lock():
    number = run.store.read("scores").num_rows
    print("ready", flush=True)
    while True:
        run.store.append("scores", [{"arch": str(number)}, {"arch": str(number + 1)}])
        number += 2
        print(number, flush=True)
"""


def test_a_writer_killed_at_random_loses_and_doubles_nothing(local: RunDir) -> None:
    committed = 0
    for kill in range(4):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(local)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        said = [int(process.stdout.readline()) for _ in range(2 * kill + 1)]  # however busy the machine is
        time.sleep(random.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split("\n") if line]
        process.wait()
        found = [int(name) for name in _archs(RunDir(local))]
        assert found == list(range(len(found)))
        assert len(found) >= max([committed, *said])
        committed = len(found)
    assert committed > 12  # or compaction never ran


def test_readers_beside_a_compacting_writer_see_every_committed_row_once(
    local: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "COMPACT_AT", 4)
    written, wrong, stop = [0], [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            least = written[0]
            found = [int(name) for name in _archs(RunDir(local))]
            if found != list(range(len(found))) or len(found) < least:
                wrong.append(found)

    reader = threading.Thread(target=read)
    with local.lock():
        reader.start()
        for i in range(60):
            local.store.append("scores", _rows(str(i)))
            written[0] = i + 1
        stop.set()
        reader.join()
    assert not wrong
    assert len(local.list("tables/scores")) < 20


def test_torn_foreign_and_empty_files_are_named_and_ignored(local: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    local.store.append("scores", _rows("a"))
    (good,) = _folder(local).iterdir()
    whole = good.read_bytes()
    bad = {
        "00000000000000000001-00000000.parquet": whole[: len(whole) // 2],
        "00000000000000000002-00000000.parquet": b"",
        "notes.txt": b"hello",
    }
    for name, content in bad.items():
        (_folder(local) / name).write_bytes(content)
    pq.write_table(pa.table({"x": [1]}), _folder(local) / "00000000000000000003-00000000.parquet")
    (_folder(local) / ".hidden.tmp").write_bytes(b"half")
    with caplog.at_level(logging.WARNING):
        assert _archs(local) == ["a"]
        told = caplog.text
        assert all(name in told for name in [*bad, "00000000000000000003-00000000.parquet"])
        assert ".hidden" not in told
        caplog.clear()
        assert _archs(local) == ["a"] and not caplog.text  # told once
    local.store.append("scores", _rows("b"))
    local.store.compact("scores")
    assert _archs(local) == ["a", "b"] and (_folder(local) / "notes.txt").exists()


def _changed(whole: pa.Table, **columns: pa.Array) -> pa.Table:
    for name, column in columns.items():
        whole = whole.set_column(whole.schema.get_field_index(name), name, column)
    return whole


FOREIGN: dict[str, Callable[[pa.Table], pa.Table]] = {
    "replaces is no JSON": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.replaces": b"{["}),
    "replaces is a mapping": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.replaces": b"{}"}),
    "replaces numbers": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.replaces": b"[1, [2]]"}),
    "replaces is nested": lambda t: t.replace_schema_metadata(
        {**t.schema.metadata, b"raynas.replaces": b"[" * 100_000 + b"]" * 100_000}
    ),
    "replaces is not UTF-8": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.replaces": b"\xff"}),
    "table is not UTF-8": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.table": b"\xff\xfe"}),
    "another table": lambda t: t.replace_schema_metadata({**t.schema.metadata, b"raynas.table": b"probes"}),
    "text for a number": lambda t: _changed(t, images=pa.array(["many"])),
    "fractions for integers": lambda t: _changed(t, images=pa.array([1.5])),
    "a list for a text": lambda t: _changed(t, arch=pa.array([["a"]])),
    "a mapping for a number": lambda t: _changed(t, accuracy=pa.array([{"x": 1}])),
    "other units of time": lambda t: _changed(t, time=pa.array([0], pa.timestamp("s"))),
    "no arch": lambda t: t.drop_columns(["arch"]),
    "a column twice": lambda t: t.append_column("macs", pa.array([1])),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_readable_but_foreign_fragments_are_named_and_the_rest_is_read(
    local: RunDir, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    local.store.append("scores", _rows("before"))
    (good,) = _folder(local).iterdir()
    foreign = _folder(local) / "00000000000000000001-00000000.parquet"
    pq.write_table(FOREIGN[kind](pq.read_table(good)), foreign)
    local.store.append("scores", _rows("after"))
    fresh = RunDir(local)
    with caplog.at_level(logging.WARNING):
        assert _archs(fresh) == ["before", "after"]
        assert caplog.text.count(f"{foreign} ") == 1 and "ignored" in caplog.text
        assert fresh.store.read("scores").schema.equals(SCHEMAS["scores"])
    fresh.store.compact("scores")
    assert _archs(RunDir(local)) == ["before", "after"] and foreign.exists()  # it is somebody's


def test_texts_that_are_not_utf8_are_one_line_that_names_the_fragment(local: RunDir) -> None:
    local.store.append("scores", _rows("good"))
    (good,) = _folder(local).iterdir()
    table = pq.read_table(good)
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    pq.write_table(_changed(table, arch=bad), _folder(local) / "00000000000000000001-00000000.parquet")
    with pytest.raises(RunDirError, match=r"00000000000000000001-00000000\.parquet: cannot be read: .*UTF-?8"):
        RunDir(local).store.read("scores")


def test_fragments_that_are_links_or_pipes_are_named_and_ignored(
    local: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local.store.append("scores", _rows("a"))
    (good,) = _folder(local).iterdir()
    shutil.copy(good, tmp_path / "elsewhere")
    (_folder(local) / "00000000000000000001-00000000.parquet").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(_folder(local) / "00000000000000000002-00000000.parquet")
    with caplog.at_level(logging.WARNING):
        assert _archs(RunDir(local)) == ["a"]
    assert "01-00000000.parquet is a link" in caplog.text and "02-00000000.parquet is a pipe" in caplog.text
    shutil.move(_folder(local), tmp_path / "scores")
    _folder(local).symlink_to(tmp_path / "scores")
    with pytest.raises(RunDirError, match="tables/scores is a link"):
        RunDir(local).store.read("scores")


def test_older_and_newer_schemas_read_together(local: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SCHEMAS["scores"]
    monkeypatch.setitem(SCHEMAS, "scores", now.remove(now.get_field_index("top5")))
    local.store.append("scores", _rows("old"))
    monkeypatch.setitem(SCHEMAS, "scores", now.append(pa.field("novel", pa.float64())))
    local.store.append("scores", [{"arch": "new", "novel": 1.5, "top5": 0.9}])
    monkeypatch.setitem(SCHEMAS, "scores", now)
    for _ in range(2):
        table = local.store.read("scores")
        assert table["arch"].to_pylist() == ["old", "new"]
        assert table["top5"].to_pylist() == [None, 0.9]
        assert table["novel"].to_pylist() == [None, 1.5]  # a newer version's column is kept
        local.store.compact("scores")


def test_mistakes_name_the_nearest_right_word(local: RunDir) -> None:
    with pytest.raises(UserError, match=r"no column 'acuracy' .*'accuracy'"):
        local.store.append("scores", [{"acuracy": 1.0}])
    with pytest.raises(UserError, match=r"unknown table 'score' .*'scores'"):
        local.store.read("score")
    with pytest.raises(UserError, match="does not fit its columns"):
        local.store.append("scores", [{"images": "many"}])


def test_plain_readers_read_while_the_run_goes_on(local: RunDir) -> None:
    with local.lock():
        for i in range(3):
            local.store.append("scores", _rows(str(i)))
        folder = _folder(local)
        (folder / f".{'0' * 20}-00000000.parquet.abc.tmp").write_bytes(b"half a fragm")  # one that is being written
        assert ds.dataset(folder).to_table()["arch"].to_pylist() == ["0", "1", "2"]
        assert pd.read_parquet(folder)["arch"].tolist() == ["0", "1", "2"]
        query = f"select distinct * from '{folder}/*.parquet' order by arch"
        assert [row[0] for row in duckdb.connect().execute(query).fetchall()] == ["0", "1", "2"]


def test_every_column_is_documented() -> None:
    for name, schema in SCHEMAS.items():
        assert schema.metadata[b"doc"], name
        assert all((field.metadata or {}).get(b"doc") for field in schema), name
        assert len(set(schema.names)) == len(schema.names), name


def test_ten_thousand_rows_in_batches_of_fifty_come_back_whole(local: RunDir) -> None:
    with local.lock():
        for start in range(0, 10_000, 50):
            local.store.append("scores", _rows(*(str(i) for i in range(start, start + 50))))
    counts = Counter(_archs(RunDir(local)))
    assert len(counts) == 10_000 and set(counts.values()) == {1}
    assert len(os.listdir(_folder(local))) <= store_module.COMPACT_AT


def test_the_manual_lists_every_column() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    for name, schema in SCHEMAS.items():
        assert f"**`{name}`**: {schema.metadata[b'doc'].decode()}" in manual
        for field in schema:
            assert f"| `{field.name}` | {field.type} | {field.metadata[b'doc'].decode()} |" in manual, (
                name,
                field.name,
            )


def test_a_fragment_with_damaged_rows_is_named(local: RunDir) -> None:
    local.store.append("scores", _rows("a" * 12))
    local.store.append("scores", _rows("b" * 12))
    first, second = sorted(_folder(local).glob("*.parquet"))
    content = bytearray(second.read_bytes())
    content[4:60] = bytes(56)  # the footer stays whole
    second.write_bytes(content)
    with pytest.raises(RunDirError, match=rf"{second.name}: cannot be read: .*move it away") as raised:
        _archs(local)
    assert "\n" not in str(raised.value)
    second.unlink()
    assert _archs(local) == ["a" * 12] and first.exists()

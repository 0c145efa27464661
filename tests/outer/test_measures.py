"""Measures of runs that were carried out in this process, against numbers computed from the tables."""

from __future__ import annotations

import itertools
import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raynas.cluster.resources import Resources
from raynas.energy.counters import Counter, Reading
from raynas.errors import UserError
from raynas.outer.measures import MEASURES, Measured, carry_out, check_energy, check_measures
from raynas.presets.preset import Preset, override
from raynas.reports.collect import collect
from raynas.runs.run import Run
from tests.small_run import PRESET, SPACE

HERE = Resources(workers=0, replicas=0)
EPOCHS = 3
NAMES = [name for name in MEASURES if name != "energy"]


def preset(**changes: Any) -> Preset:
    settings = {
        "recipe.epochs": EPOCHS,
        "recipe.health": {"conflict": {"steps": 1}},
        "retrain.recipe.epochs": 2,
        "retrain.seeds": [0, 3],
    }
    return override(PRESET, {**settings, **{name.replace("__", "."): value for name, value in changes.items()}})


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A truth table of archs with made-up accuracies."""
    file = tmp_path_factory.mktemp("truth") / "truth.parquet"
    rng = np.random.default_rng(0)
    archs = [SPACE.sample(rng) for _ in range(9)]
    rows = [
        {"network": arch.network_id, "values": json.dumps(arch.to_dict()), "accuracy": 0.5 + place / 100}
        for place, arch in enumerate(archs)
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


class Stopped(Exception):
    """The end of a process."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, truth: Path) -> tuple[Run, dict[str, float]]:
    """A run that was stopped in its training, gone on with, and all of its measures."""
    folder = tmp_path_factory.mktemp("measures") / "run"
    seen: list[int] = []

    def stop(epoch: int, accuracy: float) -> None:
        seen.append(epoch)
        if epoch == 2:
            raise Stopped

    with pytest.raises(Stopped):
        carry_out(preset(), folder, NAMES, HERE, after_epoch=stop, truth=str(truth))
    assert seen == [1, 2] and not Run(folder).is_trained
    told: dict[int, float] = {}
    found = carry_out(preset(), folder, NAMES, HERE, after_epoch=told.__setitem__, truth=str(truth))
    probes = Run(folder).store.read("probes").to_pandas()
    assert told == pytest.approx(probes.groupby("epoch")["accuracy"].mean().to_dict()) and list(told) == [1, 2, 3]
    return Run(folder), found


def test_measures_are_what_the_tables_say(done: tuple[Run, dict[str, float]]) -> None:
    run, found = done
    probes = run.store.read("probes").to_pandas()
    assert found["probes"] == pytest.approx(probes[probes.epoch == EPOCHS].accuracy.mean())
    last = probes[probes.epoch == EPOCHS].set_index("role").accuracy
    assert (found["smallest"], found["largest"]) == (last["smallest"], last["largest"])
    scores = {row["arch"]: row["accuracy"] for row in run.store.read("scores").to_pylist()}
    assert found["searched"] == scores[run.search().winner.id]
    networks = run.store.read("networks").to_pandas()
    assert sorted(networks.seed) == [0, 3] and set(networks.trained_on) == {"train"}
    assert found["retrained"] == pytest.approx(networks.accuracy.mean())
    tested = run.store.read("evaluations").to_pandas()
    assert [found["inherited"]] == list(tested[tested.how == "inherited"].accuracy)
    assert found["tested"] == pytest.approx(tested[tested.how == "scratch"].accuracy.mean())
    training = run.store.read("training").to_pandas()
    supernet = training[training.what == "supernet"]
    assert found["conflict"] == pytest.approx(supernet.conflict.mean()) and 0 <= found["conflict"] <= 1
    assert found["memory"] == supernet.memory.max() > 50e6
    phases = run.store.read("phases").to_pandas()
    assert found["seconds"] == pytest.approx(phases[phases.phase != "ranking"].seconds.sum())
    assert "stopped" in set(phases.status)


def test_tau_is_that_of_all_pairs(done: tuple[Run, dict[str, float]], truth: Path) -> None:
    run, found = done
    scores = {row["network"]: row["accuracy"] for row in run.store.read("scores").to_pylist()}
    rows = {row["network"]: row["accuracy"] for row in pq.read_table(truth).to_pylist()}
    pairs = [(scores[a] - scores[b], rows[a] - rows[b]) for a, b in itertools.combinations(rows, 2)]
    agree = sum(np.sign(x) * np.sign(y) for x, y in pairs)
    ties = math.sqrt(sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs))
    assert found["tau"] == pytest.approx(agree / ties)


def test_hypervolume_is_the_area_that_the_scored_archs_dominate(done: tuple[Run, dict[str, float]]) -> None:
    run, found = done
    made, _ = run.search().read_back()
    rows = {row["arch"]: row for row in run.store.read("scores").to_pylist()}
    scored = [rows[each.arch.id] for each in made.history]
    steps = sorted((row["macs"] / 900_000, 1 - row["accuracy"]) for row in scored)
    area, lowest = 0.0, 1.0
    for (cost, error), (following, _) in itertools.pairwise([*steps, (1.0, 0.0)]):
        lowest = min(lowest, error)
        area += (following - cost) * (1 - lowest)
    assert len(scored) == 14 and found["hypervolume"] == pytest.approx(area)


def test_nothing_is_done_twice(done: tuple[Run, dict[str, float]], truth: Path) -> None:
    run, found = done
    before = {table: run.store.read(table).num_rows for table in ("phases", "scores", "networks", "evaluations")}
    assert carry_out(preset(), run, NAMES, HERE, truth=str(truth)) == found
    assert before == {table: run.store.read(table).num_rows for table in before}


def test_searches_and_retrainings_share_a_supernet(done: tuple[Run, dict[str, float]]) -> None:
    run, found = done
    asked = ["probes", "searched", "retrained", "seconds"]
    other = preset(search__seed=7, search__evaluations=7, retrain__seeds=[0])
    searched = carry_out(other, run, asked, HERE, search="other")
    assert searched["probes"] == found["probes"]
    assert set(run.searches()) == {"search", "other"}
    longer = override(other, {"retrain.recipe.epochs": 4})
    retrained = carry_out(longer, run, asked, HERE, search="other", retraining="longer")
    assert retrained["searched"] == searched["searched"]
    winner = run.search("other").winner
    rows = {row["path"]: row for row in run.network_rows()}
    assert retrained["retrained"] == rows[f"networks/{winner.id}-scratch-0-longer"]["accuracy"]
    assert rows[f"networks/{winner.id}-scratch-0-longer"]["epochs"] == 4
    # Two recipes with one seed each are no two seeds of one.
    finished = [each for each in collect(run).finished if each.arch == winner.id and each.how == "scratch"]
    assert {(len(each.rows), each.folder) for each in finished} == {
        (1, f"{winner.id}-scratch"),
        (1, f"{winner.id}-scratch-longer"),
    }
    assert all(each.folder is None for each in collect(run).finished if each.arch == run.search().winner.id)
    phases = run.store.read("phases").to_pandas()
    # The first search's winner was retrained by the same recipe, which is not in the time of the other one.
    scratch = phases[phases.name == "scratch"]
    assert run.search().winner != winner and len(scratch) > 1
    own = phases[phases.name.isna() | (phases.name == "other")].seconds.sum() + scratch.seconds.iloc[-1]
    assert searched["seconds"] == pytest.approx(own)
    # Nor is an attempt at it that failed, nor the timing that another row's limit on latency needed.
    first = run.network_rows()[0]["path"].removeprefix("networks/")
    failed = {"phase": "retraining", "name": "scratch", "networks": [first], "status": "stopped", "seconds": 100.0}
    timing = {"phase": "timing", "began": datetime.now(timezone.utc), "status": "finished", "seconds": 100.0}
    with run.lock():
        before = scratch.began.iloc[-1] - timedelta(microseconds=1)
        run.store.append("phases", [{**failed, "began": before.to_pydatetime()}, timing])
    assert MEASURES["seconds"].of(Measured(run, other, "other")) == pytest.approx(own)
    own = phases[phases.name.isna() | phases.name.isin(["other", "scratch-longer"])]
    assert retrained["seconds"] == pytest.approx(own.seconds.sum())
    assert sum((phases.phase == "supernet") & (phases.status == "finished")) == 1


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["probe"], {}, "no measure 'probe' .did you mean 'probes'"),
        (["tested"], {}, "tested is no objective"),
        (["retrained"], {"retrain__train_on": "train+search"}, "set retrain.train_on: train"),
        (["conflict"], {"recipe__health": {}}, "set recipe.health.conflict"),
        (["tau"], {}, "tau needs a table"),
    ],
)
def test_measures_that_a_preset_does_not_provide_are_refused(
    names: list[str], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        check_measures(names, preset(**changes), tuned=True)


def test_trials_side_by_side_count_each_others_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Reading("here", {}, {"gpu": Counter("GPU", 1.0)}, ())
    monkeypatch.setattr("raynas.energy.counters.read_counters", lambda *folders: counted)
    for at_a_time, told in ((None, 1), (2, 1), (1, 0)):
        lines: list[str] = []
        check_energy(at_a_time, lines.append)
        assert len(lines) == told and all("with --at-a-time 1" in line for line in lines)


def test_a_wrong_measure_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tau needs a table"):
        carry_out(preset(), tmp_path / "run", ["probes", "tau"], HERE)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_workers_and_replicas_of_ray_measure_the_same(
    ray_session: None, done: tuple[Run, dict[str, float]], tmp_path: Path
) -> None:
    names, told = ["probes", "searched", "retrained", "tested"], list[int]()
    found = carry_out(
        preset(), tmp_path / "run", names, Resources(1, 1), after_epoch=lambda epoch, accuracy: told.append(epoch)
    )
    assert found == pytest.approx({name: done[1][name] for name in names}) and told == [1, 2, 3]

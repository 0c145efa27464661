"""Runs in one line each, and side by side, as the commands and functions give them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.commands.compare import listed
from raynas.commands.main import main
from raynas.outer.overview import overview
from raynas.runs.networks import arch_text
from raynas.runs.run import Run
from tests.small_run import small_run

DEMO = Path(__file__).parents[1] / "golden/runs/demo"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a finished run, one whose training is done, two that cannot be read, and folders that are none."""
    shutil.copytree(DEMO, tmp_path / "runs/demo")
    small_run(tmp_path / "runs/of_today/fresh")
    small_run(tmp_path / "runs/of_today/fresh/trials/inside")
    small_run(tmp_path / "runs/of_today/fresh/tune")  # where Tune keeps an experiment's own files
    (tmp_path / "runs/of_today/damaged").mkdir()
    (tmp_path / "runs/of_today/damaged/raynas.yaml").write_text("format: 99")
    shutil.copytree(DEMO, tmp_path / "runs/unmarked", ignore=shutil.ignore_patterns("raynas.yaml"))
    (tmp_path / "runs/.hidden").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs")
    return tmp_path / "runs"


def test_runs_are_listed_with_their_state_and_best_result(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo, damaged, fresh, unmarked = raynas.list_runs(runs)
    assert [Path(each.run).name for each in (demo, damaged, fresh)] == ["demo", "damaged", "fresh"]
    winner = Run(DEMO).arch("best").id
    rows = Run(DEMO).table("evaluations").to_pylist()
    (tested,) = [row for row in rows if (row["arch"], row["how"]) == (winner, "scratch")]
    assert (demo.space, demo.data) == ("digits/vit", "digits")
    assert demo.best == {"accuracy": tested["accuracy"], "macs": tested["macs"]}
    assert demo.state.endswith("finished, 1 trained") and "retrained from scratch" in demo.how
    assert (fresh.state, fresh.best) == ("supernet imported", {})
    assert damaged.state == unmarked.state == "cannot be read"
    assert "newer raynas" in damaged.reason
    assert unmarked.reason.endswith("/unmarked is not a run directory: it has no raynas.yaml")
    assert main(["runs", str(runs)]) == 0
    table, _, below = capsys.readouterr().out.partition("\n\n")
    head, *lines = table.splitlines()
    assert head.split() == ["run", "state", "space", "data", "time", "best", "measured"] and len(lines) == 4
    count, *reasons = below.splitlines()
    assert count == "2 of 4 cannot be read:" and max(map(len, reasons), default=0) <= max(80, len(str(runs)) + 20)
    assert "upgrade (pip install -U raynas)" in " ".join(" ".join(reasons).split())


def test_of_equally_accurate_networks_the_cheapest_is_the_best(tmp_path: Path) -> None:
    run = Run(shutil.copytree(DEMO, tmp_path / "run"))
    rows = run.table("scores").to_pylist()
    for folder in ("best", "tables/evaluations", "tables/scores"):
        shutil.rmtree(tmp_path / "run" / folder)
    best = max(row["accuracy"] for row in rows)
    dearest, cheapest = (choose(rows, key=lambda row: row["macs"]) for choose in (max, min))
    run.store.append("scores", [{**dearest, "accuracy": best}, {**cheapest, "accuracy": best}])
    (found,) = raynas.list_runs(tmp_path / "run")
    assert found.best == {"accuracy": best, "macs": cheapest["macs"]}


def test_the_best_result_is_that_of_any_search_by_accuracy(tmp_path: Path) -> None:
    run = Run(shutil.copytree(DEMO, tmp_path / "run"))
    shutil.rmtree(tmp_path / "run/searches/random")
    rows = sorted(run.search().scores().values(), key=lambda row: row["accuracy"])
    settings = run.search().settings
    for name, row in (("better", rows[-1]), ("worse", rows[0])):
        stored = run.search(name)
        stored.begin(settings)
        stored.write(arch := run.arch(row["arch"]), [], {arch: arch_text(arch)})
    folder = run.search().folder
    shutil.rmtree(tmp_path / "run" / folder)
    worst = run.arch(rows[1]["arch"])
    run.search().write(worst, [], {worst: arch_text(worst)})
    shutil.rmtree(tmp_path / "run/tables/evaluations")
    (found,) = raynas.list_runs(tmp_path / "run")
    assert found.best == {"accuracy": rows[-1]["accuracy"], "macs": rows[-1]["macs"]}
    assert found.how == "search split, inherited weights, search better"
    about = run.read_yaml("searches/better.yaml")
    about["settings"]["search"]["objectives"] = {"top5": "max"}
    run.write_yaml("searches/better.yaml", about)
    (found,) = raynas.list_runs(tmp_path / "run")
    assert found.best["accuracy"] < rows[-1]["accuracy"] and "better" not in found.how


def test_an_arch_is_named_by_its_search(tmp_path: Path) -> None:
    run = Run(DEMO)
    assert run.arch("random") == run.search("random").winner != run.arch("best") == run.arch("search")


def test_the_time_of_a_tuning_is_that_of_its_trials(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    run.write_yaml("tune.yaml", {"settings": {"tune": {"objectives": {"loss": "min"}}}})
    for at, state in ((0, "running"), (90, "finished")):
        row = {"number": 0, "name": "0000", "state": state, "results": '{"loss": 0.5}', "values": "{}", "run": ""}
        began = datetime(2026, 1, 1, tzinfo=timezone.utc)
        run.store.append("trials", [row | {"seconds": at, "attempt": 1, "time": began + timedelta(seconds=at)}])
    found = overview(run)
    assert (found.state, found.seconds, found.best) == ("trials finished, 1 finished", 90, {"loss": 0.5})


def test_trials_are_listed_of_the_run_that_is_given(runs: Path) -> None:
    assert len(raynas.list_runs(runs / "of_today/fresh")) == 2


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert main(["runs", str(tmp_path)]) == 0
    assert "no run directories" in capsys.readouterr().out


def test_runs_in_an_object_store_are_listed(s3_server: Callable[[str], str]) -> None:
    small_run(s3_server("listed/runs/a"))
    (found,) = raynas.list_runs(s3_server("listed"))
    assert "/runs/a" in found.run and found.space == "digits/vit"


def test_runs_are_compared_by_what_differs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Run(shutil.copytree(DEMO, tmp_path / "other"))
    for file, key in (("train.yaml", "recipe"), ("searches/search.yaml", "search")):
        content = other.read_yaml(file)
        content["settings"][key] |= {"lr": 0.5} if key == "recipe" else {"batch": 7}
        other.write_yaml(file, content)
    compared = raynas.compare([runs / "demo", other])
    assert compared.differences == {"recipe.lr": [0.003, 0.5], "search.batch": [50, 7]}
    (network,) = (each for each in other.networks() if each.arch == other.arch("best"))
    content = other.read_yaml(f"{network.path}/training.yaml")
    epochs = content["settings"]["recipe"]["epochs"]
    content["settings"]["recipe"]["epochs"] = 7
    other.write_yaml(f"{network.path}/training.yaml", content)
    compared = raynas.compare([runs / "demo", other])
    assert compared.differences["retrained.recipe.epochs"] == [epochs, 7] and len(compared.differences) == 3
    other.delete(f"{network.path}/training.yaml")  # as of a model that is adapted, and wins
    compared = raynas.compare([runs / "demo", other])
    assert list(compared.differences) == ["recipe.lr", "search.batch"]
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "runs/demo", "other", "--figure", "fronts.svg"]) == 0
    out = capsys.readouterr().out
    assert "recipe.lr" in out and "0.5" in out and (tmp_path / "fronts.svg").stat().st_size > 1000
    about = compared.runs[0].read_yaml("searches/search.yaml")
    evaluations = about["settings"]["search"]["evaluations"]
    about["settings"]["search"] |= {"evaluations": 9, "racing": "default"}
    other.write_yaml("searches/raced.yaml", about)
    Run(runs / "demo").write_yaml("searches/raced.yaml", other.read_yaml("searches/search.yaml"))
    other.delete("searches/random.yaml")
    differences = raynas.compare([runs / "demo", other, runs / "of_today/fresh"]).differences
    assert {key: value for key, value in differences.items() if "search" in key} == {
        "searches/search": ["evolution", "evolution", None],
        "search.batch": [50, 7, None],
        "searches/random": ["random", None, None],
        "searches/raced": ["evolution", "evolution", None],
        "searches/raced.search.evaluations": [evaluations, 9, None],
        "searches/raced.search.batch": [7, 50, None],
        "searches/raced.search.racing": ["off", "default", None],
    }
    (axes,) = raynas.compare([runs / "of_today/fresh", other]).plot_front().axes  # the first has no scores
    assert len(axes.lines) + len(axes.collections) > 0
    for figure, why in (("a.yaml", "ends in .png"), ("no/fronts.png", "no such folder"), ("other", "ends in .png")):
        assert main(["compare", "runs/demo", "other", "--figure", figure]) == 2
        out, err = capsys.readouterr()
        assert out == "" and f"argument --figure: {figure}: " in err and why in err and err.count("\n") == 1
    assert main(["compare", "other"]) == 2
    assert "two or more" in capsys.readouterr().err


def test_scores_that_no_search_asked_for_are_no_best_of_a_search(tmp_path: Path) -> None:
    """Those of a sample are said to be; those of a model whose units are being ordered are not of the supernet."""
    run = Run(shutil.copytree(DEMO, tmp_path / "run"))
    for name in ("best", "searches", "tables/evaluations"):
        shutil.rmtree(tmp_path / "run" / name)
    (found,) = raynas.list_runs(tmp_path / "run")
    assert found.best and found.how == "search split, inherited weights, sampled before any search"
    run.write_start({}, {"original": "networks/x", "importance": "l1"})
    (tmp_path / "run/supernet.json").unlink(missing_ok=True)
    (found,) = raynas.list_runs(tmp_path / "run")
    assert (found.best, found.how) == ({}, "")


def test_settings_of_runs_that_are_too_unlike_to_list_all_are_counted() -> None:
    few: dict[str, Sequence[Any]] = {f"recipe.{n}": [n, n + 1] for n in range(10)}
    rows, counted = listed(few)
    assert counted == 0 and [row[0] for row in rows] == list(few)
    many = few | {f"tune.params.{n}": [None, n] for n in range(50)} | {"plan.sampler": ["a", None]}
    rows, counted = listed(many)
    assert rows == [
        *([f"recipe.{n}", str(n), str(n + 1)] for n in range(4)),
        ["recipe.*", "6 settings", "6 settings"],
        ["tune.*", "-", "50 settings"],
        ["plan.sampler", "a", "-"],
    ]
    assert counted == 56

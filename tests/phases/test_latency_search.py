"""Searches by latency: what is handed out keeps the predicted limit, and what wins keeps the measured one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.cluster.resources import Resources
from raynas.costs import cost
from raynas.errors import InfeasibleError, RunDirError, UserError
from raynas.latency.rows import TimedArch
from raynas.latency.stopwatch import Stopwatch
from raynas.latency.stored import archs_to_time
from raynas.latency.timing import TimedOn, Timing, timed_on
from raynas.phases.latency_winners import Candidate, choose_within_limits
from raynas.phases.report_data import traces
from raynas.phases.search import Scoring, SearchSettings, choose_winner, make_scorer, prepare, search
from raynas.reports.collect import collect
from raynas.reports.page import write_report
from raynas.runs.run import Run
from raynas.runs.searches import predictor_of
from raynas.search import SearchConfig
from raynas.space import Arch
from tests.reports.test_report import Page
from tests.small_run import PRESET, SPACE, small_run

SETTINGS = SearchSettings(
    search=SearchConfig.model_validate(
        {
            **PRESET.search.model_dump(),
            "constraints": {"latency": [None, 9.0]},
            "latency": {"timings": 20, "seconds": 0.001},
        }
    ),
    scoring=Scoring(images=40),
)


def truth(arch: Arch) -> float:
    """Made-up milliseconds, in proportion to the MACs."""
    return float(cost(SPACE, [arch])["macs"][0]) / 1.5e5


def takes(arch: Arch) -> float:
    """What an arch takes when it is timed: 10 % more than what the predictor learns from says."""
    return truth(arch) * (1.0 if arch in archs_to_time(SPACE, 20) else 1.1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Arch]:
    """A device on which archs take what `takes` says; the archs that were timed on it."""
    timed: list[Arch] = []

    def time(self: Stopwatch, arch: Arch) -> TimedArch:
        timed.append(arch)
        ms = takes(arch)
        slow = 1.0 if len(timed) % 2 else 1.7  # another program, now and then
        return TimedArch(arch, Timing(self.on, slow * ms, (slow * ms, slow * ms), 5, ms / 2.0), None, "here")

    monkeypatch.setattr(Stopwatch, "time", time)
    return timed


def carry_out(run: Run, settings: SearchSettings, lines: list[str], name: str = "search") -> Any:
    ready = prepare(run, settings, name, progress=lines.append)
    with make_scorer(run, settings.scoring, Resources(replicas=0)) as scorer:
        made = search(ready, scorer, progress=lines.append)
    choose_winner(ready, made, progress=lines.append)
    return made


@pytest.mark.parametrize("limits", [{"latency": [None, 0.3]}, {"throughput": [3e3, None]}])
def test_a_limit_out_of_reach_is_refused_when_the_smallest_is_timed(
    limits: dict[str, Any], tmp_path: Path, device: list[Arch]
) -> None:
    run, smallest = small_run(tmp_path / "run"), SPACE.smallest()
    search = SearchConfig.model_validate({**SETTINGS.search.model_dump(), "constraints": limits})
    settings = SETTINGS.model_copy(update={"search": search})
    for _ in range(2):  # also where its row is known
        with pytest.raises(
            InfeasibleError, match=f"smallest (takes|has) ({truth(smallest):.4g} ms|{1e3 / truth(smallest):.4g})"
        ):
            prepare(run, settings)
    assert device == [smallest] and [row["arch"] for row in run.table("latencies").to_pylist()] == [smallest.id]
    prepare(run, SETTINGS)
    assert device == archs_to_time(SPACE, 20)


def test_the_winner_keeps_the_limit_when_timed(tmp_path: Path, device: list[Arch]) -> None:
    run = small_run(tmp_path / "run")
    lines: list[str] = []
    made = carry_out(run, SETTINGS, lines)
    assert len(device) <= 30 and device[:20] == archs_to_time(SPACE, 20)
    asked = [row.arch for row in made.history]
    assert len(asked) == 14 and max(map(truth, asked)) <= 9.0 * 1.001  # the prediction is all but exact
    best = run.arch("best")
    ranked = [row.arch for row in made.ranking(10)]
    keeps = [arch for arch in ranked if takes(arch) <= 9.0]
    assert best == keeps[0] and best in device
    said = run.read_yaml("best/arch.yaml")["found"]["latency"]
    assert said["ms"] == pytest.approx(takes(best)) and said["predicted_ms"] == pytest.approx(truth(best), rel=1e-3)
    rows = {row["arch"]: row for row in run.store.read("latencies").to_pylist()}
    assert rows[best.id]["predicted_ms"] == said["predicted_ms"]
    assert "predicted from 20 timings (median error 0.0%, rank correlation 1.000, held out)" in lines[1]
    assert lines[0].startswith("timing: ")  # what it took
    assert best.id in lines[-1] and (("breaks the limits" in lines[-1]) == (best != ranked[0]))

    # The same command again: the same search, and nothing is timed.
    before = list(device)
    again = carry_out(run, SETTINGS, [])
    assert device == before and again.history == made.history and run.arch("best") == best
    other = SearchSettings(search=SETTINGS.search.model_copy(update={"seed": 3}), scoring=SETTINGS.scoring)
    carry_out(run, other, [], "other")
    assert len(device) <= len(before) + 10  # its own winners alone

    (main, _) = traces(run)
    assert main.timed is not None and [row["arch"] for row in main.timed.rows] == [arch.id for arch in ranked]
    assert [row["keeps"] for row in main.timed.rows] == [takes(arch) <= 9.0 for arch in ranked]
    page = Page(Path(write_report(run, replace(collect(run), traces=traces(run)))).read_text())
    assert "Latency, predicted and measured" in page.text and f"{takes(best):.4f}" in page.text
    assert "Accuracy against latency" in page.text and "Accuracy against MACs" not in page.text
    assert "latency of a batch (ms)" in page.text and "limit: 9 ms" in page.text and "when timed" in page.text
    drawn = {row["arch"]: row for row in page.rows("scores")}
    assert {arch.id: float(drawn[arch.id]["ms, predicted"]) for arch in asked} == pytest.approx(
        {arch.id: truth(arch) for arch in asked}, rel=1e-3
    )


def test_a_search_goes_on_only_where_it_was_timed(
    tmp_path: Path, device: list[Arch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "run")
    carry_out(run, SETTINGS, [])
    here = len(device)

    def elsewhere(conditions: Any) -> TimedOn:
        return timed_on(conditions).model_copy(update={"device": "a phone"})

    monkeypatch.setattr("raynas.latency.stopwatch.timed_on", elsewhere)
    carry_out(run, SETTINGS, [])  # all is answered from rows: no device is needed
    with pytest.raises(RunDirError, match=r"seed was 0, is 9.*--name"):
        carry_out(run, SETTINGS.model_copy(update={"search": SETTINGS.search.model_copy(update={"seed": 9})}), [])
    assert len(device) == here
    lines: list[str] = []
    carry_out(run, SETTINGS, lines, "there")
    assert len(device) >= here + 20 and "latency on a phone" in lines[1]
    assert run.search("search").read_back()[1] and run.search("there").read_back()[1]


def test_objective_and_throughput(tmp_path: Path, device: list[Arch]) -> None:
    run = small_run(tmp_path / "run")
    config = SearchConfig.model_validate(
        {
            "name": "pareto",
            "objectives": {"accuracy": "max", "latency": "min"},
            "constraints": {"throughput": [100.0, None], "macs": [None, 1.45e6]},
            "latency": {"timings": 20, "seconds": 0.001},
            "evaluations": 16,
            "options": {"initial": 8, "mutations": 4, "crossovers": 4},
        }
    )
    lines: list[str] = []
    made = carry_out(run, SearchSettings(search=config, scoring=SETTINGS.scoring), lines)
    for row in made.history:
        assert row.objectives["latency"] == pytest.approx(truth(row.arch), rel=1e-3)
        assert truth(row.arch) <= 10.0 * 1.001 and cost(SPACE, [row.arch])["macs"][0] <= 1.45e6
    written = {name.removesuffix(".yaml") for name in run.list("best/front")}
    kept = {row.arch.id: (row.objectives["accuracy"], takes(row.arch)) for row in made.front() if takes(row.arch) <= 10}
    beaten = {a for a, (x, y) in kept.items() for u, v in kept.values() if u >= x and v <= y and (u, v) != (x, y)}
    assert written == kept.keys() - beaten and run.arch("best").id in written
    assert all("beaten by others when timed" in lines[-2] for _ in beaten)
    best = run.arch("best")
    assert f"the winner is {best.id}, predicted {truth(best):.4g} ms, takes {takes(best):.4g} ms" in lines[-1]
    (trace,) = traces(run)
    front = {row["arch"]: (row["accuracy"], pytest.approx(row["latency"])) for row in trace.front}
    assert front == {arch: kept[arch] for arch in written}  # what was measured, not what was predicted

    macs = int(cost(SPACE, [best])["macs"][0])
    about = {"arch": best.id, "network": best.network_id, "values": "{}", "macs": macs, "params": 7, "space": "s"}
    tested = {"how": "inherited", "weights": "w", "images": 360, "loss": 0.2, "seconds": 0.1, "reading": 1}
    tested |= {"accuracy": 0.75, "supernet": "s", "data": "d", "seed": 0, "device": "cpu"}
    run.store.append("evaluations", [{**about, **tested}])
    page = Page(Path(write_report(run, replace(collect(run), traces=traces(run)))).read_text())
    (rate, cheap) = (row for name in ("scores-1", "scores-2") for row in [page.rows(name)[0]])
    assert float(rate["images/s, predicted"].replace(",", "")) == pytest.approx(
        1000 / truth(next(row.arch for row in made.history if row.arch.id == rate["arch"])), rel=2e-3
    )
    assert "images/s, predicted" not in cheap
    headings = ["Accuracy against latency", "Accuracy against throughput", "Accuracy against MACs"]
    assert sorted(headings, key=page.text.index) == headings
    assert "limit: 100 images/s" in page.text and "limit: 1.45M MACs" in page.text
    lead = f"The winner, {takes(best):.4g} ms measured, {1000 / takes(best):.4g} images/s measured "
    lead += f"(the search's limit: at least 100 images/s), {macs / 1e3:.3g}k MACs "
    assert macs < 1e6 and f"{lead}(the search's limit: at most 1.45M MACs)" in page.text
    assert "reaches 75.00% on the test split" in page.text
    assert page.rows("summary")[0]["ms"] == f"{takes(best):.4f}"


def test_impossible_and_incomplete(tmp_path: Path, device: list[Arch]) -> None:
    run = small_run(tmp_path / "run")
    config = SETTINGS.search.model_copy(update={"constraints": {"latency": (None, 1.5)}})
    with pytest.raises(UserError, match=r"had latency in \[.., 1.5\]; this space spans about \[2.*, 2"):
        prepare(run, SearchSettings(search=config))
    with pytest.raises(UserError, match="its space was not timed"):
        predictor_of(SPACE, SETTINGS, run.store)


def candidate(arch: Arch, ms: float | None, excess: float) -> Candidate:
    if ms is None:
        return Candidate(arch, 4.0, None, None, None, "no memory", np.inf)
    return Candidate(arch, 4.0, ms, (ms, ms), 1000 / ms, None, excess)


def test_what_is_chosen() -> None:
    archs = archs_to_time(SPACE, 3)
    fits, over, failed = candidate(archs[0], 4.1, 0), candidate(archs[1], 5.5, 0.1), candidate(archs[2], None, np.inf)
    assert choose_within_limits([fits, over], False)[0] == [fits]
    kept, line = choose_within_limits([failed, over, fits], False)
    assert kept == [fits] and line.index(failed.arch.id) < line.index(fits.arch.id) and "no memory" in line
    kept, line = choose_within_limits([failed, over], False)
    assert kept == [over] and line.startswith("none of the best 2 keeps the limits when timed; the nearest is")
    kept, line = choose_within_limits([over, fits], True)
    assert kept == [fits] and line.startswith("1 of 2 on the front break")

"""The report says what the tables say: numbers are parsed back out of the page and compared with the rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas import figures
from raynas.comparison import pareto
from raynas.reports.collect import Trace, collect
from raynas.reports.lines import finished_lines
from raynas.reports.page import write_report
from raynas.runs.networks import arch_text
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.space import load_space, save_arch

SPACE = load_space("digits/vit")


class Page(HTMLParser):
    """Collects tables by id, text, ids, and whatever a browser would fetch."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.words: list[str] = []
        self.labels: list[str] = []
        self._table: list[list[str]] | None = None
        self._cell = False
        self.feed(text)
        self.text = " ".join(self.words)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if found.get("id"):
            self.ids.append(found["id"] or "")
        if tag in ("link", "script", "iframe", "object") or (found.get("src") or "").startswith("http"):
            self.fetched.append(tag)
        if tag == "svg":
            self.labels.append(found.get("aria-label") or "")
        if tag == "table":
            self._table = self.tables[found.get("id") or ""] = []
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th") and self._table is not None:
            self._table[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._table = None
        elif tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._cell and self._table is not None:
            self._table[-1][-1] += data

    def rows(self, table: str) -> list[dict[str, str]]:
        head, *body = self.tables[table]
        return [dict(zip(head, row, strict=True)) for row in body]


def provenance(seed: int = 0) -> dict[str, Any]:
    return {"space": SPACE.fingerprint, "supernet": "s", "data": "d", "seed": seed, "device": "cpu"}


def described(arch: Any, macs: int, params: int) -> dict[str, Any]:
    return {"arch": arch.id, "network": arch.network_id, "values": "{}", "macs": macs, "params": params}


Scored = list[tuple[Any, int, float]]


@pytest.fixture(scope="module")
def scored() -> Scored:
    rng = np.random.default_rng(0)
    archs = list({arch.id: arch for arch in (SPACE.sample(rng) for _ in range(60))}.values())
    return [(arch, int(rng.integers(200_000, 900_000)), float(rng.integers(200, 280)) / 287) for arch in archs]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, scored: Scored) -> Run:
    """A run directory with scores and nothing after them."""
    run = Run(tmp_path_factory.mktemp("report") / "run", create=True)
    run.write_yaml("space.yaml", SPACE.to_dict())
    begin(run, "train", {"data": ["s3://key:secret@bucket/images?region=x"], "note": "<b>&"})
    score = {"status": "ok", "images": 287, "loss": 0.25, **provenance()}
    run.store.append("scores", [{**described(a, m, 2 * m), "accuracy": acc, **score} for a, m, acc in scored])
    failed = {**described(SPACE.smallest(), 1, 2), **score, "status": "failed", "reason": "out of memory", "loss": None}
    run.store.append("scores", [failed])
    return run


@pytest.fixture(scope="module")
def before(searched: Run) -> Page:
    """Its page, written before anything was evaluated."""
    return page(searched, [])


@pytest.fixture(scope="module")
def after(before: Page, searched: Run, scored: Scored) -> tuple[Page, Any]:
    """The page of the finished run, and the winner."""
    winner = finish(searched, scored)
    return page(searched, traces(scored)), winner


def traces(scored: list) -> list[Trace]:
    half = len(scored) // 2
    parts = {"evolution": scored[:half], "random": scored[half:]}
    return [Trace(name, [a.id for a, _, _ in part], [acc for *_, acc in part]) for name, part in parts.items()]


def finish(run: Run, scored: Scored) -> Any:
    """A winner retrained with three seeds and a reference with one, all evaluated; probes of two epochs."""
    winner, macs, _ = max(scored, key=lambda row: row[2])
    reference = SPACE.off_grid({**SPACE.smallest(), "width": 41})
    for folder, arch in (("best", winner), ("reference", reference)):
        (Path(run.uri) / folder).mkdir()
        save_arch(arch, Path(run.uri) / folder / "arch.yaml")
    tested = {"images": 360, "loss": 0.2, "seconds": 0.1}
    networks = [(winner, macs, "scratch", seed, 0.94 + 0.01 * seed) for seed in range(3)]
    networks += [(reference, macs + 1, "scratch", 0, 0.935)]
    for arch, cost, how, seed, accuracy in networks:
        about = {**described(arch, cost, 7), "how": how, "weights": f"{arch.id}{seed}", **provenance(seed)}
        path = f"networks/{arch.id}-{how}-{seed}"
        run.write_bytes(f"{path}/arch.yaml", arch_text(arch).encode())
        run.store.append("networks", [{**about, "path": path, "trained_on": "train", "accuracy": accuracy - 0.01}])
        reading = run.store.read("evaluations").num_rows + 1
        run.store.append("evaluations", [{**about, **tested, "path": path, "accuracy": accuracy, "reading": reading}])
    inherited = {**described(winner, macs, 7), "how": "inherited", "weights": "w", **provenance()}
    run.store.append("evaluations", [{**inherited, **tested, "accuracy": 0.9, "reading": 5}])
    for epoch, accuracy in ((1, 0.2), (2, 0.6), (2, 0.7)):  # epoch 2 twice: a resume repeated it
        about = {**described(winner, 5, 7), "epoch": epoch, "images": 287, **provenance()}
        run.store.append("probes", [{**about, "role": role, "accuracy": accuracy} for role in ("smallest", "largest")])
    return winner


@pytest.mark.parametrize(("inherited", "said"), [(0.9, False), (0.96, False), (0.98, True)])
def test_a_winner_that_its_own_training_made_worse_is_said(
    tmp_path: Path, scored: Scored, inherited: float, said: bool
) -> None:
    """Three seeds have 95 % on 360 images: one standard error of a difference to 98 % is 1.4 points, to 96 % 1.5."""
    run = Run(tmp_path / "run", create=True)
    run.write_yaml("space.yaml", SPACE.to_dict())
    winner = finish(run, scored)
    about = {**described(winner, 1, 7), "how": "inherited", "weights": "w2", **provenance(), "images": 360}
    run.store.append("evaluations", [{**about, "accuracy": inherited, "reading": 9, "loss": 0.1, "seconds": 0.1}])
    run.store.append("evaluations", [{**about, "accuracy": inherited, "weights": "w", "reading": 10}])
    lines = [line for line in finished_lines(run) if "was better before" in line]
    assert bool(lines) == said
    assert all("98.00% with inherited weights, 95.00% retrained from scratch" in line for line in lines)


def page(run: Run, given: list[Trace]) -> Page:
    return Page(Path(write_report(run, replace(collect(run), traces=given))).read_text())


def test_scores_on_the_page_are_the_rows(after: tuple[Page, Any], scored: Scored) -> None:
    shown = {row["arch"]: row for row in after[0].rows("scores")}
    assert set(shown) == {arch.id for arch, _, _ in scored}  # the failed one has no point
    for arch, macs, accuracy in scored:
        assert shown[arch.id]["MACs"] == f"{macs:,}"
        assert shown[arch.id]["accuracy"] == f"{accuracy:.2%}"
        beaten = any(m <= macs and a >= accuracy and (m, a) != (macs, accuracy) for _, m, a in scored)
        assert shown[arch.id]["on the front"] == ("no" if beaten else "yes")


def test_of_images_in_a_second_more_are_better(searched: Run, scored: Scored) -> None:
    known = scored[1:]  # the first was asked by no search
    rates = [float(rate) for rate in np.random.default_rng(1).permutation(len(known)) + 100]
    accuracy = [accuracy for *_, accuracy in known]
    trace = Trace(
        "fast", [arch.id for arch, *_ in known], accuracy, {"throughput": (120, None)}, costs={"throughput": rates}
    )
    found = page(searched, [trace])
    shown = {row["arch"]: row for row in found.rows("scores")}
    assert shown.keys() == set(trace.archs) and "1 more scored subnets have no such value" in found.text
    for arch, rate, value in zip(trace.archs, rates, accuracy, strict=True):
        beaten = any(r >= rate and a >= value and (r, a) != (rate, value) for r, a in zip(rates, accuracy, strict=True))
        assert shown[arch]["on the front"] == ("no" if beaten else "yes")
        assert float(shown[arch]["images/s, predicted"]) == rate
    assert "limit: 120 images/s" in found.text and "images in a second" in found.text


def test_pareto_front_of_equals() -> None:
    macs, accuracy = np.array([5, 3, 3, 9, 5]), np.array([0.5, 0.4, 0.6, 0.6, 0.7])
    assert [list(values) for values in pareto(macs, accuracy)] == [[3, 5], [0.6, 0.7]]


def test_networks_of_a_ranking_share_a_mark(tmp_path: Path, scored: Scored) -> None:
    run = Run(tmp_path / "run", create=True)
    about = {"weights": "w", "trained_on": "train", "accuracy": 0.5, **provenance()}
    score = {"status": "ok", "images": 287, "loss": 0.25, **provenance()}
    run.store.append("scores", [{**described(a, m, 2 * m), "accuracy": acc, **score} for a, m, acc in scored])
    for way in ("scratch", "finetuned"):
        run.write_bytes(f"{way}/arch.yaml", arch_text(scored[0][0]).encode())
    for arch, macs, _ in scored[:5]:
        rows = [{**described(arch, macs, 7), "how": how, "path": how, **about} for how in ("scratch", "finetuned")]
        run.store.append("networks", rows)
    text = page(run, []).text
    assert text.count("others, retrained from scratch") == 1 and text.count("others, fine-tuned") == 1


def test_summary_has_means_and_intervals(after: tuple[Page, Any]) -> None:
    shown = {row["network"]: row for row in after[0].rows("summary")}
    kinds = ["winner, inherited weights", "winner, retrained from scratch", "reference, retrained from scratch"]
    assert list(shown) == kinds
    inherited, retrained, reference = (shown[kind] for kind in kinds)
    assert retrained["test top-1 (mean)"] == "95.00%"
    assert retrained["95 % interval, ±"] == "2.48%"  # 4.3027 x 1 % / sqrt(3), t of two degrees of freedom
    assert retrained["search split"] == "94.00%"
    assert inherited["test top-1 (mean)"] == "90.00%"
    assert reference["95 % interval, ±"] == "-"


def test_two_seeds_are_said_to_say_little(after: tuple[Page, Any], tmp_path: Path, scored: Scored) -> None:
    run = Run(tmp_path / "run", create=True)
    finish(run, scored)
    shutil.rmtree(next(Path(run.uri).glob("networks/*-scratch-2")))
    found = page(run, [])
    (row,) = [row for row in found.rows("summary") if row["network"] == "winner, retrained from scratch"]
    assert row["95 % interval, ±"] == "6.35%"  # 12.706 x 0.7071 % / sqrt(2), t of one degree of freedom
    assert "94.50% ± 6.35% on the test split (retrained from scratch, mean of 2 seeds)." in found.text
    assert found.text.count("An interval over two seeds says little") == 2  # in the headline and below the table
    assert "12.7 standard errors wide to either side, where that over three is 4.3" in found.text
    assert "over two seeds says little" not in after[0].text


def test_every_search_is_drawn() -> None:
    names = [f"_{place}" for place in range(9)]
    points = (np.arange(2), np.arange(2) / 2)
    scatter = figures.accuracy_against_cost(dict.fromkeys(names, points), points)
    progress = figures.search_progress({name: points[1] for name in names})
    for figure in (scatter, progress):
        assert [text.get_text().strip() for text in figure.legends[0].get_texts()][:9] == names


def test_a_deleted_network_is_no_result_any_more(tmp_path: Path, scored: Scored) -> None:
    run = Run(tmp_path / "run", create=True)
    finish(run, scored)
    (deleted,) = (row["path"] for row in run.network_rows() if row["path"].endswith("-scratch-2"))
    shutil.rmtree(Path(run.uri) / deleted)
    found = page(run, [])
    (row,) = [row for row in found.rows("summary") if row["network"] == "winner, retrained from scratch"]
    assert row["seeds"] == "2"
    assert found.text.count(f"{deleted} (that network was deleted)") == 1


def test_readings_of_the_test_split_are_counted(before: Page, after: tuple[Page, Any]) -> None:
    assert "has been read never" in before.text
    assert "has been read 5 times" in after[0].text
    assert [row["reading"] for row in after[0].rows("evaluations")] == ["1", "2", "3", "4", "5"]


def test_search_progress_is_the_running_best(after: tuple[Page, Any], scored: Scored) -> None:
    for trace, row in zip(traces(scored), after[0].rows("searches"), strict=True):
        best = max(value for value in trace.accuracy if value is not None)
        assert row["best accuracy"] == f"{best:.2%}"
        assert row["arch"] == trace.archs[list(trace.accuracy).index(best)]
        assert int(row["found at"]) == list(trace.accuracy).index(best) + 1
    improvements = [row["best accuracy so far"] for row in after[0].rows("improvements") if row["search"] == "random"]
    values = [float(value.rstrip("%")) for value in improvements]
    assert values == sorted(set(values))


def test_failed_scores_leave_the_running_best_alone() -> None:
    trace = Trace("x", list("abcde"), [None, 0.5, None, 0.4, 0.6])
    assert np.array_equal(trace.best_so_far(), [np.nan, 0.5, 0.5, 0.5, 0.6], equal_nan=True)
    assert trace.improvements() == [1, 4]


def test_probe_curves_and_winner_blocks(after: tuple[Page, Any]) -> None:
    found, winner = after
    assert found.tables["probes"] == [
        ["epoch", "smallest", "largest"],
        ["1", "20.00%", "20.00%"],
        ["2", "70.00%", "70.00%"],
    ]
    assert "weights after each epoch." in found.text
    heads = [winner[f"blocks.{i}.heads"] for i in range(winner["depth"])]
    assert [int(row["heads"]) for row in found.rows("blocks")] == heads


def test_probes_are_said_to_be_of_the_epochs_that_they_are_of(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    about = {**described(SPACE.smallest(), 5, 7), "images": 287, "role": "median", "accuracy": 0.5, **provenance()}
    run.store.append("probes", [{**about, "epoch": epoch} for epoch in (3, 6, 8)])
    assert "weights after 3 of the first 8 epochs." in page(run, []).text


def test_the_band_around_a_regret_is_a_t_interval() -> None:
    (band,) = figures.regret({"random": np.array([[0.1, 0.1], [0.2, 0.1], [0.3, 0.1]])}).axes[0].collections
    heights, half = np.asarray(band.get_paths()[0].vertices)[:, 1], 4.302653 * 0.1 / 3**0.5
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - half, 0.2 + half))


def test_no_legend_lies_on_a_curve() -> None:
    curves = {f"lower quartile {i}": (np.arange(9), np.full(9, i / 2)) for i in range(3)}
    marks = [figures.Mark("winner, retrained, then fine-tuned on train+search, 112 x 112 pixels", 3, 0.5)]
    many = {name: np.tile(accuracy, (2, 1)) for name, (_, accuracy) in curves.items()}
    for figure in (
        figures.epoch_curves(curves, "accuracy"),
        figures.search_progress({name: accuracy for name, (_, accuracy) in curves.items()}),
        figures.regret(many),
        figures.accuracy_against_cost(curves, (np.arange(2), np.arange(2)), "macs", [4]),
        figures.accuracy_against_cost(curves, (np.arange(2), np.arange(2)), "macs", [4], marks),
    ):
        figure.draw_without_rendering()
        (legend,), (axes,) = figure.legends, figure.axes
        assert axes.get_legend() is None and legend.get_window_extent().y0 >= axes.get_window_extent().y1
        assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_bilateral_space_says_what_its_scores_are_of(tmp_path: Path, scored: Scored) -> None:
    run = Run(tmp_path / "run", create=True)
    space = load_space("digits/vitas_v1")
    run.write_yaml("space.yaml", space.to_dict())
    score = {"status": "ok", "images": 287, "loss": 0.25, **provenance()}
    run.store.append("scores", [{**described(a, m, 2 * m), "accuracy": acc, **score} for a, m, acc in scored])
    assert page(run, []).text.count("a score is that of the mean of a left and a right path's logits") == 1
    tested = {"how": "inherited", "weights": "w", "images": 360, "loss": 0.2, "seconds": 0.1, "reading": 1}
    run.store.append("evaluations", [{**described(space.largest(), 5, 7), **tested, "accuracy": 0.9, **provenance()}])
    found = page(run, [])
    assert found.rows("summary")[0]["search split"] == "-"
    assert "the left path alone, another network than what was scored. So it has no accuracy" in found.text


def test_dropped_blocks_are_none_of_the_winners(tmp_path: Path) -> None:
    space = load_space("digits/vitas_v1")
    run = Run(tmp_path / "run", create=True)
    run.write_yaml("space.yaml", space.to_dict())
    kept = ["blocks.1", "blocks.3"]
    dropped = {f"blocks.{i}.kept": f"blocks.{i}" in kept for i in range(5)}
    arch = space.arch({**space.largest(), **dropped})
    (tmp_path / "run" / "best").mkdir()
    save_arch(arch, tmp_path / "run" / "best" / "arch.yaml")
    found = page(run, [])
    assert [row["block"] for row in found.rows("blocks")] == kept
    (label,) = (label for label in found.labels if "winner" in label)
    assert "each of the winner's 2 blocks" in label
    outlines = [bar.get_linestyle() for bar in figures.blocks(arch, space).axes[0].patches[::2]]
    assert outlines == [":", "-", ":", "-", ":"]


def test_page_is_self_contained_and_readable_without_seeing_it(after: tuple[Page, Any]) -> None:
    found = after[0]
    assert found.fetched == []
    assert len(found.ids) == len(set(found.ids))
    assert len(found.labels) == 5 and all(len(label) > 40 for label in found.labels)
    assert "<b>&" in found.text  # escaped on the page, so that it reads as written
    assert "s3://bucket/images" in found.text and "secret" not in found.text


def test_an_evolution_without_a_space_is_said_to_be_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    begin(run, "trials", {"values": {}})
    assert "The evolution of the space has not finished an iteration yet." in page(run, []).text


@pytest.mark.parametrize("fill", [lambda run: None, lambda run: run.write_yaml("space.yaml", SPACE.to_dict())])
def test_empty_run_has_a_report(tmp_path: Path, fill: Callable[[Run], None]) -> None:
    run = Run(tmp_path / "run", create=True)
    fill(run)
    found = page(run, [])
    assert "Nothing has been searched in this run yet." in found.text
    assert collect(run).finished == []

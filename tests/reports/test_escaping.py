"""Whatever text a run directory holds is text on the page: no tag of its own, and all of it to be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.reports.collect import Predicted, Timed, Trace, Tried, collect
from raynas.reports.page import write_report
from raynas.runs.networks import arch_text
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.space import load_space, save_arch
from tests.reports.test_report import described, provenance

SPACE = load_space("digits/vit")
TEXTS = {
    "markup": "<script>alert(3)</script> \" onload='x()' y=\" </style></title></svg></pre><b> <!-- --> --!> ]]>"
    " {{ 7 * 7 }} {% raw %} &lt;i&gt; &amp;",
    "figure": r"_$\frac{a$ and $x^$ \g<1>\1 #010203" ' id="here" url(#there)',
    "unicode": "数字 \u202e القط 🐈 é\none\ttwo",
    "long": "w" * 3000,
}


class Reader(HTMLParser):
    """The tags of a page, their attributes, and its text; the description of each figure."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.labels = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.labels += "".join(value or "" for name, value in attrs if name == "aria-label")

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: str) -> Reader:
    return Reader(Path(path).read_bytes().decode())


def searched(folder: Path, text: str) -> str:
    """The report of a run in which every text is this one."""
    run = Run(folder / "run", create=True)
    run.write_yaml("space.yaml", SPACE.to_dict())
    begin(run, "train", {"data": {"name": text}, "classes": [text, {text: text}], "note": text})
    archs = [SPACE.sample(np.random.default_rng(seed)) for seed in range(8)]
    (folder / "run" / "best").mkdir()
    save_arch(archs[0], folder / "run" / "best" / "arch.yaml")
    about = {"images": 287, "loss": 0.25, **provenance(), "device": text}
    rows = [{**described(arch, 1000 + at, 7), "accuracy": 0.5 + at / 20} for at, arch in enumerate(archs)]
    run.store.append("scores", [{**row, **about, "status": "ok"} for row in rows])
    failed = {**described(SPACE.smallest(), 1, 2), **about, "status": "failed", "reason": text, "loss": None}
    run.store.append("scores", [failed])
    for at, row in enumerate(rows[:2]):
        path = f"networks/{at}"
        run.write_bytes(f"{path}/arch.yaml", arch_text(archs[at]).encode())
        same = {**row, "how": text if at else "scratch", "weights": f"{text}{at}", **provenance(), "path": path}
        run.store.append("networks", [{**same, "trained_on": text}])
        run.store.append("evaluations", [{**same, "images": 3, "loss": 0.2, "seconds": 0.1, "reading": at + 1}])
    probe = {**rows[0], "epoch": 1, "role": text, **about}
    run.store.append("probes", [{name: value for name, value in probe.items() if name != "loss"}])
    event = {"what": "supernet", "epoch": 1, "event": text, "conflict": 0.5, "conflict_layers": f'{{"{"x"}": 1}}'}
    run.store.append("training", [{**event, "step": 1}])
    began = {"phase": text, "name": text, "began": datetime(2026, 1, 1, tzinfo=timezone.utc), "status": text}
    run.store.append("phases", [{**began, "seconds": 1.0, "machines": 1, "measured": text, "unmeasured": text}])
    timed = {"predicted_ms": 1.0, "ms": 1.1, "ms_q1": 1.0, "ms_q3": 1.2, "images_per_s": 900.0, "keeps": True}
    tried = dict.fromkeys(("fitted", "held_out", "kendall", "by_macs", "spearman", "rmse", "regret", "used"), 1)
    point = {"of": text, "arch": text, "objective": text, "predicted": 0.5, "measured": 0.6}
    ids = [arch.id for arch in archs]
    trace = Trace(
        text,
        ids,
        [row["accuracy"] for row in rows],
        {"latency": (None, 2.0)},
        timed=Timed(text, [{"arch": ids[0], **timed}]),
        front=[{"arch": ids[0], "accuracy": 0.5}],
        predicted=Predicted([{"objective": text, **tried}], [point, {**point, "of": "proposed"}]),
        costs={"latency": [1.0 + at for at in range(8)]},
        timed_on=text,
    )
    return write_report(run, replace(collect(run), traces=[trace, Trace(f"{text} 2", ids[:2], [0.5, 0.6])]))


def evolved(folder: Path, text: str) -> str:
    """The report of an experiment in which every text is this one."""
    run = Run(folder / "trials", create=True)
    begin(run, "trials", {"values": {text: [text]}})
    space = {
        "iteration": 0, "name": text, "cardinality": "12", "archs": 3, "error": 0.2, "standard_error": 0.1, "mean": 0.3,
        "top": 0.1, "seconds": 3.0, "best": text, "best_error": 0.1, "best_macs": 5, "best_params": 6,
        "mean_macs": 7.0, "ended": text,
    }  # fmt: skip
    scores = [{"iteration": 0, "accuracy": 0.5}, {"iteration": 0, "accuracy": 0.6}]
    found = {"name": text, "search": text, "evaluations": 5, "arch": text, "error": 0.3, "macs": 5, "params": 6}
    trials = [Tried(f"{text} {n}", text, [space], scores, [found]) for n in range(2)]
    return write_report(run, replace(collect(run), searched=[found], trials=[*trials, Tried(text, text, [], [])]))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Reader]:
    """The pages of a harmless word, which say what tags and attributes are ours."""
    return {make: read(make(tmp_path_factory.mktemp("known"), "word")) for make in (searched, evolved)}


@pytest.mark.parametrize("make", [searched, evolved])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.filterwarnings("error::UserWarning")
def test_text_is_text(tmp_path: Path, known: dict[Any, Reader], make: Any, text: str) -> None:
    page = read(make(tmp_path, text))
    assert page.tags <= known[make].tags and page.attributes <= known[make].attributes
    assert len(page.ids) == len(set(page.ids))
    assert text in page.text and text in page.labels


def test_what_is_no_unicode_is_shown_by_its_number(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    assert r"a\ud800" in read(write_report(run, replace(collect(run), traces=[Trace("a\ud800\0b", ["x"], [0.5])]))).text

"""The report: one HTML page that says what was found, how good it is, and what it was compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml

from raynas.reports import figures, html
from raynas.reports.collect import HOW, Content, Row, Trace, Tried, collect, pareto
from raynas.reports.conflict import conflict_section
from raynas.reports.evolution import evolution_lead, evolution_section
from raynas.reports.front import front_section, predictor_section
from raynas.reports.html import Percent
from raynas.reports.price import price_section
from raynas.reports.ranking import ranking_section
from raynas.reports.sharing import sharing_section
from raynas.reports.trials import trials_lead, trials_section
from raynas.results import RunDir
from raynas.results.run_dir import EVOLUTION
from raynas.statistics import mean_interval

_TWO_PATHS = (
    "This space shares weights bilaterally: a score is that of the mean of a left and a right path's logits. A network "
    "with inherited weights is the left path alone, another network than what was scored."
)
OUTSIDE = "outside of searches"  # such as what space evolution scores
PROBES = {"q1": "lower quartile by MACs", "median": "median by MACs", "q3": "upper quartile by MACs"}


def write_report(
    run: RunDir,
    traces: Sequence[Trace] = (),
    searched: Sequence[Row] = (),
    trials: Sequence[Tried] = (),
    to: str = "report.html",
) -> str:
    """Write the report of a run, whatever of it is there already.

    Args:
        run: the run directory.
        traces: what its searches asked for, the main one first.
        searched: of an evolution, the best subnet of each space that was searched.
        trials: of several evolutions, what each has measured.
        to: file name inside the run directory.

    Returns:
        The path of the page, or its URI without credentials.
    """
    run.write_bytes(to, render(collect(run, traces, searched, trials)).encode())
    return f"{run.name}/{to}"


def render(content: Content) -> str:
    """The page."""
    evolved = _is_evolution(content)  # what is scored and tested are the runs of its iterations
    return html.page(
        f"raynas: {content.run.rstrip('/').rsplit('/', 1)[-1]}",
        lead(content),
        [
            trials_section(content.trials),
            evolution_section(content.spaces, content.space_moves, content.space_scores, content.searched),
            *([] if evolved else [_summary(content), _scores(content)]),
            front_section(content.traces, content.scores, content.evaluations),
            _progress(content),
            predictor_section(content.traces),
            _latency(content),
            ranking_section(content.rankings),
            _winner(content),
            _sharing(content),
            _probes(content),
            conflict_section(content.training),
            "" if evolved else _test_split(content),
            price_section(content.phases),
            _what_was_run(content),
        ],
    )


def _is_evolution(content: Content) -> bool:
    return any(work in content.settings for work in EVOLUTION)


def lead(content: Content) -> str:
    """The result in one or two sentences."""
    if any(trial.spaces for trial in content.trials):
        return trials_lead(content.trials)
    if content.spaces:
        return evolution_lead(content.spaces)
    if _is_evolution(content):
        return "The evolution of the space has not finished an iteration yet. The command that began it goes on."
    # At the run's image size, which the budget is for.
    tested = {(found.label, found.how): found for found in content.finished if found.tested and found.size is None}
    ways = [("winner", how) for how in ("scratch", "finetuned", "inherited")]
    best = next((tested[way] for way in ways if way in tested), None)
    if best is None:
        if content.winner is not None:
            return "The search has a winner. It has not been evaluated on the test split yet (raynas evaluate)."
        if content.scores:
            return f"{len(content.scores):,} subnets are scored; the search has no winner yet."
        return "Nothing has been searched in this run yet."
    size = f"{_units(best.macs)} MACs and {_units(best.params)} parameters"
    text = f"The winner, {size}, reaches {_accuracy(best)} on the test split ({HOW[best.how]}{_seeds(best)})."
    reference = tested.get(("reference", best.how))
    if reference is not None:
        text += f" The hand-designed reference at {_units(reference.macs)} MACs reaches {_accuracy(reference)}"
        text += f"{_seeds(reference, ' (')}{')' if _seeds(reference) else ''}."
    return text


def _summary(content: Content) -> str:
    if not content.finished:
        return html.section("The result", html.paragraph("No network has been finished and evaluated yet.", quiet=True))
    rows, marks = [], []
    in_fronts = {row["arch"] for trace in content.traces for row in trace.front}
    scored = {} if _two_paths(content) else {row["arch"]: row["accuracy"] for row in content.scores}
    for found in content.finished:
        if found.how == "inherited" and found.label == found.arch and found.arch in in_fronts:
            continue  # dozens of them, and all of them in the table of fronts
        mean, interval = found.test_accuracy() or (None, None)
        measured = [scored.get(found.arch)] if found.how == "inherited" else [row["accuracy"] for row in found.rows]
        searched = [accuracy for accuracy in measured if accuracy is not None]
        rows.append([
            found.name, found.arch, max(len(found.rows), len(found.tested)), found.macs, found.params,
            Percent(np.mean(searched)) if searched else None, None if mean is None else Percent(mean),
            None if interval is None else Percent(interval),
        ])  # fmt: skip
        if mean is not None and found.macs is not None:
            marks.append(figures.Mark(found.name, found.macs, mean, interval))
    header = ["network", "arch", "seeds", "MACs", "parameters", "search split", "test top-1 (mean)", "95 % interval, ±"]
    table = html.table("summary", header, rows)
    if not marks:
        return html.section("The result", table)
    lines = [f"{mark.label}: {mark.accuracy:.2%}" for mark in marks]
    picture = html.figure(
        figures.svg(figures.finished_networks(marks), "finished"),
        f"Dot plot of top-1 accuracy on the test split. {'; '.join(lines)}.",
        "Top-1 accuracy on the test split. Bars are 95 % t-intervals over seeds; a network with one seed has none.",
    )
    note = ""
    if any(found.label == "reference" for found in content.finished):
        note = html.paragraph(
            "The reference is the hand-designed network of the family, its widths scaled to the winner's MACs. It is "
            "trained from scratch: by the winner's recipe, or by the supernet's where the winner is fine-tuned.",
            quiet=True,
        )
    if _two_paths(content) and any(found.how == "inherited" for found in content.finished):
        note += html.paragraph(f"{_TWO_PATHS} So it has no accuracy on the search split here.", quiet=True)
    return html.section("The result", table, note, picture)


def _two_paths(content: Content) -> bool:
    """Whether subnets are scored as the mean of two paths; a space of one arch has one."""
    space = content.space
    return space is not None and space.constants.sharing == "bilateral" and space.cardinality() > 1


def _scores(content: Content) -> str:
    rows = [row for row in content.scores if row["macs"] is not None and row["accuracy"] is not None]
    if not rows:
        return html.section("Accuracy against MACs", html.paragraph("No subnet has been scored yet.", quiet=True))
    asked = {arch: trace.name for trace in reversed(content.traces) for arch in trace.archs}
    points: dict[str, list[Any]] = {trace.name: [] for trace in content.traces}
    for row in rows:
        points.setdefault(asked.get(row["arch"], OUTSIDE), []).append(row)
    groups = {name: (_column(found, "macs"), _column(found, "accuracy")) for name, found in points.items() if found}
    front = pareto(_column(rows, "macs"), _column(rows, "accuracy"))
    on_front = set(zip(*front, strict=True))
    limits = content.traces[0].limits if content.traces else (None, None)
    table = html.table(
        "scores",
        ["arch", "asked by", "MACs", "parameters", "accuracy", "loss", "on the front"],
        [
            [
                row["arch"], asked.get(row["arch"], OUTSIDE), row["macs"], row["params"], Percent(row["accuracy"]),
                row["loss"], (row["macs"], row["accuracy"]) in on_front,
            ]
            for row in sorted(rows, key=lambda row: -row["accuracy"])
        ],
    )  # fmt: skip
    low, high = front[1].min(), front[1].max()
    picture = html.figure(
        figures.svg(figures.accuracy_against_macs(groups, front, limits, _on_search_split(content)), "scores"),
        f"Scatter plot of {len(rows)} scored subnets, accuracy on the search split against MACs. The Pareto front goes "
        f"from {low:.2%} at {_units(front[0].min())} MACs to {high:.2%} at {_units(front[0].max())}.",
        f"Each point is one of {len(rows):,} subnets, scored with the weights it inherits from the supernet on "
        f"{rows[0]['images']:,} images of the search split. The line is the best accuracy for a budget."
        + (f" {_TWO_PATHS}" if _two_paths(content) else ""),
        table,
    )
    return html.section("Accuracy against MACs", picture)


def _on_search_split(content: Content) -> list[figures.Mark]:
    """The retrained networks that were measured on the search split, too: those that were not trained on it.

    A ranking may have trained dozens, which go by one name for each way of training.
    """
    marks = []
    for found in content.finished:
        measured = [row["accuracy"] for row in found.rows if row["accuracy"] is not None]
        if measured and found.macs is not None:
            label = found.name if found.label in ("winner", "reference") else f"others, {HOW.get(found.how, found.how)}"
            marks.append(figures.Mark(label, found.macs, *mean_interval(measured)))
    return marks


def _progress(content: Content) -> str:
    traces = [trace for trace in content.traces if any(value is not None for value in trace.accuracy)]
    if not traces:
        return ""
    rows, final, curves = [], [], {}
    for trace in traces:
        best = curves[trace.name] = trace.best_so_far()
        at = int(np.nanargmax(best)) if trace.best is None else list(trace.archs).index(trace.best)
        final.append([trace.name, len(best), trace.finished, Percent(best[at]), trace.archs[at], at + 1])
        steps = [0, *(np.flatnonzero(best[1:] > best[:-1]) + 1)]
        rows += [[trace.name, int(step) + 1, trace.archs[step], Percent(best[step])] for step in steps]
    words = "; ".join(f"{row[0]} reaches {row[3]:.2%} after {row[5]} of {row[1]} subnets" for row in final)
    header = ["search", "subnets scored", "finished", "best accuracy", "arch", "found at"]
    picture = html.figure(
        figures.svg(figures.search_progress(curves), "progress"),
        f"Step curves of the best accuracy so far against the number of subnets scored: {words}.",
        "The best accuracy so far, on the search split with inherited weights.",
        html.table("improvements", ["search", "at", "arch", "best accuracy so far"], rows),
        "Every improvement as a table",
    )
    return html.section("Search progress", html.table("searches", header, final), picture)


def _latency(content: Content) -> str:
    timed = [(trace.name, trace.timed) for trace in content.traces if trace.timed is not None]
    if not timed:
        return ""
    rows = [
        [
            name, row["arch"], row["predicted_ms"], row["ms"], row["ms_q1"], row["ms_q3"], row["images_per_s"],
            row["keeps"],
        ]
        for name, found in timed
        for row in found.rows
    ]  # fmt: skip
    header = ["search", "arch", "predicted ms", "measured ms", "lower quartile", "upper quartile", "images/s", "fits"]
    abouts = dict.fromkeys(found.about for _, found in timed)
    return html.section(
        "Latency, predicted and measured",
        *(html.paragraph(f"{about[0].upper()}{about[1:]}.") for about in abouts),
        html.table("latencies", header, rows),
    )


def _winner(content: Content) -> str:
    if content.winner is None or content.space is None:
        return ""
    arch = content.winner
    values = yaml.safe_dump(arch.to_dict(), sort_keys=False, default_flow_style=None, width=100)
    blocks = figures.present_blocks(arch, content.space)
    leaves = list(dict.fromkeys(key.rpartition(".")[2] for key in arch if ".blocks." in f".{key}"))
    rows = [[block, *(arch.get(f"{block}.{leaf}") for leaf in leaves)] for block in blocks]
    table = html.table("blocks", ["block", *(leaf.replace("_", " ") for leaf in leaves)], rows)
    whole = ", ".join(f"{key} {value}" for key, value in arch.items() if ".blocks." not in f".{key}")
    if not blocks:  # one block, stacked: all of it is in the values
        return html.section("The winner", html.paragraph(f"{arch.id}: {whole}."), html.preformatted(values))
    picture = html.figure(
        figures.svg(figures.blocks(arch, content.space), "blocks"),
        f"Bars for each of the winner's {len(blocks)} blocks ({whole}); the values are in the table below.",
        f"The winner, {arch.id}: {whole}. Outlines reach to the space's largest choice; dotted blocks are not in it.",
        table,
        "The blocks as a table",
    )
    return html.section("The winner, block by block", picture, html.preformatted(values))


def _sharing(content: Content) -> str:
    return "" if content.space is None else sharing_section(content.space)


def _probes(content: Content) -> str:
    if not content.probes:
        return ""
    roles = list(dict.fromkeys(row["role"] for row in content.probes))
    newest = {(row["role"], row["epoch"]): row for row in content.probes}  # once, even where a resume repeated it
    epochs = sorted({row["epoch"] for row in content.probes})
    curves = {}
    for role in roles:
        found = [newest[role, epoch] for epoch in epochs if (role, epoch) in newest]
        curves[PROBES.get(role, role)] = (_column(found, "epoch"), _column(found, "accuracy"))
    rows = [
        [epoch, *(Percent(newest[role, epoch]["accuracy"]) if (role, epoch) in newest else None for role in roles)]
        for epoch in epochs
    ]
    last = "; ".join(f"{name} {accuracy[-1]:.2%}" for name, (_, accuracy) in curves.items())
    supernet = [row for row in content.training if row["what"] == "supernet"]
    events = [[row["epoch"], row["event"]] for row in supernet if row["event"] is not None]
    return html.section(
        "Training the supernet",
        html.figure(
            figures.svg(figures.epoch_curves(curves, "accuracy of the probe subnets"), "probes"),
            f"Line chart of the accuracy of {len(roles)} fixed subnets over {len(epochs)} epochs. At the end: {last}.",
            f"Fixed subnets, scored on the search split with the supernet's weights after {_listed(epochs)}. Curves "
            "that still rise at the end say that longer training would help; a fall to chance is a collapse.",
            html.table("probes", ["epoch", *roles], rows),
        ),
        html.table("events", ["epoch", "what the health check did"], events) if events else "",
    )


def _listed(epochs: Sequence[int]) -> str:
    """Which epochs of a training these are, the first of which is 1; in ascending order."""
    return "each epoch" if len(epochs) == epochs[-1] else f"{len(epochs)} of the first {epochs[-1]} epochs"


def _test_split(content: Content) -> str:
    count = max((row["reading"] or 0 for row in content.evaluations), default=0)
    times = "never" if count == 0 else "once" if count == 1 else f"{count} times"
    text = f"The test split of this run has been read {times}. Training and search never see it."
    if not content.evaluations:
        return html.section("The test split", html.paragraph(text))
    rows = [
        [
            row["reading"], row["arch"], HOW.get(row["how"], row["how"]), row["seed"], _pixels(row),
            Percent(row["accuracy"]), None if row["top5"] is None else Percent(row["top5"]), row["loss"], row["images"],
            row["path"], f"{row['time']:%Y-%m-%d %H:%M}",
        ]
        for row in content.evaluations
    ]  # fmt: skip
    header = [
        "reading",
        "arch",
        "weights",
        "seed",
        "pixels",
        "top-1",
        "top-5",
        "loss",
        "images",
        "folder",
        "time (UTC)",
    ]
    return html.section("The test split", html.paragraph(text), html.table("evaluations", header, rows))


def _pixels(row: dict[str, Any]) -> str | None:
    return None if row["height"] is None else f"{row['height']} x {row['width']}"


def _what_was_run(content: Content) -> str:
    parts = []
    if content.timings:
        seconds: dict[str, float] = {}
        for row in content.timings:
            seconds[row["what"]] = seconds.get(row["what"], 0.0) + row["seconds"]
        parts.append(html.table("timings", ["what", "seconds"], [[what, round(s)] for what, s in seconds.items()]))
    if content.starts:
        header = list(dict.fromkeys(key for start in content.starts for key in start))
        parts.append(html.table("starts", header, [[start.get(key) for key in header] for start in content.starts]))
    for work, settings in content.settings.items():
        text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=100)
        parts.append(f"<details><summary>Settings of {work}</summary>\n{html.preformatted(text)}\n</details>")
    parts.append(html.paragraph(f"Run directory: {content.run}. Its tables are Parquet: any Arrow reader opens them."))
    return html.section("What was run", *parts)


def _accuracy(found: Any) -> str:
    mean, interval = found.test_accuracy()
    return f"{mean:.2%}" if interval is None else f"{mean:.2%} ± {interval:.2%}"


def _seeds(found: Any, before: str = ", ") -> str:
    return f"{before}mean of {len(found.tested)} seeds" if len(found.tested) > 1 else ""


def _units(value: float | None) -> str:
    if value is None:
        return "?"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def _column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])

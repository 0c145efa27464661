"""The report of a run: one HTML page with its results and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml

from raynas import figures
from raynas.reports.adapting import adapting_section
from raynas.reports.attention import attention_section
from raynas.reports.collect import HOW, Content, Trace
from raynas.reports.conflict import conflict_section
from raynas.reports.evolution import evolution_lead, evolution_section
from raynas.reports.front import front_section, predictor_section
from raynas.reports.html import Code, Part, Percent, Section, Table, drawn, render
from raynas.reports.price import price_section
from raynas.reports.ranking import ranking_section
from raynas.reports.result import result_lead, result_section
from raynas.reports.scores import scores_sections
from raynas.reports.sharing import sharing_section
from raynas.reports.trials import trials_lead, trials_section
from raynas.reports.tuning import tuning_lead, tuning_section
from raynas.results.schemas import Row
from raynas.runs.files import EVOLUTION
from raynas.runs.run import Run

PROBES = {"q1": "lower quartile by MACs", "median": "median by MACs", "q3": "upper quartile by MACs"}


def write_report(run: Run, content: Content) -> str:
    """Write the report of a run, finished or not, and return the path of the page, or its URI without credentials."""
    # Names may be invalid Unicode: characters that cannot be encoded are shown by number.
    run.write_bytes("report.html", page(content).encode("utf-8", "backslashreplace"))
    return f"{run.name}/report.html"


def page(content: Content) -> str:
    """Return the page as HTML."""
    several = _is_evolution(content) or content.tuning is not None  # scores and tests are then in the runs inside
    return render(
        f"raynas: {content.run.rstrip('/').rsplit('/', 1)[-1]}",
        _lead(content),
        [
            tuning_section(content.tuning),
            trials_section(content.trials),
            evolution_section(content.spaces, content.space_moves, content.space_scores, content.searched),
            *([] if several else [result_section(content), *scores_sections(content)]),
            adapting_section(content.sampled),
            front_section(content.traces, content.scores, content.evaluations),
            _progress(content),
            predictor_section(content.traces),
            _latency(content),
            ranking_section(content.rankings),
            _winner(content),
            None if content.space is None else sharing_section(content.space),
            _probes(content),
            conflict_section(content.training),
            attention_section(content.finished),
            None if several else _test_split(content),
            price_section(content.phases),
            _what_was_run(content),
        ],
    )


def _is_evolution(content: Content) -> bool:
    return any(work in content.settings for work in EVOLUTION)


def _lead(content: Content) -> str:
    """Return the result in one or two sentences."""
    if content.tuning is not None:
        return tuning_lead(content.tuning)
    if any(trial.spaces for trial in content.trials):
        return trials_lead(content.trials)
    if content.spaces:
        return evolution_lead(content.spaces)
    if _is_evolution(content):
        return "The evolution of the space has not finished an iteration yet. The command that began it goes on."
    return result_lead(content)


def _progress(content: Content) -> Section | None:
    traces = [trace for trace in content.traces if any(value is not None for value in trace.accuracy)]
    if not traces:
        return None
    rows, final, curves = [], [], {}
    for trace in traces:
        best = curves[trace.name] = trace.best_so_far()
        at = int(np.nanargmax(best)) if trace.best is None else list(trace.archs).index(trace.best)
        final.append([trace.name, len(best), trace.finished, Percent(best[at]), trace.archs[at], at + 1])
        rows += [[trace.name, step + 1, trace.archs[step], Percent(best[step])] for step in trace.improvements()]
    words = "; ".join(f"{row[0]} reaches {row[3]:.2%} after {row[5]} of {row[1]} subnets" for row in final)
    header = ["search", "subnets", "finished", "best accuracy", "arch", "found at"]
    picture = drawn(
        figures.search_progress(curves),
        "progress",
        f"Step curves of the best accuracy so far against the number of subnets: {words}.",
        "The best accuracy so far, on the search split with inherited weights.",
        Table("improvements", ["search", "at", "arch", "best accuracy so far"], rows),
        "Every improvement as a table",
    )
    raced = [_raced(trace) for trace in traces if trace.stopped]
    head = ["search", "racing", "subnets stopped early", "after images, on average", "of", "image evaluations saved"]
    parts: list[Part] = [Table("searches", header, final), *([Table("racing", head, raced)] if raced else []), picture]
    return Section("Search progress", parts)


def _raced(trace: Trace) -> list[Any]:
    assert trace.images is not None  # the cut of a race is set by whole scores
    seen, stopped = sum(trace.stopped), len(trace.stopped)
    saved = (stopped * trace.images - seen) / (len(trace.archs) * trace.images)
    return [trace.name, trace.racing, stopped, round(seen / stopped), trace.images, Percent(saved)]


def _latency(content: Content) -> Section | None:
    timed = [(trace.name, trace.timed) for trace in content.traces if trace.timed is not None]
    if not timed:
        return None
    columns = ["arch", "predicted_ms", "ms", "ms_q1", "ms_q3", "images_per_s", "keeps"]
    rows = [[name, *(row[column] for column in columns)] for name, found in timed for row in found.rows]
    header = ["search", "arch", "predicted ms", "measured ms", "lower quartile", "upper quartile", "images/s", "fits"]
    abouts = dict.fromkeys(found.about for _, found in timed)
    sentences = [f"{about[0].upper()}{about[1:]}." for about in abouts]
    return Section("Latency, predicted and measured", [*sentences, Table("latencies", header, rows)])


def _winner(content: Content) -> Section | None:
    if content.winner is None or content.space is None:
        return None
    arch = content.winner
    values = Code(yaml.safe_dump(arch.to_dict(), sort_keys=False, default_flow_style=None, width=100))
    blocks = figures.present_blocks(arch, content.space)
    leaves = list(dict.fromkeys(key.rpartition(".")[2] for key in arch if ".blocks." in f".{key}"))
    rows = [[block, *(arch.get(f"{block}.{leaf}") for leaf in leaves)] for block in blocks]
    table = Table("blocks", ["block", *(leaf.replace("_", " ") for leaf in leaves)], rows)
    whole = ", ".join(f"{key} {value}" for key, value in arch.items() if ".blocks." not in f".{key}")
    if not blocks:  # one stacked block, whose values are all in the table
        return Section("The winner", [f"{arch.id}: {whole}.", values])
    picture = drawn(
        figures.blocks(arch, content.space),
        "blocks",
        f"Bars for each of the winner's {len(blocks)} blocks ({whole}); the values are in the table below.",
        f"The winner, {arch.id}: {whole}. Outlines reach to the space's largest choice; dotted blocks are not in it.",
        table,
        "The blocks as a table",
    )
    return Section("The winner, block by block", [picture, values])


def _probes(content: Content) -> Section | None:
    if not content.probes:
        return None
    roles = list(dict.fromkeys(row["role"] for row in content.probes))
    newest = {(row["role"], row["epoch"]): row for row in content.probes}  # each once, even if a resume repeated it
    epochs = sorted({row["epoch"] for row in content.probes})
    curves = {}
    for role in roles:
        found = [newest[role, epoch] for epoch in epochs if (role, epoch) in newest]
        accuracy = np.array([row["accuracy"] for row in found])
        curves[PROBES.get(role, role)] = (np.array([row["epoch"] for row in found]), accuracy)
    rows = [
        [epoch, *(Percent(newest[role, epoch]["accuracy"]) if (role, epoch) in newest else None for role in roles)]
        for epoch in epochs
    ]
    last = "; ".join(f"{name} {accuracy[-1]:.2%}" for name, (_, accuracy) in curves.items())
    supernet = [row for row in content.training if row["what"] == "supernet"]
    events = [[row["epoch"], row["event"]] for row in supernet if row["event"] is not None]
    picture = drawn(
        figures.epoch_curves(curves, "accuracy of the probe subnets"),
        "probes",
        f"Line chart of the accuracy of {len(roles)} fixed subnets over {len(epochs)} epochs. At the end: {last}.",
        f"Fixed subnets, scored on the search split with the supernet's weights after {_listed(epochs)}. Curves that "
        "still rise at the end say that longer training would help; a fall to chance is a collapse.",
        Table("probes", ["epoch", *roles], rows),
    )
    table = Table("events", ["epoch", "what the health check did"], events) if events else None
    return Section("Training the supernet", [picture, table])


def _listed(epochs: Sequence[int]) -> str:
    """Return a description of ascending epochs of a training, counted from 1."""
    return "each epoch" if len(epochs) == epochs[-1] else f"{len(epochs)} of the first {epochs[-1]} epochs"


def _test_split(content: Content) -> Section:
    count = max((row["reading"] or 0 for row in content.evaluations), default=0)
    times = "never" if count == 0 else "once" if count == 1 else f"{count} times"
    text = f"The test split of this run has been read {times}. Training and search never see it."
    if not content.evaluations:
        return Section("The test split", [text])
    rows = [
        [
            row["reading"], row["arch"], HOW.get(row["how"], row["how"]), row["seed"], _pixels(row),
            Percent(row["accuracy"]), None if row["top5"] is None else Percent(row["top5"]), row["loss"], row["images"],
            row["path"], f"{row['time']:%Y-%m-%d %H:%M}",
        ]
        for row in content.evaluations
    ]  # fmt: skip
    header = ["reading", "arch", "weights", "seed", "pixels", "top-1", "top-5", "loss", "images"]
    return Section("The test split", [text, Table("evaluations", [*header, "folder", "time (UTC)"], rows)])


def _pixels(row: Row) -> str | None:
    return None if row["height"] is None else f"{row['height']} x {row['width']}"


def _what_was_run(content: Content) -> Section:
    parts: list[Part] = []
    if content.timings:
        seconds: dict[str, float] = {}
        for row in content.timings:
            seconds[row["what"]] = seconds.get(row["what"], 0.0) + row["seconds"]
        parts.append(Table("timings", ["what", "seconds"], [[what, round(s)] for what, s in seconds.items()]))
    if content.starts:
        header = list(dict.fromkeys(key for start in content.starts for key in start))
        parts.append(Table("starts", header, [[start.get(key) for key in header] for start in content.starts]))
    for work, settings in content.settings.items():
        text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=100)
        parts.append(Code(text, f"Settings of {work}"))
    parts.append(f"Run directory: {content.run}. Its tables are Parquet: any Arrow reader opens them.")
    return Section("What was run", parts)

"""First section of a report: the winner with its cost and accuracy, and the networks for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raynas import figures
from raynas.comparison import half_width
from raynas.quantities import QUANTITIES, amount, bounds_text
from raynas.reports.collect import HOW, Content, Finished
from raynas.reports.html import Note, Percent, Picture, Section, Table, drawn
from raynas.reports.scores import TWO_PATHS, Cost, costs_of, has_two_paths

_FEW = "An interval over two seeds says little"


def result_lead(content: Content) -> str:
    """Return the result of a search in one or two sentences."""
    # At the run's image size, for which the budget is given.
    tested = {(found.label, found.how): found for found in content.finished if found.tested and found.size is None}
    ways = [("winner", how) for how in ("scratch", "finetuned", "inherited")]
    best = next((tested[way] for way in ways if way in tested), None)
    if best is None:
        if content.winner is not None:
            return "The search has a winner. It has not been evaluated on the test split yet (raynas evaluate)."
        if content.scores:
            scored = f"{len(content.scores):,} subnets are scored"
            return f"{scored}; the main search, the one without a --name, has no winner yet."
        return "Nothing has been searched in this run yet."
    text = f"The winner, {_size(content, best)}, reaches {_accuracy(best)} on the test split "
    text += f"({HOW[best.how]}{_seeds(best, ', ')})."
    reference = tested.get(("reference", best.how))
    if reference is not None:
        text += f" The hand-designed reference at {amount('macs', reference.macs)} reaches {_accuracy(reference)}"
        text += f" ({_seeds(reference)})." if _seeds(reference) else "."
    model = tested.get(("model", "transferred"), tested.get(("model", "pretrained")))
    if model is not None:
        text += f" The model that it was made of, at {amount('macs', model.macs)}, reaches {_accuracy(model)}."
    return text + (f" {_FEW}." if any(found and len(found.tested) == 2 for found in (best, reference)) else "")


def _size(content: Content, winner: Finished) -> str:
    """Return the winner's costs: first those that its search uses, with the limits, then the others."""
    main = content.traces[0].name if content.traces else None
    costs = [cost for cost in costs_of(content) if main in (None, *(trace.name for trace in cost.traces))]
    words = [_cost(cost, winner) for cost in costs if cost.of(winner) is not None]
    names = [cost.name for cost in costs]
    words += [amount(name, getattr(winner, name)) for name in ("macs", "params") if name not in names]
    return " and ".join([", ".join(words[:-1]), words[-1]])


def _cost(cost: Cost, winner: Finished) -> str:
    """Return a cost in words: `8.25 ms measured (at most 9 ms)`."""
    text = amount(cost.name, cost.of(winner))
    if QUANTITIES[cost.name].measured:
        text += " measured" if winner.arch in cost.measured else " predicted"
    if not cost.traces:
        return text
    main = cost.traces[0]
    limit = bounds_text(cost.name, main.limits[cost.name])
    rows = () if main.timed is None else main.timed.rows
    broken = QUANTITIES[cost.name].measured and any(row["arch"] == winner.arch and not row["keeps"] for row in rows)
    return text + (f" (the search's limit: {limit}{', which it breaks' if broken else ''})" if limit else "")


def result_section(content: Content) -> Section:
    """Return the section on finished networks: a row and a dot for each."""
    if not content.finished:
        return Section("The result", [Note("No network has been finished and evaluated yet.")])
    rows, tested = [], []
    in_fronts = {row["arch"] for trace in content.traces for row in trace.front}
    scored = {} if has_two_paths(content) else {row["arch"]: row["accuracy"] for row in content.scores}
    others = [cost for cost in costs_of(content) if cost.name not in ("macs", "params")]
    main = (others or costs_of(content))[0]
    for found in content.finished:
        if found.how == "inherited" and found.label == found.arch and found.arch in in_fronts:
            continue  # there may be dozens, which are in the table of fronts
        mean, interval = found.test_accuracy() or (None, None)
        measured = [scored.get(found.arch)] if found.how == "inherited" else [row["accuracy"] for row in found.rows]
        searched = [accuracy for accuracy in measured if accuracy is not None]
        rows.append([
            found.name, found.arch, max(len(found.rows), len(found.tested)), *(cost.of(found) for cost in others),
            found.macs, found.params, Percent(np.mean(searched)) if searched else None,
            None if mean is None else Percent(mean), None if interval is None else Percent(interval),
        ])  # fmt: skip
        if mean is not None:
            known = main.of(found)
            size = amount("macs", found.macs) if known is None else amount(main.name, known)
            tested.append((f"{found.name} ({size})", mean, interval))
    header = ["network", "arch", "seeds", *(QUANTITIES[cost.name].unit for cost in others), "MACs", "parameters"]
    header += ["search split", "test top-1 (mean)", "95 % interval, ±"]
    return Section(
        "The result",
        [Table("summary", header, rows), *_notes(content, others), _picture(tested) if tested else None],
    )


def _picture(tested: Sequence[tuple[str, float, float | None]]) -> Picture:
    lines = [f"{label}: {accuracy:.2%}" for label, accuracy, _ in tested]
    return drawn(
        figures.finished_networks(tested),
        "finished",
        f"Dot plot of top-1 accuracy on the test split. {'; '.join(lines)}.",
        "Top-1 accuracy on the test split. Bars are 95 % t-intervals over seeds: one seed has none, and that of "
        "two says little.",
    )


def _notes(content: Content, others: list[Cost]) -> list[Note]:
    notes = []
    if any(len(found.tested) == 2 for found in content.finished):
        notes.append(
            Note(
                f"{_FEW}: it is {half_width(2):.1f} standard errors wide to either side, where that over "
                f"three is {half_width(3):.1f}. More seeds: raynas retrain --seeds."
            )
        )
    for cost in others:
        if QUANTITIES[cost.name].measured:
            text = f"The {QUANTITIES[cost.name].title} is that on {cost.timed_on}: measured, or else predicted."
            notes.append(Note(f"{text} Networks of archs that no search asked for have none."))
    if any(found.label == "reference" for found in content.finished):
        notes.append(
            Note(
                "The reference is the hand-designed network of the family, its widths scaled to the winner's MACs. It "
                "is trained from scratch: by the winner's recipe, or by the supernet's where the winner is fine-tuned."
            )
        )
    if has_two_paths(content) and any(found.how == "inherited" for found in content.finished):
        notes.append(Note(f"{TWO_PATHS} So it has no accuracy on the search split here."))
    return notes


def _accuracy(found: Any) -> str:
    mean, interval = found.test_accuracy()
    return f"{mean:.2%}" if interval is None else f"{mean:.2%} ± {interval:.2%}"


def _seeds(found: Finished, before: str = "") -> str:
    return f"{before}mean of {len(found.tested)} seeds" if len(found.tested) > 1 else ""

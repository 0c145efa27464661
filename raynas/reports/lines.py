"""Results as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from raynas.comparison import mean_interval
from raynas.costs import cost
from raynas.reports.collect import HOW, Finished, collect
from raynas.results.schemas import Row
from raynas.results.store import rows_by
from raynas.runs.run import Run
from raynas.space import Arch


def describe_cost(arch: Arch) -> str:
    """Return MACs and parameters in words."""
    costs = cost(arch.space, [arch])
    return f"{int(costs['macs'][0]):,} MACs, {int(costs['params'][0]):,} parameters"


def finished_lines(run: Run) -> list[str]:
    """Return one line for each kind of finished network of a run: its size, and its accuracy on the test split.

    A last line says so if the winner was better on it before it was trained on its own.
    """
    lines = []
    finished = collect(run).finished
    for found in finished:
        tested = found.test_accuracy()
        if tested is not None:
            name = f"{found.label}, {HOW[found.how]}"
            name += "" if found.size is None else f", {found.size[0]} x {found.size[1]} pixels"
            lines.append(f"{name:<36}{found.macs or 0:>12,} MACs   {_spread(*tested, len(found.tested))}")
    return [*lines, *_made_worse(finished)]


def retrained_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line for each retrained architecture: accuracy on the search split over its seeds, and folders."""
    lines = []
    for arch, found in rows_by(rows, "arch").items():
        measured = [row["accuracy"] for row in found if row["accuracy"] is not None]
        text = "the search split was trained on, and measures nothing"
        if measured:
            text = f"{_spread(*mean_interval(measured), len(measured))} on the search split"
        lines.append(f"{arch}, {HOW[found[0]['how']]}: {text}")
    return lines


def _made_worse(finished: Sequence[Finished]) -> list[str]:
    """Return a line if the winner lost more by its own training than one standard error on the test images."""
    own = [each for each in finished if each.label == "winner" and each.size is None]
    tested = {each.how: (*found, each) for each in own if (found := each.test_accuracy()) is not None}
    exported = tested.get("scratch") or tested.get("finetuned")
    if exported is None or "inherited" not in tested:
        return []
    (before, *_), (after, _, trained) = tested["inherited"], exported
    spread = sum(share * (1 - share) / trained.tested[0]["images"] for share in (before, after)) ** 0.5
    if before - after <= spread:
        return []
    return [
        f"The winner was better before: {before:.2%} with inherited weights, {after:.2%} {HOW[trained.how]}. Train it "
        "for more epochs or at another rate: with raynas retrain --on train they are compared on the search split, and "
        "nothing is chosen by the test split (raynas export --inherited writes the inherited weights)"
    ]


def _spread(mean: float, interval: float | None, count: int) -> str:
    if interval is None:
        return f"{mean:.2%}"
    return f"{mean:.2%} ± {interval:.2%} (95 %, {count} seeds{', which say little' if count == 2 else ''})"

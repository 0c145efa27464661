"""The rows of space evolution: what each iteration leaves in a run directory, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from raynas.comparison import best_first
from raynas.costs import cost
from raynas.outer.evolution.moves import Move
from raynas.outer.evolution.quality import SpaceQuality
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.space import Arch, Space


@dataclass(frozen=True)
class Iteration:
    """One space, measured.

    Attributes:
        index: counted from 0, the initial space.
        space: what was measured.
        quality: its E-T error.
        moves: of each of its axes, as they were made.
        best: the best scored subnet's row: `best`, `best_error`, `best_macs`, `best_params`.
        mean_macs: of the scored subnets.
        seconds: wall time of its training and scoring, all attempts.
        next: the space after it; None where the evolution ends.
        ended: why it ends; None where it goes on.
    """

    index: int
    space: Space
    quality: SpaceQuality
    moves: tuple[Move, ...]
    best: Row
    mean_macs: float
    seconds: float
    next: Space | None
    ended: str | None


def best_iterations(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Those of the lowest E-T error, the best first: of equals that of fewer MACs on average, then the first."""
    order = best_first([each.quality.error for each in iterations], [[each.mean_macs for each in iterations]])
    best = iterations[order[0]]
    return [iterations[index] for index in order if iterations[index].quality.error == best.quality.error]


def space_file(index: int) -> str:
    """The file of an iteration's space, which any command takes that takes a space."""
    return f"spaces/{index}.yaml"


def iteration_folder(index: int) -> str:
    """The folder of an iteration's supernet and scores, a run directory of its own."""
    return f"iterations/{index}"


def read_space_file(run: Run, index: int) -> Space:
    """A space that is written already."""
    return Space.from_dict(run.read_yaml(space_file(index)))


def seconds_of(run: Run, index: int) -> float | None:
    """What an iteration's supernet and its scoring have taken, all attempts; None where it was measured otherwise."""
    if not run.exists(iteration_folder(index)):
        return None
    return sum(row["seconds"] for row in read_phases(Run(run.local_or_uri(iteration_folder(index)))))


def supernet_of(run: Run, index: int) -> str | None:
    """Fingerprint of the supernet that an iteration was measured by; None where it was measured otherwise."""
    if not run.exists(iteration_folder(index)):
        return None
    return Run(run.local_or_uri(iteration_folder(index))).about_supernet.get("fingerprint")


def write_scores(run: Run, index: int, space: Space, archs: Sequence[Arch], accuracies: Sequence[float | None]) -> None:
    """Write the rows of table `space_scores`."""
    costs, supernet = cost(space, archs), supernet_of(run, index)
    rows = [
        {
            "iteration": index,
            "space": space.fingerprint,
            "supernet": supernet,
            "arch": arch.id,
            "network": arch.network_id,
            "values": json.dumps(arch.to_dict()),
            "macs": int(costs["macs"][i]),
            "params": int(costs["params"][i]),
            "accuracy": accuracy,
        }
        for i, (arch, accuracy) in enumerate(zip(archs, accuracies, strict=True))
    ]
    run.store.append("space_scores", rows)


def write_iteration(run: Run, iteration: Iteration, seed: int) -> None:
    """Write an iteration's moves, the next space and, last, its row: with that it is over.

    A driver that was killed in between has written some of it: what is there is not written again.
    """
    index, space = iteration.index, iteration.space.fingerprint
    common = {"iteration": index, "space": space, "supernet": supernet_of(run, index), "seed": seed}
    if not _rows(run, "space_moves", iteration.index):
        run.store.append("space_moves", [{**common, **_move_row(move)} for move in iteration.moves])
    if iteration.next is not None:
        run.write_yaml(space_file(iteration.index + 1), iteration.next.to_dict())
    whole = iteration.quality
    row = {
        **common,
        "name": iteration.space.name,
        "cardinality": str(iteration.space.cardinality()),
        "archs": whole.archs,
        "mean": whole.mean,
        "top": whole.top,
        "error": whole.error,
        "standard_error": whole.standard_error,
        **iteration.best,
        "mean_macs": iteration.mean_macs,
        "seconds": iteration.seconds,
        "ended": iteration.ended,
    }
    run.store.append("spaces", [row])


def read_iterations(run: Run) -> list[Iteration]:
    """The iterations of a run that are over."""
    found = []
    for row in sorted(run.store.read("spaces").to_pylist(), key=lambda row: row["iteration"]):
        index = row["iteration"]
        found.append(
            Iteration(
                index,
                read_space_file(run, index),
                SpaceQuality(*(row[name] for name in ("archs", "mean", "top", "error", "standard_error"))),
                tuple(_read_move(move) for move in _rows(run, "space_moves", index)),
                {name: row[name] for name in ("best", "best_error", "best_macs", "best_params")},
                row["mean_macs"],
                row["seconds"],
                read_space_file(run, index + 1) if row["ended"] is None else None,
                row["ended"],
            )
        )
    return found


def _rows(run: Run, table: str, index: int) -> list[Row]:
    return run.store.read(table, filter=pc.field("iteration") == index).to_pylist()


def read_scores(run: Run, index: int) -> list[Row]:
    """The scored subnets of an iteration's space."""
    return _rows(run, "space_scores", index)


def _move_row(move: Move) -> Row:
    return {
        "axis": move.axis,
        "members": json.dumps(move.members),
        "choices": json.dumps(move.before),
        "archs": [each.archs for each in move.qualities],
        "means": [each.mean for each in move.qualities],
        "tops": [each.top for each in move.qualities],
        "errors": [each.error for each in move.qualities],
        "standard_errors": [each.standard_error for each in move.qualities],
        "slope": move.slope,
        "slope_error": move.slope_error,
        "steps": move.steps,
        "step": move.step,
        "sure": move.sure,
        "after": json.dumps(move.after),
        "notes": list(move.notes),
    }


def _read_move(row: Row) -> Move:
    columns = (row[name] for name in ("archs", "means", "tops", "errors", "standard_errors"))
    return Move(
        row["axis"],
        tuple(json.loads(row["members"])),
        tuple(json.loads(row["choices"])),
        tuple(json.loads(row["after"])),
        tuple(SpaceQuality(*values) for values in zip(*columns, strict=True)),
        row["slope"],
        row["slope_error"],
        row["steps"],
        row["step"],
        row["sure"],
        tuple(row["notes"]),
    )

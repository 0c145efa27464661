"""Rows and files of space evolution in a run directory, written and read back by iteration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import pyarrow.compute as pc

from raynas.comparison import best_first
from raynas.costs.columns import arch_columns
from raynas.outer.evolution.moves import Move
from raynas.outer.evolution.quality import SpaceQuality
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.space import Arch, Space

_QUALITY = ("archs", "mean", "top", "error", "standard_error")
_QUALITIES = ("archs", "means", "tops", "errors", "standard_errors")
"""Columns of a `SpaceQuality` in table `spaces`, and of one for each choice in `space_moves`."""
_SAME = ("axis", "slope", "slope_error", "steps", "step", "sure")
"""Columns of `space_moves` that are attributes of a `Move`."""


@dataclass(frozen=True)
class Iteration:
    """One measured space of an evolution.

    Attributes:
        index: number of the iteration; 0 is the initial space.
        best: the best scored subnet's row: `best`, `best_error`, `best_macs`, `best_params`.
        seconds: wall time of training and scoring, over all attempts.
        next: the next space; None at the end of the evolution.
        ended: reason why the evolution ended; None if it goes on.
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
    """Return iterations by ascending E-T error; ties by mean MACs, then by order."""
    order = best_first([each.quality.error for each in iterations], [[each.mean_macs for each in iterations]])
    best = iterations[order[0]]
    return [iterations[index] for index in order if iterations[index].quality.error == best.quality.error]


def space_file(index: int) -> str:
    """Return the file name of an iteration's space, a valid space for any command."""
    return f"spaces/{index}.yaml"


def iteration_run(run: Run, index: int, create: bool = False) -> Run:
    """Return the run directory of an iteration's supernet and scores.

    Raises:
        RunDirError: there is none, and `create` is False.
    """
    return Run(run.local_or_uri(_folder(index)), create=create)


def _folder(index: int) -> str:
    return f"iterations/{index}"


def read_space_file(run: Run, index: int) -> Space:
    """Return the stored space of an iteration."""
    return Space.from_dict(run.read_yaml(space_file(index)))


def seconds_of(run: Run, index: int) -> float | None:
    """Return the seconds of an iteration's training and scoring, over all attempts; None without a supernet."""
    if not run.exists(_folder(index)):
        return None
    return sum(row["seconds"] for row in read_phases(iteration_run(run, index)))


def _supernet_of(run: Run, index: int) -> str | None:
    """Return the fingerprint of an iteration's supernet, or None if it was measured otherwise."""
    return iteration_run(run, index).about_supernet.get("fingerprint") if run.exists(_folder(index)) else None


def write_scores(run: Run, index: int, archs: Sequence[Arch], accuracies: Sequence[float | None]) -> None:
    """Write the rows of table `space_scores`."""
    about = {"iteration": index, "supernet": _supernet_of(run, index)}
    scored = zip(archs, accuracies, strict=True)
    rows = [{**about, **arch_columns(arch), "accuracy": accuracy} for arch, accuracy in scored]
    run.store.append("space_scores", rows)


def write_iteration(run: Run, iteration: Iteration, seed: int) -> None:
    """Write an iteration's moves, the next space and, last, its row, which marks it as finished.

    Parts that a killed driver has written are not written again.
    """
    index, space = iteration.index, iteration.space.fingerprint
    common = {"iteration": index, "space": space, "supernet": _supernet_of(run, index), "seed": seed}
    if not rows_of(run, "space_moves", iteration.index):
        run.store.append("space_moves", [{**common, **_move_row(move)} for move in iteration.moves])
    if iteration.next is not None:
        run.write_yaml(space_file(iteration.index + 1), iteration.next.to_dict())
    row = {
        **common,
        "name": iteration.space.name,
        "cardinality": str(iteration.space.cardinality()),
        **asdict(iteration.quality),
        **iteration.best,
        "mean_macs": iteration.mean_macs,
        "seconds": iteration.seconds,
        "ended": iteration.ended,
    }
    run.store.append("spaces", [row])


def read_iterations(run: Run) -> list[Iteration]:
    """Return the finished iterations of a run."""
    found = []
    for row in sorted(run.store.read("spaces").to_pylist(), key=lambda row: row["iteration"]):
        index = row["iteration"]
        found.append(
            Iteration(
                index,
                read_space_file(run, index),
                SpaceQuality(**{name: row[name] for name in _QUALITY}),
                tuple(_read_move(move) for move in rows_of(run, "space_moves", index)),
                {name: row[name] for name in ("best", "best_error", "best_macs", "best_params")},
                row["mean_macs"],
                row["seconds"],
                read_space_file(run, index + 1) if row["ended"] is None else None,
                row["ended"],
            )
        )
    return found


def rows_of(run: Run, table: str, index: int) -> list[Row]:
    """Return the rows of a table of an iteration."""
    return run.store.read(table, filter=pc.field("iteration") == index).to_pylist()


def _move_row(move: Move) -> Row:
    qualities = list(zip(*map(astuple, move.qualities), strict=True)) or [()] * len(_QUALITIES)
    return {
        **{name: getattr(move, name) for name in _SAME},
        "members": json.dumps(move.members),
        "choices": json.dumps(move.before),
        "after": json.dumps(move.after),
        **{name: list(values) for name, values in zip(_QUALITIES, qualities, strict=True)},
        "notes": list(move.notes),
    }


def _read_move(row: Row) -> Move:
    qualities = zip(*(row[name] for name in _QUALITIES), strict=True)
    return Move(
        members=tuple(json.loads(row["members"])),
        before=tuple(json.loads(row["choices"])),
        after=tuple(json.loads(row["after"])),
        qualities=tuple(SpaceQuality(*values) for values in qualities),
        notes=tuple(row["notes"]),
        **{name: row[name] for name in _SAME},
    )

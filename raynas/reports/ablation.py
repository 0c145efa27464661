"""The table of an ablation as Markdown, a page, Arrow and a figure: means over seeds, differences to a baseline."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raynas import drawing
from raynas.comparison import mean_interval, seeds_to_decide
from raynas.reports.html import Note, Part, Section, Table, drawn, render
from raynas.results.schemas import Row

MARK = "✓"
PAPER = "paper"
_WIDE = 3  # panels in a row of the figure

_SCALES = {"%": (100.0, "%", 2), "s": (1.0, "s", 1), "bytes": (1e-6, "MB", 0), "J": (1e-3, "kJ", 2), "": (1.0, "", 3)}
"""Factor, unit as shown and decimals of the values of each unit."""


@dataclass(frozen=True)
class Column:
    """A measure as a column.

    Attributes:
        unit: unit of the values, as `raynas.outer.measures.Measure` has it.
    """

    name: str
    text: str
    unit: str
    better: Literal["max", "min"]

    @property
    def head(self) -> str:
        """Name and unit for the head of a table."""
        return ", ".join(filter(None, (self.text, _SCALES[self.unit][1])))

    def shown(self, value: float | None, half: float | None = None, sign: bool = False) -> str | None:
        """Return a value, and half its interval, as they are in a table; None if there is none."""
        factor, _, decimals = _SCALES[self.unit]
        if value is None or math.isnan(value):
            return None
        text = f"{value * factor:{'+' if sign else ''}.{decimals}f}"
        return text if half is None else f"{text} ± {half * factor:.{decimals}f}"


@dataclass(frozen=True)
class Line:
    """One row of the table with its results.

    Attributes:
        changes: its own changes, in words.
        values: results by measure and seed.
        failed: reasons of failures by seed.
        published: a paper's figures by measure, in the units of the table.
    """

    name: str
    toggles: Sequence[str]
    changes: str
    values: Mapping[str, Mapping[int, float]]
    failed: Mapping[int, str]
    published: Mapping[str, float]

    def known(self, measure: str) -> dict[int, float]:
        """Return the results of a measure that are numbers, by seed."""
        return {seed: value for seed, value in self.values.get(measure, {}).items() if not math.isnan(value)}


@dataclass(frozen=True)
class AblationTable:
    """An ablation's results, as far as they are there.

    Attributes:
        source: where published figures are from.
        toggles: columns of marks.
        seeds: the seeds of every row.
    """

    title: str
    source: str
    toggles: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[Line]
    baseline: str
    seeds: Sequence[int]

    @property
    def base(self) -> Line:
        """The line that the others are compared with."""
        return next(line for line in self.lines if line.name == self.baseline)

    def differences(self, line: Line, measure: str) -> dict[int, float]:
        """Return the differences of a line to the baseline by seed, of the seeds that both have."""
        ours, theirs = line.known(measure), self.base.known(measure)
        return {seed: ours[seed] - theirs[seed] for seed in self.seeds if seed in ours and seed in theirs}

    def compared(self) -> list[Row]:
        """Return a row for each line and measure, in its `unit`: fractions between 0 and 1, seconds, bytes, joules.

        Columns: `row`, `toggles`, `changes`, `measure`, `unit`; `seeds` and their `values`; `mean` and `half` the width
        of its 95 % t interval; `difference` to the baseline, paired by seeds, and half the width of its interval;
        `decided` (True if that leaves 0 out) and `seeds_to_decide`; `published`, a paper's figure in the same unit, and
        its difference to the paper's baseline; the number of `failed` trials.
        """
        return [self._compared(line, column) for column in self.columns for line in self.lines]

    def _compared(self, line: Line, column: Column) -> Row:
        values = line.known(column.name)
        mean, half = mean_interval(list(values.values())) if values else (None, None)
        pairs = list(self.differences(line, column.name).values()) if line.name != self.baseline else []
        difference, spread = mean_interval(pairs) if pairs else (None, None)
        factor = _SCALES[column.unit][0]
        published = line.published.get(column.name)
        theirs = self.base.published.get(column.name) if line.name != self.baseline else None
        known = difference is not None and spread is not None
        return {
            "row": line.name,
            "toggles": list(line.toggles),
            "changes": line.changes,
            "measure": column.name,
            "unit": "fraction" if column.unit == "%" else column.unit,
            "seeds": list(values),
            "values": list(values.values()),
            "mean": mean,
            "half": half,
            "difference": difference,
            "difference_half": spread,
            "decided": abs(difference) > spread if difference is not None and spread is not None else None,
            "seeds_to_decide": seeds_to_decide(pairs) if known else None,
            "published": None if published is None else published / factor,
            "published_difference": None if None in (published, theirs) else (published - theirs) / factor,  # type: ignore[operator]
            "failed": len(line.failed),
        }

    # -- tables ----------------------------------------------------------------------------------------------------

    def means(self) -> Table:
        """Return the table of means, with a mark for each toggle, and a paper's figures beside ours."""
        changed = any(line.changes for line in self.lines)
        header = ["row", *self.toggles, *(["changes"] if changed else []), "seeds"]
        rows: list[list[Any]] = []
        compared = {(row["row"], row["measure"]): row for row in self.compared()}
        for column in self.columns:
            header += [column.head, *([PAPER] if self._published(column) else [])]
        for line in self.lines:
            marks = [MARK if toggle in line.toggles else "" for toggle in self.toggles]
            name = f"{line.name} (baseline)" if line.name == self.baseline else line.name
            cells: list[Any] = [name, *marks, *([line.changes] if changed else []), self._count(line)]
            for column in self.columns:
                row = compared[line.name, column.name]
                cells.append(column.shown(row["mean"], row["half"]))
                if self._published(column):
                    cells.append(column.shown(row["published"]))
            rows.append(cells)
        return Table("means", header, rows)

    def effects(self) -> Table:
        """Return the table of paired differences to the baseline, and of what would decide them."""
        header, compared = ["row"], {(row["row"], row["measure"]): row for row in self.compared()}
        for column in self.columns:
            header += [column.head, "decided?", *([PAPER] if self._published(column) else [])]
        rows = []
        for line in self.lines:
            if line.name == self.baseline:
                continue
            cells: list[Any] = [line.name]
            for column in self.columns:
                row = compared[line.name, column.name]
                cells += [column.shown(row["difference"], row["difference_half"], sign=True), _verdict(row, column)]
                if self._published(column):
                    cells.append(column.shown(row["published_difference"], sign=True))
            rows.append(cells)
        return Table("effects", header, rows)

    def _published(self, column: Column) -> bool:
        return any(column.name in line.published for line in self.lines)

    def _count(self, line: Line) -> str:
        done = len(self.seeds_of(line))
        text = str(done) if done == len(self.seeds) else f"{done} of {len(self.seeds)}"
        return f"{text}, {len(line.failed)} failed" if line.failed else text

    def seeds_of(self, line: Line) -> list[int]:
        """Return the seeds that a line is finished with."""
        return [seed for seed in self.seeds if any(seed in values for values in line.values.values())]

    # -- texts -----------------------------------------------------------------------------------------------------

    @property
    def heading(self) -> str:
        """The title, or what stands for it."""
        return self.title or "Ablation"

    def lead(self) -> str:
        """Return what has been found, in a sentence or two."""
        total, done = len(self.lines) * len(self.seeds), sum(len(self.seeds_of(line)) for line in self.lines)
        column = self.columns[0]
        rows = [self._compared(line, column) for line in self.lines if line.name != self.baseline]
        decided = [row for row in rows if row["decided"]]
        told = [f"{row['row']} {column.shown(row['difference'], row['difference_half'], sign=True)}" for row in decided]
        text = f"{len(self.lines)} rows with {len(self.seeds)} seed(s), {done} of {total} trials finished. "
        if not any(row["difference_half"] is not None for row in rows):
            return text + "There is nothing to compare yet."
        by = f"By {column.head}, compared with {self.baseline}: "
        return text + by + ("; ".join(told) if told else "no difference is decided") + "."

    def notes(self) -> list[str]:
        """Return how the tables are to be read."""
        paper = f" Columns {PAPER!r} have published figures{f' ({self.source})' if self.source else ''}."
        return [
            "Means over seeds, ± half of the 95 % Student t interval. Differences are to the baseline with the same "
            "seed. One is decided if its interval leaves 0 out; else the table says how many seeds could decide it, if "
            "mean and spread of the differences stayed as they are. Intervals are not corrected for their number: of "
            "20 differences that are none, one will look decided on average. All seeds have the same images: what "
            "others would change is not in the intervals."
            + (paper if any(line.published for line in self.lines) else ""),
            *(f"{line.name}, seed {seed}, failed: {why}" for line in self.lines for seed, why in line.failed.items()),
        ]

    def markdown(self) -> str:
        """Return title and tables as Markdown."""
        parts = [f"# {self.heading}", self.lead(), _markdown(self.means())]
        if len(self.lines) > 1:
            parts += [f"## Differences to {self.baseline}", _markdown(self.effects())]
        return "\n\n".join([*parts, *self.notes()]) + "\n"

    def page(self) -> str:
        """Return a page with the tables and the figure."""
        first, *failed = self.notes()
        parts: list[Part] = [self.means(), Note(first), *(Note(text) for text in failed)]
        sections = [Section("Results", parts)]
        if any(row["difference"] is not None for row in self.compared()):
            about = f"Differences of {len(self.lines) - 1} rows to {self.baseline}; the numbers are in the table."
            caption = "Differences to the baseline, their mean with its 95 % interval; small points are seeds."
            if any(line.published for line in self.lines):
                caption += " Diamonds are a paper's."
            picture = drawn(self.figure(), "ablation", about, caption)
            sections.append(Section(f"Differences to {self.baseline}", [self.effects(), picture]))
        return render(f"raynas: {self.heading}", self.lead(), sections)

    def arrow(self) -> bytes:
        """Return the rows of `compared` as an Arrow IPC file, for `pyarrow.feather` and others."""
        kinds = {
            **dict.fromkeys(("row", "changes", "measure", "unit"), pa.string()),
            "toggles": pa.list_(pa.string()),
            "seeds": pa.list_(pa.int64()),
            "values": pa.list_(pa.float64()),
            "decided": pa.bool_(),
            "seeds_to_decide": pa.int64(),
            "failed": pa.int64(),
        }
        rows = self.compared()
        schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in rows[0]])
        stream = io.BytesIO()
        with pa.ipc.new_file(stream, schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema))
        return stream.getvalue()

    @matplotlib.rc_context(drawing.STYLE)
    def figure(self) -> Figure:
        """Draw the differences to the baseline, a panel for each measure: all pairs, the mean, and its interval."""
        others = [line for line in self.lines if line.name != self.baseline]
        tall = math.ceil(len(self.columns) / _WIDE)
        wide = math.ceil(len(self.columns) / tall)
        figure = Figure(figsize=(2.2 + 2.6 * wide, tall * (1.1 + 0.34 * len(others))), layout="constrained")
        all_axes = figure.subplots(tall, wide, squeeze=False, sharey=True).ravel()
        for axes in all_axes[len(self.columns) :]:
            axes.set_visible(False)
        for column, axes in zip(self.columns, all_axes, strict=False):
            factor, unit, _ = _SCALES[column.unit]
            axes.grid(alpha=0.2, color=drawing.PALETTE[5], axis="x")
            axes.axvline(0, color=drawing.PALETTE[5], linewidth=1)
            for place, line in enumerate(others):
                points = [factor * value for value in self.differences(line, column.name).values()]
                if points:
                    mean, half = mean_interval(points)
                    aside = np.linspace(-0.16, 0.16, len(points)) if len(points) > 1 else np.zeros(1)
                    axes.plot(points, place + aside, "o", color=drawing.PALETTE[5], markersize=2.5, alpha=0.7)
                    look: dict[str, Any] = {"color": drawing.PALETTE[0], "ms": 5, "capsize": 3, "lw": 1.4}
                    axes.errorbar(mean, place, xerr=half, fmt="o", **look)
                paper = self._compared(line, column)["published_difference"]
                if paper is not None:
                    axes.plot(factor * paper, place, "D", color=drawing.PALETTE[1], fillstyle="none", mew=1.4)
            axes.set_title(drawing.shown(column.text))
            unit = "points" if unit == "%" else unit
            axes.set_xlabel(f"difference to {drawing.shown(self.baseline)}{f' ({unit})' if unit else ''}")
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_yticks(range(len(others)), [drawing.shown(line.name) for line in others])
            axes.set_ylim(len(others) - 0.5, -0.5)
        return figure

    def png(self) -> bytes:
        """Return the figure as PNG, on white."""
        stream = io.BytesIO()
        with matplotlib.rc_context({**drawing.STYLE}):
            self.figure().savefig(stream, format="png", dpi=150, facecolor="white", metadata={"Software": None})
        return stream.getvalue()


def _verdict(row: Row, column: Column) -> str | None:
    """Return in words whether a difference is decided, and what would decide it."""
    if row["difference"] is None:
        return None
    if row["difference_half"] is None:
        return "one seed"
    if row["decided"]:
        return "better" if (row["difference"] > 0) == (column.better == "max") else "worse"
    if row["difference"] == row["difference_half"] == 0:
        return "equal"
    needed = row["seeds_to_decide"]
    return "no; over 1,000 seeds" if needed is None else f"no; {needed:,} seeds could"


def _markdown(table: Table) -> str:
    def line(cells: Sequence[Any]) -> str:
        texts = ("-" if cell is None else str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return "\n".join([line(table.header), line(["---"] * len(table.header)), *map(line, table.rows)])

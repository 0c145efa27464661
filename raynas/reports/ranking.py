"""Report section on rankings: the correlation of inherited accuracies with those of trained networks."""

from __future__ import annotations

from collections.abc import Sequence

from raynas import figures
from raynas.reports.html import Section, Table, drawn
from raynas.results.schemas import Row
from raynas.results.store import rows_by

NAMES = {
    "macs": "MACs",
    "params": "parameters",
    "naswot": "NASWOT",
    "dss": "DSS",
    "az_nas": "AZ-NAS",
    "inherited": "inherited weights",
    "scratch": "trained from scratch",
    "finetuned": "fine-tuned",
    "truth": "trained elsewhere",
}
STATISTICS = {"pearson": "Pearson's r", "spearman": "Spearman's rho", "kendall": "Kendall's tau"}


def ranking_section(rows: Sequence[Row]) -> Section | None:
    """Return the section on the rankings of a run; None if there are none."""
    overall: dict[str, figures.Estimates] = {}
    within: list[tuple[float, float, figures.Estimates]] = []
    numbers, words = [], []
    for (x, y, bucket, low, high), group in rows_by(rows, "x", "y", "bucket", "low", "high").items():
        found = {row["statistic"]: row for row in group}
        pair = f"{NAMES.get(y, y)} by {NAMES.get(x, x)}"
        measured = {name: row for name, row in found.items() if row["value"] is not None}
        estimates = {STATISTICS[name]: (row["value"], row["lower"], row["upper"]) for name, row in measured.items()}
        if bucket is None:
            overall[pair] = estimates
            tau = measured.get("kendall")
            words += [] if tau is None else [f"{pair} {tau['value']:.2f} [{_interval(tau)}]"]
        elif x == "macs":
            within.append((low, high, estimates))
        cells = [cell for name in STATISTICS for cell in (found[name]["value"], _interval(found[name]))]
        numbers.append([pair, "all" if bucket is None else bucket, low, high, found["kendall"]["networks"], *cells])
    if not numbers:
        return None
    header = ["accuracy of, by", "range", "from MACs", "to MACs", "networks"]
    header += [column for name in STATISTICS.values() for column in (name, f"95 % interval of {name}")]
    heading, table = "Do inherited weights rank subnets rightly?", Table("rankings", header, numbers)
    if not words:
        text = "Too few subnets were ranked, or their accuracies are all equal: no correlation can be computed."
        return Section(heading, [text, table])
    picture = drawn(
        figures.rankings(overall, within),
        "rankings",
        f"Correlations of accuracies with MACs and with each other. Kendall's tau: {'; '.join(words)}.",
        "Correlations with their 95 % bootstrap intervals over networks, 1 where the order is the same. A whole space "
        "is easier to order than one range of MACs, which is what a search under a budget has to do.",
        table,
    )
    return Section(heading, [picture])


def _interval(row: Row) -> str | None:
    return None if row["value"] is None else f"{row['lower']:.2f} to {row['upper']:.2f}"

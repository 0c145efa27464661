"""The tables of docs/search.md about racing, from what racing.py measured.

python docs/evidence/racing_tables.py docs/evidence/results             print them
python docs/evidence/racing_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tables import Row, arguments, read, shown

EXPERIMENTS = ("race_simulated", "race_error", "halve_simulated", "race_supernets")
SETTINGS = ("off", "conservative", "default")


def compared(rows: Sequence[Row], by: Sequence[str]) -> None:
    """A line for each setting under each condition: share of the evaluations, regret, and how often it is the same."""
    if not rows:
        print("(not measured)\n")
        return
    columns = [
        *by,
        "racing",
        "seeds",
        "image evaluations",
        "stopped",
        "regret, mean (most)",
        "same winner",
        "same archs",
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for condition in sorted({tuple(row[name] for name in by) for row in rows}):
        here = [row for row in rows if tuple(row[name] for name in by) == condition]
        for racing in dict.fromkeys(row["racing"] for row in here):
            found = [row for row in here if row["racing"] == racing]
            regrets = [100 * row["regret"] for row in found]
            same, archs = (f"{sum(row[name] for row in found):.0f}" for name in ("same_winner", "same_archs"))
            share = shown([100 * row["share"] for row in found], 1)
            stopped = f"{np.mean([row['stopped'] / row['archs'] for row in found]):.0%}"
            cells = [
                racing,
                len(found),
                f"{share} %",
                stopped,
                f"{np.mean(regrets):.3f} ({max(regrets):.2f})",
                same,
                archs,
            ]
            print(f"| {' | '.join(str(each) for each in [*condition, *cells])} |")
    print()


def errors(rows: Sequence[Row]) -> None:
    """A line for each setting: archs with a place that were stopped, and searches with any."""
    if not rows:
        print("(not measured)\n")
        return
    print("| racing | searches | archs with a place | of these stopped | searches with any | image evaluations |")
    print("|---|---|---|---|---|---|")
    for racing in SETTINGS[1:]:
        found = [row for row in rows if row["racing"] == racing]
        places, wrong = (sum(row[name] for row in found) for name in ("places", "wrong"))
        searches = sum(row["wrong"] > 0 for row in found)
        share = np.mean([row["share"] for row in found])
        print(
            f"| {racing} | {len(found):,} | {places:,} | {wrong:,} ({wrong / places:.2%}) | {searches} | {share:.0%} |"
        )
    print()


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    print("## Made-up images")
    compared(read(results, "race_simulated"), ["unequal", "spread"])
    print("## The error")
    errors(read(results, "race_error"))
    print("## Rungs")
    compared(read(results, "halve_simulated"), ["unequal", "spread"])
    print("## Supernets")
    compared(read(results, "race_supernets"), ["family"])


if __name__ == "__main__":
    main()

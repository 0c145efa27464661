"""The tables of clutter's datasheet in docs/data.md, from what clutter.py measured.

python docs/evidence/clutter_tables.py docs/evidence/results             print them
python docs/evidence/clutter_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import numpy as np
from clutter import NETWORKS, SHAPES
from tables import Row, arguments, cells, read, shown, spread_to_noise


def accuracies(rows: list[Row]) -> None:
    """A line for each network, its mean over seeds and the 95 % interval."""
    print("| network | seeds | MACs | parameters | accuracy on test, % | on train, % | CPU seconds of training |")
    print("|---|---|---|---|---|---|---|")
    for network, seeds in cells(rows, "network", NETWORKS).items():
        of_seeds = [each for (each,) in seeds.values()]
        on_test, on_train = (
            shown([100 * row[column] for row in of_seeds], 1) for column in ("accuracy", "train_accuracy")
        )
        first, spent = of_seeds[0], np.mean([row["cpu_s"] for row in of_seeds])
        print(
            f"| {network} | {len(of_seeds)} | {first['macs'] / 1e6:.2f} M | {first['params']:,} "
            f"| {on_test} | {on_train} | {spent:.0f} |"
        )


def spread(rows: list[Row]) -> None:
    """The deviation between networks of equal MACs and that of one network's seeds, and their ratio."""
    found = {name: seeds for name, seeds in cells(rows, "network", ("1 x", *SHAPES)).items() if len(seeds) > 1}
    if len(found) < 2:
        print("\n(The noise of seeds needs two seeds of two networks at least.)")
        return
    count = min(map(len, found.values()))
    values = 100 * np.array(
        [[seeds[seed][0]["accuracy"] for seed in sorted(seeds)[:count]] for seeds in found.values()]
    )
    between, within, ratios = spread_to_noise(values)
    macs = [next(iter(seeds.values()))[0]["macs"] for seeds in found.values()]
    print(f"\n{len(values)} networks of {min(macs) / 1e6:.2f} to {max(macs) / 1e6:.2f} M MACs, {count} seeds each:")
    print(f"means from {values.mean(1).min():.1f} to {values.mean(1).max():.1f} %;")
    print(f"deviation between networks {between:.2f} points,")
    print(f"of one network's seeds {within:.2f} points;")
    print(f"ratio {ratios[1]:.1f}, 95 % interval {ratios[0]:.1f} to {ratios[2]:.1f}")


if __name__ == "__main__":
    results = arguments(__doc__, ("clutter",))
    rows = read(results, "clutter")
    accuracies(rows)
    spread(rows)

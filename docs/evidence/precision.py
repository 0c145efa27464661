"""Scores in bf16 beside those in fp32: the same archs of supernets of three families, and what wins.

    python docs/evidence/precision.py --out racing

Stop it at any time, run it again. Supernets are those of racing.py (`race_supernets`): with the same folder each is
trained once. docs/evidence/precision_tables.py reads the rows.

`precision`: 200 random archs of a supernet trained on `mnist5k`, scored on 4,000 distorted images of its search split.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tasks import FAMILIES, Row, Task, distorted_scorer, run_tasks, sampled

EXPERIMENTS = ("precision",)
ARCHS = 200


def scored(family: str, seed: int) -> list[Row]:
    """A row for each arch, with its score in both precisions and the share of images on which these differ."""
    import raynas

    found, bits = {}, {}
    for precision in ("fp32", "bf16"):
        with distorted_scorer(family, seed, copies=5, batch_size=500, precision=precision) as scorer:
            archs = sampled(scorer.space, ARCHS)
            began = time.process_time()
            bits[precision] = scorer.score_block(archs, 0, scorer.image_count)
            seconds = time.process_time() - began
            found[precision] = [{**row, "cpu_seconds": seconds / ARCHS} for row in scorer.score(archs)]
    macs = raynas.cost(archs[0].space, archs)["macs"].tolist()
    about = ("accuracy", "loss", "cpu_seconds")
    return [
        {"arch": arch.id, "macs": count, "differing": float((one != other).mean())}
        | {f"{name}_{precision}": rows[place][name] for precision, rows in found.items() for name in about}
        for place, (arch, count, one, other) in enumerate(zip(archs, macs, *bits.values(), strict=True))
    ]


def tasks(experiment: str) -> Iterator[Task]:
    for seed in range(3):
        for family in FAMILIES:
            yield Task(experiment, scored, {"family": family}, seed)


if __name__ == "__main__":
    run_tasks(__doc__, EXPERIMENTS, tasks)

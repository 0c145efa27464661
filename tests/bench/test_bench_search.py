"""The exact benchmark of search algorithms."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from raynas.bench.search import TABLE, bench_search, known_scores
from raynas.commands.main import main
from raynas.costs import cost
from raynas.space import load_space


def test_the_table_holds_every_arch_of_the_space_as_it_is() -> None:
    space = load_space("digits/vitas_block")
    archs = list(space.enumerate())
    table = pq.read_table(TABLE)
    assert table.schema.metadata[b"space"].decode() == space.fingerprint
    assert table.num_rows == 5 * len(archs) == 20_000
    for scores in known_scores(space):
        assert set(scores) == {arch.id for arch in archs} and 0 <= min(scores.values()) < max(scores.values()) <= 1
    assert table["macs"].to_pylist()[: len(archs)] == cost(space, archs)["macs"].tolist()


def test_regret_is_what_is_left_to_the_best_under_the_budget() -> None:
    space = load_space("digits/vitas_block")
    archs = list(space.enumerate())
    regret = bench_search(macs=1e5, evaluations=1000, seeds=2, searches=["random"])["random"]
    fits = int((cost(space, archs)["macs"] <= 1e5).sum())
    assert regret.shape == (2, fits) and 0 < fits < 1000  # it asks for every arch that fits, and for none twice
    assert (regret[:, -1] == 0).all() and (regret >= 0).all() and (np.diff(regret) <= 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--macs", "inf"], "--macs: must be a number above 0"),
        (["--macs", "nan"], "--macs: must be a number above 0"),
        (["--macs", "10"], "no arch of digits/vitas_block has at most 10 MACs"),
        (["--figure", "no/folder.png"], "no/folder.png: there is no such folder"),
        (["--figure", "docs"], "docs: give a file that ends in .png"),
        (["--figure", "figure.yaml"], "figure.yaml: give a file that ends in .png"),
    ],
)
def test_mistakes_are_told_at_once(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "search", "--seeds", "1", *arguments]) == 2
    assert message in capsys.readouterr().err

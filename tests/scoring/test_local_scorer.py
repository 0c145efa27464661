from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from raynas.costs import cost
from raynas.data.pixels import Normalisation
from raynas.errors import RunDirError, UserError
from raynas.nets import build_supernet
from raynas.results.store import Store
from raynas.runs.run import Run
from raynas.scoring import scorer as scorer_module
from raynas.scoring.local import LocalScorer
from raynas.scoring.replica import WeightsChanged
from raynas.scoring.score_arch import score_arch
from raynas.space import Arch, Space
from tests.costs.flop_counter import count_macs
from tests.results.slow_store import SlowStore
from tests.scoring.scoring_parts import Naughty, make_run

Digits = tuple[Tensor, Tensor, Normalisation]


def test_rows_are_in_order_complete_and_computed_once(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits
) -> None:
    run = Run(tmp_path, create=True)
    supernet = Naughty(space)
    asked = [archs[2], archs[0], archs[2], archs[1]]
    with LocalScorer.from_parts(space, supernet, *digits, store=run.store) as scorer:
        rows = scorer.score(asked)
        assert scorer.score(asked) == rows
        assert supernet.passes == 3
        assert list(scorer.score_iter(dict(arch) for arch in asked)) == rows  # plain mappings are archs, too
        endless = scorer.score_iter(itertools.cycle(archs[2:4]))
        assert {row["arch"] for row in itertools.islice(endless, 3000)} == {archs[2].id, archs[3].id}
    assert [row["arch"] for row in rows] == [arch.id for arch in asked]
    stored = {row["arch"]: row for row in run.store.read("scores").to_pylist()}
    assert len(stored) == 4 and [stored[arch.id] for arch in asked] == rows
    for row, arch in zip(rows, asked, strict=True):
        assert row["macs"] == cost(space, [arch])["macs"][0]
        assert space.arch(json.loads(row["values"])) == arch
    bits = {row["arch"]: row["top1"] for row in run.store.read("correct").to_pylist()}
    for row in rows:
        unpacked = np.unpackbits(np.frombuffer(bits[row["arch"]], np.uint8))[: row["images"]]
        assert unpacked.mean() == row["accuracy"]
    # Another process, later: all known.
    with LocalScorer.from_parts(space, supernet, *digits, store=Run(tmp_path).store) as scorer:
        assert scorer.score(asked) == rows and supernet.passes == 4
    # Other images are another key.
    pixels, labels, normalisation = digits
    with LocalScorer.from_parts(space, supernet, pixels[:20], labels[:20], normalisation, store=run.store) as scorer:
        assert scorer.score(archs[:1])[0]["images"] == 20 and supernet.passes == 5


@pytest.mark.parametrize("wrong", [7, None, "best", Path("x")])
def test_what_is_no_list_of_archs_is_refused(wrong: Any, space: Space, digits: Digits) -> None:
    told = r"expected an arch, or a mapping of its values, found .*takes a list"
    scorer = LocalScorer.from_parts(space, build_supernet(space), *digits)
    with scorer, pytest.raises(UserError, match=told):
        scorer.score(wrong)


def test_statistics_and_constants_are_part_of_the_key(tmp_path: Path, space: Space, digits: Digits) -> None:
    pixels, labels, normalisation = digits
    averaging = space.replace(constants=space.constants.model_copy(update={"pool": "mean"}))
    supernet, same_weights = build_supernet(space), build_supernet(averaging)
    same_weights.load_state_dict(supernet.state_dict())
    store = Run(tmp_path, create=True).store
    for of, model, given in (
        (space, supernet, normalisation),
        (space, supernet, Normalisation((0.5,), (0.1,))),
        (averaging, same_weights, normalisation),
    ):
        with LocalScorer.from_parts(of, model, pixels, labels, given, store=store) as scorer:
            (row,) = scorer.score([of.smallest()])
        assert row["loss"] == score_arch(model, of.smallest(), pixels, labels, given).loss
    assert store.read("scores").num_rows == store.read("correct").num_rows == 3


def test_an_arch_with_other_choices_is_counted_as_it_is_scored(space: Space, digits: Digits) -> None:
    supernet = build_supernet(space)
    on_grid = space.fix(space.sample(np.random.default_rng(0))).smallest()
    off_grid = space.off_grid({**space.smallest(), "width": 40})
    with LocalScorer.from_parts(space, supernet, *digits) as scorer:
        rows = scorer.score([on_grid, off_grid])
    for arch, row in zip((on_grid, off_grid), rows, strict=True):
        subnet = supernet.extract(arch)
        assert row["arch"] == arch.id
        assert row["params"] == sum(parameter.numel() for parameter in subnet.parameters())
        assert row["macs"] == count_macs(subnet, torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_size": (16, 16)}, "16 x 16 pixels, not 8 x 8"),
        ({"channels": 3}, "channels 3, not 1"),
        ({"classes": 12}, "classes 12, not 10"),
        ({"head_dim": 24}, "head_dim 24, not"),
        ({"pool": "mean"}, "pool 'mean', not 'token'"),
    ],
)
def test_an_arch_with_other_constants_is_refused(
    space: Space, digits: Digits, change: dict[str, Any], words: str
) -> None:
    if next(iter(change)) in ("head_dim", "pool"):
        change = {"constants": space.constants.model_copy(update=change)}
    foreign = space.replace(**change)
    with LocalScorer.from_parts(space, build_supernet(space), *digits) as scorer:
        for arch in (foreign.smallest(), foreign.off_grid({**foreign.smallest(), "width": 40})):
            with pytest.raises(UserError, match=words):
                scorer.score([space.smallest(), arch])
        assert scorer._table is not None and len(scorer._table) == 0  # refused before any is scored


def test_an_arch_that_fails_is_a_row_and_stays_one(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits
) -> None:
    run = Run(tmp_path, create=True)
    deeds = {archs[0].id: "raise", archs[1].id: "memory", archs[2].id: "nan"}
    supernet = Naughty(space, deeds)
    for _ in range(2):
        with LocalScorer.from_parts(space, supernet, *digits, store=run.store) as scorer:
            rows = scorer.score(archs[:4])
        assert [row["status"] for row in rows] == ["failed", "failed", "failed", "ok"]
        assert [row["accuracy"] is None for row in rows] == [True, True, True, False]
        assert rows[0]["reason"] == "ValueError: this arch is odd"
        assert rows[1]["reason"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        assert rows[2]["reason"] == "FloatingPointError: logits are not finite in fp32"
        assert supernet.passes == 4
    assert run.store.read("scores").num_rows == 4 and run.store.read("correct").num_rows == 1


def test_scoring_does_not_wait_for_a_slow_store_and_leaves_no_row_behind(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raynas.scoring.local.COMMIT_ROWS", 3)
    pixels, labels, normalisation = digits
    slow = SlowStore()
    store = Store(slow.filesystem(), str(tmp_path))
    ids = [arch.id for arch in archs]
    with LocalScorer.from_parts(space, Naughty(space), *digits, store=store) as scorer:
        slow.open_gate.clear()
        assert [row["arch"] for row in scorer.score_iter(archs[:-2])] == ids[:-2]  # though nothing can be written
        assert store.read("scores").num_rows == 0
        slow.open_gate.set()
        assert [row["arch"] for row in scorer.score(archs[-2:])] == ids[-2:]
        assert store.read("scores", ["arch"])["arch"].to_pylist() == ids  # score returns when its rows are stored
    with (
        pytest.raises(KeyboardInterrupt),
        LocalScorer.from_parts(space, Naughty(space), pixels[:10], labels[:10], normalisation, store=store) as scorer,
    ):
        list(scorer.score_iter(archs[:2]))
        raise KeyboardInterrupt
    assert store.read("scores").num_rows == len(archs) + 2
    assert store.read("correct").num_rows == len(archs) + 2


def test_bits_that_a_killed_driver_left_are_not_doubled(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits
) -> None:
    run = Run(tmp_path, create=True)
    with LocalScorer.from_parts(space, Naughty(space), *digits, store=run.store) as scorer:
        scorer.score(archs[:2])
    for path in (tmp_path / "tables" / "scores").iterdir():
        path.unlink()  # as if killed between the two tables
    with LocalScorer.from_parts(space, Naughty(space), *digits, store=run.store) as scorer:
        scorer.score(archs[:3])
    assert sorted(run.store.read("correct")["arch"].to_pylist()) == sorted(arch.id for arch in archs[:3])
    assert run.store.read("scores").num_rows == 3


def test_a_supernet_that_writes_to_its_weights_is_found_out(space: Space, archs: list[Arch], digits: Digits) -> None:
    supernet = Naughty(space, {archs[0].id: "write"})
    scorer = LocalScorer.from_parts(space, supernet, *digits)
    with pytest.raises(WeightsChanged, match=r"wrote to its own weights .*: net\."), scorer:
        scorer.score(archs[:1])


def test_a_run_directory_is_scored_and_locked(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    run = make_run(tmp_path / "run", space)
    with LocalScorer(run, images=50) as scorer:
        (row,) = scorer.score(archs[:1])
        assert scorer.space == space
    assert row["supernet"] == run.read_json("supernet.json")["fingerprint"]
    assert row["images"] == 50 and row["seed"] == 3 and row["space"] == space.fingerprint
    assert LocalScorer(str(run), images=50).run is not None
    with pytest.raises(UserError, match="in a with block"):
        LocalScorer(run).score(archs[:1])
    with pytest.raises(UserError, match="9999 wanted"), LocalScorer(run, images=9999):
        pass
    with pytest.raises(UserError, match=r"unknown precision 'fp8': fp32, bf16, fp16"):
        LocalScorer(run, precision="fp8")
    with pytest.raises(RunDirError, match="not a run directory"):
        LocalScorer(tmp_path / "nothing")
    empty = Run(tmp_path / "empty", create=True)
    with pytest.raises(RunDirError, match=r"no supernet\.safetensors: train a supernet first"), LocalScorer(empty):
        pass


def test_threads_are_put_back(space: Space, archs: list[Arch], digits: Digits) -> None:
    before = torch.get_num_threads()
    with LocalScorer.from_parts(space, Naughty(space), *digits, threads=before + 1) as scorer:
        scorer.score(archs[:1])
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_scores(space: Space, digits: Digits) -> None:
    pixels, labels, normalisation = digits
    process = psutil.Process()
    drawn = space.decode(space.sample_codes(np.random.default_rng(0), 1300))
    with LocalScorer.from_parts(space, Naughty(space), pixels[:2], labels[:2], normalisation) as scorer:
        uss = []
        for first in range(0, 1300, 260):
            for _ in scorer.score_iter(drawn[first : first + 260]):
                pass
            uss.append(process.memory_full_info().uss)
    # Rows and nothing else, about 3 kB each. What else the process holds may come or go once, but not every time.
    assert min(after - before for before, after in itertools.pairwise(uss)) < 3 * 2**20
    assert scorer_module.COMMIT_ROWS < 260


def test_blocks_and_devices_that_there_are_not_are_refused(space: Space, archs: list[Arch], digits: Digits) -> None:
    count = len(digits[0])
    bounds: list[Any] = [(-1, 5), (5, 3), (0, 0), (0, count + 1), ("a", 3), (0.5, 3)]
    with LocalScorer.from_parts(space, build_supernet(space), *digits) as scorer:
        for first, last in bounds:
            with pytest.raises(UserError, match=f"from 0 or more to {count:,} or fewer, not from .* to "):
                scorer.score_block(archs[:1], first, last)
        (block,) = scorer.score_block(archs[:1], np.int64(0), 3)
        assert block is not None and len(block) == 3
    with pytest.raises(UserError, match="'meta' computes nothing"):
        LocalScorer.from_parts(space, build_supernet(space), *digits, device="meta")

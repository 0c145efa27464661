"""Ranking: correlations, the sample over budgets, the comparison with networks trained alone."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load, save
from scipy import stats

from raynas.cluster.resources import Resources
from raynas.commands.main import main
from raynas.correlation import correlations
from raynas.costs import cost, span
from raynas.errors import UserError
from raynas.nets.weights import weights_fingerprint
from raynas.phases import where
from raynas.phases.rank import (
    proxy_scorer,
    rank_lines,
    rank_run,
    sample_by_budget,
    train_alone,
    training_free_scores,
)
from raynas.presets.preset import override
from raynas.progress.reporter import silent
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.space import Space
from raynas.training.recipe import Recipe, build_schedule
from tests.small_run import PRESET, SPACE, small_run


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """60 samples of a bivariate normal whose Kendall tau is known: 2 / pi * arcsin(rho)."""
    rng = np.random.default_rng(0)
    tau = 2 / np.pi * np.arcsin(0.6)
    held = 0
    for _ in range(60):
        pair = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=40)
        rows = {row["statistic"]: row for row in correlations(pair[:, 0].tolist(), pair[:, 1].tolist(), rng)}
        held += rows["kendall"]["lower"] <= tau <= rows["kendall"]["upper"]
        assert rows["kendall"]["value"] == pytest.approx(stats.kendalltau(*pair.T).statistic)
        assert rows["spearman"]["value"] == pytest.approx(stats.spearmanr(*pair.T).statistic)
        assert rows["pearson"]["value"] == pytest.approx(np.corrcoef(*pair.T)[0, 1])
    assert held >= 52


@pytest.mark.parametrize(("x", "y"), [([1, 2, 3], [1, 2, 3]), ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5])])
def test_what_cannot_be_correlated_has_no_value(x: list[float], y: list[float]) -> None:
    rows = correlations(x, y, np.random.default_rng(0))
    assert all(row["value"] is None for row in rows)
    place = {"x": "macs", "y": "inherited", "bucket": None, "low": 0.0, "high": 1.0}
    assert rank_lines([{**place, **row} for row in rows])[1].count("too few" if len(x) == 3 else "all equal") == 3


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_pairs_without_a_number_are_left_out(odd: float) -> None:
    x, y = [1.0, 3.0, 2.0, 5.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    rows = correlations([odd, *x], [0.0, *y], np.random.default_rng(0))
    assert rows == correlations(x, y, np.random.default_rng(0))
    assert [row["networks"] for row in rows] == [5, 5, 5] and rows[2]["value"] == pytest.approx(0.6)


def test_the_rate_of_fine_tuning_never_rises(ranked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of this rate, 6.25e-6, lies below the schedule's usual end, 1e-5."""
    given: dict[str, Recipe] = {}

    def note(run: Run, archs: Any, recipe: Recipe, how: str, **options: Any) -> list[Any]:
        given[how] = recipe
        return []

    monkeypatch.setattr("raynas.phases.rank.retrain", note)
    recipe = Recipe(epochs=8, batch_size=64, lr=5e-4)
    train_alone(ranked, [SPACE.smallest()], recipe, [0], finetune_epochs=3)
    short = given["finetuned"]
    assert given["scratch"] == recipe and (short.epochs, short.warmup_epochs, short.lr) == (3, 0, 5e-5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=short.effective_lr)
    schedule, rates = build_schedule(short, optimizer, 10), []
    for step in range(30):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(6.25e-6) and rates == sorted(rates, reverse=True)


def test_a_sample_has_as_many_archs_in_every_range() -> None:
    sample = sample_by_budget(SPACE, 80, 8)
    low, high = span(SPACE)["macs"]
    assert [len(bucket) for bucket in sample.buckets] == [10] * 8
    for i, bucket in enumerate(sample.buckets):
        macs = cost(SPACE, bucket)["macs"]
        assert len(set(bucket)) == 10
        assert macs.min() >= low + i * (high - low) / 8 and macs.max() <= low + (i + 1) * (high - low) / 8
    spread = sample.spread(12)
    assert [sum(arch in bucket for arch in spread) for bucket in sample.buckets] == [2, 2, 2, 2, 1, 1, 1, 1]
    with pytest.raises(UserError, match="as many archs as there are buckets"):
        sample_by_budget(SPACE, 3, 8)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = small_run(tmp_path_factory.mktemp("rank") / "run")
    recipe = override(PRESET, {"retrain.recipe.epochs": 1}).retrain_recipe
    rank_run(run, LocalScorer(run), recipe, archs=24, buckets=3, train=5, finetune_epochs=1, parallel=1)
    return run


def test_every_pair_is_correlated(ranked: Run) -> None:
    rows = ranked.store.read("rankings").to_pylist()
    pairs = {(row["x"], row["y"]): row["networks"] for row in rows if row["bucket"] is None}
    assert pairs == {
        ("macs", "inherited"): 24,
        ("inherited", "scratch"): 5,
        ("inherited", "finetuned"): 5,
        ("scratch", "finetuned"): 5,
    }
    assert [row["networks"] for row in rows if row["bucket"] is not None] == [8] * 9
    # Against the tables of the run itself.
    scores = ranked.store.read("scores").to_pylist()
    row = next(r for r in rows if (r["x"], r["bucket"], r["statistic"]) == ("macs", None, "kendall"))
    tau = stats.kendalltau([s["macs"] for s in scores], [s["accuracy"] for s in scores]).statistic
    assert row["value"] == pytest.approx(tau) and row["lower"] <= row["value"] <= row["upper"]
    trained = {(r["network"], r["how"]): r["accuracy"] for r in ranked.store.read("networks").to_pylist()}
    networks = sorted({network for network, _ in trained})
    row = next(r for r in rows if (r["x"], r["y"], r["statistic"]) == ("scratch", "finetuned", "pearson"))
    columns = np.array([[trained[network, how] for network in networks] for how in ("scratch", "finetuned")])
    assert row["value"] == pytest.approx(np.corrcoef(columns)[0, 1])
    lines = rank_lines(rows)
    assert any("inherited by macs" in line for line in lines)
    assert len({len(line) for line in lines}) == 1  # whatever the length of the labels


def test_scores_measured_otherwise_do_not_mix_in(ranked: Run) -> None:
    trained = ranked.store.read("networks").to_pylist()
    with LocalScorer(ranked, images=20) as scorer:
        rows = scorer.score([SPACE.arch(json.loads(row["values"])) for row in trained])
    assert len(rows) == 10
    before = ranked.store.read("rankings").to_pylist()
    recipe = override(PRESET, {"retrain.recipe.epochs": 1}).retrain_recipe
    again = rank_run(ranked, LocalScorer(ranked), recipe, archs=24, buckets=3, train=5, finetune_epochs=1, parallel=1)
    assert [row["value"] for row in again] == [row["value"] for row in before]
    assert ranked.store.read("rankings").to_pylist() == before  # none is written twice


def test_a_truth_table_from_elsewhere(ranked: Run, tmp_path: Path) -> None:
    table = ranked.store.read("networks", ["network", "values", "accuracy", "how"])
    alone = table.filter(pa.compute.field("how") == "scratch").drop_columns("how")
    pq.write_table(alone, tmp_path / "truth.parquet")
    rows = rank_run(
        ranked, LocalScorer(ranked), PRESET.retrain_recipe, archs=8, buckets=2, truth=tmp_path / "truth.parquet"
    )
    before = ranked.store.read("rankings").to_pylist()
    same = [
        [row["value"] for row in of if (row["x"], row["y"]) == pair]
        for of, pair in ((rows, ("inherited", "truth")), (before, ("inherited", "scratch")))
    ]
    assert same[0] == same[1][:3]


def test_training_free_scores_are_correlated_with_all_accuracies(ranked: Run) -> None:
    recipe, proxies = override(PRESET, {"retrain.recipe.epochs": 1}).retrain_recipe, ["params", "synflow"]
    rows = rank_run(ranked, LocalScorer(ranked), recipe, archs=24, buckets=3, train=5, parallel=1, proxies=proxies)
    pairs = {(row["x"], row["y"], row["bucket"]): row for row in rows if row["statistic"] == "kendall"}
    overall = {(x, y): row["networks"] for (x, y, bucket), row in pairs.items() if bucket is None}
    assert overall == {
        **{(x, "inherited"): 24 for x in ("macs", *proxies)},
        **{(x, "scratch"): 5 for x in ("inherited", *proxies)},
    }
    assert {bucket for x, _, bucket in pairs if x == "synflow"} == {0, 1, 2, None}
    sample = {arch.network_id for bucket in sample_by_budget(SPACE, 24, 3).buckets for arch in bucket}
    every = [row for row in ranked.store.read("scores").to_pylist() if row["images"] > 20]  # other tests score more
    scores = {row["network"]: row for row in every if row["network"] in sample}
    params, accuracy = ([row[name] for row in scores.values()] for name in ("params", "accuracy"))
    assert len(scores) == 24
    assert pairs["params", "inherited", None]["value"] == pytest.approx(stats.kendalltau(params, accuracy).statistic)
    with pytest.raises(UserError, match="unknown proxy 'synflw'"):
        rank_run(ranked, LocalScorer(ranked), recipe, archs=24, proxies=["synflw"])


def test_a_cluster_s_task_gives_the_same_training_free_scores(ranked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    archs = sample_by_budget(SPACE, 6, 3).spread(6)
    scores = proxy_scorer(ranked, "naswot").score(archs)
    expected = dict(zip((arch.network_id for arch in archs), scores, strict=True))
    sent: list[Resources] = []

    def task(work: Any, *arguments: Any, resources: Resources, **_: Any) -> Any:
        sent.append(resources)
        yield from work(*arguments, "cpu")

    monkeypatch.setattr(where, "on_cluster", lambda: True)
    monkeypatch.setattr(where, "ray_cluster", lambda *_: nullcontext())
    monkeypatch.setattr(where, "run_elsewhere", task)
    asked = Resources(workers=1, replicas=2, cpus=3, gpus=1)
    assert training_free_scores(ranked, "naswot", [*archs, archs[0]], asked, silent) == expected
    assert sent == [replace(asked, gpus=0)]
    here = replace(asked, replicas=0)
    assert training_free_scores(ranked, "naswot", archs, here, silent) == expected and len(sent) == 1


def test_the_command(ranked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", ranked.uri, "--archs", "8", "--buckets", "2", "--replicas", "0"]) == 0
    assert "inherited by macs" in capsys.readouterr().out
    assert main(["rank", ranked.uri, "--archs", "1", "--replicas", "0"]) == 2
    assert "as many archs as there are buckets" in capsys.readouterr().err


def test_without_replicas_nothing_needs_ray(
    ranked: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where no cluster is
    options = ["--archs", "8", "--buckets", "2", "--train", "2", "--seeds", "2", "--set", "retrain.recipe.epochs=1"]
    assert main(["rank", ranked.uri, "--replicas", "0", *options]) == 0
    assert "scratch by inherited" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--finetune", "1"], "apply to networks trained alone: give their number"),
        (["--seeds", "1"], "apply to networks trained alone: give their number"),
        (["--parallel", "1"], "--parallel applies to networks trained alone"),
        (["--gpu"], "--gpu gives a GPU to each replica"),
        (["--train", "9"], "9 networks cannot be trained out of 8 that are scored"),
    ],
)
def test_options_without_effect_are_refused(
    ranked: Run, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rank", ranked.uri, "--archs", "8", "--replicas", "0", *options]) == 2
    assert message in capsys.readouterr().err


def test_subnets_that_cannot_be_scored_are_told(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    state = load(run.read_bytes("supernet.safetensors"))
    state["norm.bias"][:] = torch.nan
    run.write_bytes("supernet.safetensors", save(state))
    run.write_json("supernet.json", {"fingerprint": weights_fingerprint(state), "seed": 0})
    with pytest.raises(UserError, match=r"8 of 8 subnets could not be scored: .*logits are not finite"):
        rank_run(run, LocalScorer(run), PRESET.retrain_recipe, archs=8, buckets=2)


def test_fewer_than_wanted_are_told(ranked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", ranked.uri, "--archs", "11", "--buckets", "4", "--replicas", "0"]) == 0
    assert "Ranking 8 subnets, not 11" in capsys.readouterr().out


def test_every_arch_of_a_small_space_is_in_one_range() -> None:
    one = SPACE.smallest()
    with pytest.raises(UserError, match=r"there is 1 arch in space .*: nothing to rank, which takes at least 4"):
        sample_by_budget(SPACE.fix(one), 16, 8)
    line = Space.from_dict(
        {
            **SPACE.to_dict(),
            "dimensions": {
                **{name: [one[name]] for name in ("patch_size", "width")},
                "depth": [1, 2, 3, 4, 5],  # blocks of equal cost: the ends of four equal ranges
                "blocks": {"heads": [one["blocks.0.heads"]], "mlp_ratio": [one["blocks.0.mlp_ratio"]]},
            },
        }
    )
    assert [len(bucket) for bucket in sample_by_budget(line, 40, 4).buckets] == [2, 1, 1, 1]


def test_one_bucket_is_told_once(ranked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(ranked.store.read("rankings"))
    assert main(["rank", ranked.uri, "--archs", "8", "--buckets", "1", "--replicas", "0"]) == 0
    assert capsys.readouterr().out.count("inherited by macs") == 1
    rows = ranked.store.read("rankings").to_pylist()[before:]
    assert [(row["statistic"], row["bucket"], row["networks"]) for row in rows] == [
        (statistic, None, 8) for statistic in ("pearson", "spearman", "kendall")
    ]


def test_bad_truth_tables(ranked: Run, tmp_path: Path) -> None:
    def use(name: str) -> None:
        rank_run(ranked, LocalScorer(ranked), PRESET.retrain_recipe, archs=8, buckets=2, truth=tmp_path / name)

    with pytest.raises(UserError, match=r"none\.parquet: there is no such file"):
        use("none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(UserError, match="not a Parquet file"):
        use("text.parquet")
    pq.write_table(pa.table({"network": ["a"], "values": ["{}"]}), tmp_path / "short.parquet")
    with pytest.raises(UserError, match="lacks the column 'accuracy'"):
        use("short.parquet")
    pq.write_table(pa.table({"network": ["a"], "values": ["{}"], "accuracy": [0.5]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match=r"other\.parquet holds networks of another space than the run's: .* no value"):
        use("other.parquet")
    wrong = {"network": ["a"], "values": ["no JSON"], "accuracy": [0.5]}
    pq.write_table(pa.table(wrong), tmp_path / "wrong.parquet")
    with pytest.raises(UserError, match=r"wrong\.parquet: its column 'values' must hold architectures as JSON"):
        use("wrong.parquet")
    pq.write_table(pa.table({**wrong, "accuracy": [64.3]}), tmp_path / "percent.parquet")
    with pytest.raises(UserError, match=r"percent\.parquet: holds the accuracy 64\.3: a truth table has fractions"):
        use("percent.parquet")
    larger = {**wrong, "values": [json.dumps(SPACE.smallest().to_dict())], "height": [12], "width": [12]}
    pq.write_table(pa.table(larger), tmp_path / "larger.parquet")
    with pytest.raises(UserError, match=r"larger\.parquet holds networks for images of height 12, .* are of 8 pixels"):
        use("larger.parquet")
    pq.write_table(pa.table({**wrong, "accuracy": ["high"]}), tmp_path / "words.parquet")
    with pytest.raises(UserError, match=r"words\.parquet: its accuracies are of type string"):
        use("words.parquet")

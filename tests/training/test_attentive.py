"""AttentiveNAS's sampling: buckets with the right odds, and the best or the worst of the right candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from raynas.config import validate
from raynas.costs import cost
from raynas.documents import parse_yaml
from raynas.errors import ConfigError
from raynas.phases.inputs import estimate
from raynas.results.run_dir import plain
from raynas.space import Arch, load_space
from raynas.training.loop import train_loop
from raynas.training.plan import Plan
from tests.training.training_parts import SPACE, few, plan, recipe

WIDTH = 1000.0


def macs_of(archs: Sequence[Arch]) -> np.ndarray:
    return cost(archs[0].space, list(archs))["macs"]


def no_losses(archs: object) -> list[float]:
    raise AssertionError("nothing is compared")


@pytest.mark.parametrize("choose", ["best", "worst"])
@pytest.mark.parametrize("sampler", ["single_path", "sandwich"])
def test_the_best_or_the_worst_of_a_bucket(sampler: str, choose: str) -> None:
    asked: list[list[Arch]] = []

    def losses(archs: Sequence[Arch]) -> list[float]:
        asked.append(list(archs))
        return [float(int(arch.id, 16) % 1009) for arch in archs]

    option = {"bucket": {"macs": WIDTH}, "candidates": 3, "choose": choose}
    step, rng = plan({"name": sampler, "attentive": option}).build_sampler(), np.random.default_rng(0)
    picked = [this.archs[0] for _ in range(50) for this in step(SPACE, rng, losses) if this.role == "random"]
    groups = [archs[i : i + 3] for archs in asked for i in range(0, len(archs), 3)]
    assert len(asked) == 50 and len(groups) == len(picked)  # the losses of a step are asked for at once
    for group, arch in zip(groups, picked, strict=True):
        assert len(set(macs_of(group) // WIDTH)) == 1
        assert arch == (min if choose == "best" else max)(group, key=lambda one: int(one.id, 16) % 1009)
    assert any(len(set(group)) > 1 for group in groups)


def test_candidates_are_as_random_as_without_buckets() -> None:
    """All three candidates of a bucket have the distribution of uniform sampling: by the mean of their MACs."""
    drawn: list[Arch] = []

    def losses(archs: Sequence[Arch]) -> list[float]:
        drawn.extend(archs)
        return [0.0] * len(archs)

    option = {"bucket": {"macs": WIDTH}, "candidates": 3, "choose": "best"}
    step, rng = plan({"name": "sandwich", "random": 200, "attentive": option}).build_sampler(), np.random.default_rng(0)
    step(SPACE, rng, losses)
    found = macs_of(drawn).reshape(200, 3)
    expected = macs_of(SPACE.decode(SPACE.sample_codes(np.random.default_rng(1), 20_000)))
    for column in found.T:
        assert column.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / 200**0.5)
        assert column.std() == pytest.approx(expected.std(), rel=0.2)


def test_every_bucket_is_as_likely_where_odds_are_equal() -> None:
    """On a large space, too, whose outer buckets hold one arch in a million."""
    step = plan({"name": "sandwich", "random": 200, "attentive": {"bucket": {"macs": WIDTH}, "odds": "equal"}})
    passes = step.build_sampler()(SPACE, np.random.default_rng(0), no_losses)
    buckets = macs_of([this.archs[0] for this in passes if this.role == "random"]) // WIDTH
    there = set(macs_of(list(SPACE.enumerate())) // WIDTH)
    counts = np.unique(buckets, return_counts=True)[1]
    assert set(buckets) == there and len(there) >= 5
    assert (np.abs(counts - 200 / len(there)) < 4 * (200 / len(there)) ** 0.5).all()
    large = load_space("autoformer/small")
    option = {"name": "sandwich", "random": 4, "attentive": {"bucket": {"macs": 5e8}, "odds": "equal"}}
    passes = plan(option).build_sampler()(large, np.random.default_rng(0), no_losses)
    spread = macs_of([this.archs[0] for this in passes if this.role == "random"])
    uniform = macs_of(large.decode(large.sample_codes(np.random.default_rng(0), 100)))
    assert spread.max() > uniform.max()


def test_it_trains_and_counts_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raynas.phases.inputs._PATIENCE_S", 0)
    option = {"bucket": {"macs": WIDTH}, "candidates": 4, "choose": "worst"}
    attentive, plainly = plan({"name": "single_path", "attentive": option}), plan("single_path")
    history = train_loop(SPACE, few(), attentive, recipe(epochs=1, warmup_epochs=0)).history
    assert np.isfinite(history[0]["loss"])
    ratio = estimate(SPACE, few(), attentive, recipe()).macs / estimate(SPACE, few(), plainly, recipe()).macs
    assert ratio == pytest.approx(1 + 4 / 3, rel=0.15)  # a candidate has no backward pass


def test_images_left_out_of_whole_batches_are_told_if_they_are_many() -> None:
    plainly = plan("single_path")
    assert "leaves out" not in str(estimate(SPACE, few(96), plainly, recipe()))
    assert "each epoch leaves out 24, others each time" in str(estimate(SPACE, few(120), plainly, recipe()))


def test_equal_options_are_recorded_alike() -> None:
    texts = [f"sampler: {{name: sandwich, attentive: {{bucket: {{macs: {w}}}, odds: equal}}}}" for w in ("1e3", "1000")]
    first, second = (validate(Plan, parse_yaml(text, "p.yaml")) for text in texts)
    assert plain(first) == plain(second)
    assert Plan.model_validate(plain(first)) == first  # as workers read it


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("{candidates: 3}", "candidates (more than one) and choose (best or worst) go together"),
        ("{choose: best}", "candidates (more than one) and choose"),
        ("{odds: equal}", "odds: equal is of buckets: give bucket, such as {macs: 25.0e+6}"),
        ("{bucket: {macs: 1000}}", "nothing is chosen so"),
        ("{bucket: {mac: 1000}, odds: equal}", "no cost 'mac' (did you mean 'macs'?)"),
        ("{bucket: {macs: 0}, odds: equal}", "give one cost with the width of its buckets"),
        ("{bucket: {macs: true}, odds: equal}", "true and false are not numbers"),
        ("{candidate: 3}", "unknown key 'candidate' (did you mean 'candidates'?)"),
        ("3", "expected a mapping, found int 3"),
        ("{candidates: 3, choose: best}, within: {macs: [1, 2]}", "leave out align, within and dealt"),
    ],
)
def test_wrong_options_are_told_when_the_preset_is_read(option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Plan, parse_yaml(f"sampler: {{name: sandwich, attentive: {option}}}", "p.yaml"))
    assert message in str(caught.value) and str(caught.value).startswith("p.yaml:1: sampler: ")
    assert "\n" not in str(caught.value)

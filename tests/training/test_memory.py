"""The memory of a training said before, against what torch's allocator counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from raynas.nets import build_supernet
from raynas.space import load_space
from raynas.training.memory import forward_bytes, training_memory
from raynas.training.recipe import Recipe


def peak_bytes(work: Callable[[], None]) -> int:
    """Return the most memory that some work holds beside what was there before, as torch's allocator counts it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    results = profiled.profiler.kineto_results  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("amp", ["none", "bf16"])
@pytest.mark.parametrize("name", ["digits/vit", "digits/nasvit", "digits/s3"])
def test_activations_are_what_is_allocated(name: str, amp: Literal["none", "bf16"]) -> None:
    recipe = Recipe(epochs=1, batch_size=64, lr=1e-3, amp=amp)
    space = load_space(name)
    model, batch = build_supernet(space).train(), torch.randn(64, space.channels, *space.input_size)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=amp == "bf16"):
            loss = model(batch, space.largest()).float().sum()
        loss.backward()

    said = training_memory(space, recipe)
    assert said.activations + said.gradients == pytest.approx(peak_bytes(work), rel=0.1)


@pytest.mark.parametrize("name", ["digits/vit", "digits/vit_resnas", "digits/s3"])
def test_a_pass_holds_what_is_allocated(name: str) -> None:
    space = load_space(name)
    model = build_supernet(space).eval()

    @torch.inference_mode()
    def work() -> None:
        model(torch.randn(256, space.channels, *space.input_size), space.largest())

    assert forward_bytes(space, 256) == pytest.approx(peak_bytes(work), rel=0.1)


def test_parts_follow_the_recipe() -> None:
    space = load_space("digits/vit")
    plain = training_memory(space, Recipe(epochs=1, batch_size=64, lr=1e-3))
    weights = sum(p.numel() for p in build_supernet(space).parameters()) * 4
    assert plain.gradients == weights and plain.optimizer == 2 * weights  # AdamW's two moments
    changed = {"opt": "sgd", "momentum": 0.9, "ema": 0.99, "accumulate": 2}
    other = training_memory(space, Recipe(epochs=1, batch_size=64, lr=1e-3, **changed), workers=2, sets=3)
    assert other.gradients == 3 * weights and other.optimizer == weights
    assert other.parameters == 2 * plain.parameters
    assert 0.2 < other.activations / plain.activations < 0.3  # a quarter of the images at a time

"""The window benchmark measures windows that hold what it says; what it measures is the machine's matter."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from raynas.bench.window import bench_window
from raynas.commands.main import main
from raynas.costs import cost
from raynas.space import load_space


def test_windows_hold_what_is_said() -> None:
    lines: list[str] = []
    wide, single = bench_window("autoformer/tiny", shares=(0.1, 1e-6), draws=200, progress=lines.append)
    assert len(lines) == 2 and lines[0].startswith("macs in [")
    space = load_space("autoformer/tiny")
    macs = cost(space, space.sample_codes(np.random.default_rng(3), 20_000))["macs"]
    for timing in (wide, single):
        inside = ((macs >= timing.low) & (macs <= timing.high)).mean()
        assert timing.held == pytest.approx(inside, abs=5 * math.sqrt(inside / 20_000))
        assert timing.accepted == 1 and timing.setup > 0
    assert wide.held > 3 * single.held and single.rejection > wide.rejection > 0


@pytest.mark.parametrize("share", ["nan", "inf", "0", "-0.1", "2"])
def test_a_share_is_one_of_the_archs(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "window", "digits/vitas_v1", "--shares", "0.1", share]) == 2
    assert re.search("--shares: must be a (number above 0|share, above 0 and at most 1)", capsys.readouterr().err)

"""The sign of life: printed in silence, not beside other output."""

from __future__ import annotations

import sys
import time

import pytest

from raynas.progress.heartbeat import heartbeat


def test_silence_is_filled(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("counting sheep", silence_s=0.05):
        deadline = time.monotonic() + 60
        out = ""
        while out.count("... counting sheep") < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            out += capsys.readouterr().out
    assert out.count("... counting sheep") >= 2


def test_output_is_passed_on_and_holds_the_line_back(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("waiting", silence_s=60):
        print("words")
        print("more", file=sys.stderr)
    assert capsys.readouterr() == ("words\n", "more\n")
    assert not hasattr(sys.stdout, "_heartbeat")


def test_a_block_inside_shares_the_heartbeat(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("outer", silence_s=60) as outer, heartbeat("inner") as inner:
        assert inner is outer and outer.doing == "inner"


def test_nothing_under_way_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat(silence_s=0.02):
        time.sleep(0.2)
    assert capsys.readouterr().out == ""

"""The reporter: lines, states in silence, polling, and a bar in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from raynas.progress.reporter import Reporter, reporter, silent, terminal

SHOWN = """
import time
from raynas.progress.reporter import terminal
progress = terminal()
with progress.doing("counting sheep", 4, "sheep") as work:
    for n in range(4):
        work.advance(detail=f"sheep {n}")
        time.sleep(0.6)
        if n == 1:
            progress("two [bold]sheep[/bold]")
    if INTERRUPTED:
        raise KeyboardInterrupt
print("end")
"""


def test_a_plain_function_gets_whole_lines() -> None:
    lines: list[str] = []
    progress = reporter(lines.append)
    assert reporter(progress) is progress
    with progress.doing("counting"):
        progress("one")
        with progress.indented():
            progress("two\nthree")
    assert lines == ["one", "  two\n  three"]
    assert not any(thread.name == "raynas-progress" for thread in threading.enumerate())


def test_an_update_tells_how_far_the_innermost_work_is() -> None:
    lines: list[str] = []
    progress = Reporter(lines.append, every_s=0.0)
    with progress.doing("training", 1000, "steps") as work:
        work.update(10, "loss 1.500")
        with progress.doing("scoring") as inner:
            inner.advance(2)
        work.update(detail="loss 1.250")
    assert lines == [
        "training: 10/1,000 steps, loss 1.500, 0 s so far",
        "scoring: 2, 0 s so far",
        "training: 10/1,000 steps, loss 1.250, 0 s so far",
    ]


def test_lines_hold_the_state_back() -> None:
    lines: list[str] = []
    progress = Reporter(lines.append, every_s=60.0)
    with progress.doing("counting", 3) as work:
        for _ in range(3):
            work.advance()
    assert lines == []


def test_the_state_is_told_while_the_work_is_silent() -> None:
    """The block ends only once two lines came without its help."""
    two = threading.Event()
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            two.set()

    progress = Reporter(write, every_s=-0.7)
    with progress.doing("counting sheep"):
        assert two.wait(timeout=60)
    assert re.fullmatch(r"\.\.\. counting sheep, \d+ s", lines[0])


def test_a_state_that_stays_the_same_is_told_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[tuple[float, str]] = []
    progress = Reporter(lambda line: told.append((now, line)))
    monkeypatch.setattr(progress, "_begin", lambda: None)  # no thread: the updates alone tell
    with progress.doing("trials", 3) as work:
        for now in map(float, range(1, 301)):
            work.update(done=int(now > 200))
    assert [at for at, _ in told] == [4, 12, 28, 60, 120, 180, 201, 209, 225, 257]
    assert told[0][1] == "trials: 0/3, 4 s so far" and told[6][1].startswith("trials: 1/3, ")


def test_the_time_left_goes_by_the_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by what was answered at once, nor by what an earlier process did."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Reporter(silent).doing("searching", 100) as work:
        work.advance(60)
        now += 2
        assert work.left_s is None
        work.advance(1)
        assert work.left_s == pytest.approx(2 * 39)
        work.update(70, total=110)
        assert work.left_s is None
        now += 3
        work.advance(1)
        assert work.left_s == pytest.approx(3 * 39)
        assert str(work) == "searching: 71/110, 2 min left"
        work.update(50)
        assert work.left_s is None


def test_the_time_left_of_long_steps_that_are_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Reporter(silent).doing("trials", 3) as work:
        for now in map(float, range(0, 1801, 2)):
            work.update(done=int(now >= 540))
            if now == 540:
                assert work.left_s == 2 * 540
        assert work.left_s is None  # overdue
        work.update(done=2)
        assert work.left_s == 900


def test_polling_goes_on_in_silence_and_its_error_is_told() -> None:
    called = threading.Event()
    with reporter(silent).polling(called.set):
        assert called.wait(timeout=60)

    def fails() -> None:
        called.set()
        raise RuntimeError("no answer")

    called.clear()
    with pytest.raises(RuntimeError, match="no answer"), reporter(silent).polling(fails):
        assert called.wait(timeout=60)
    assert not any(thread.name == "raynas-progress" for thread in threading.enumerate())


def test_without_a_terminal_a_command_writes_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = terminal()
    with progress.doing("counting"):
        progress("words [bold]")
    assert capsys.readouterr().out == "words [bold]\n"


@pytest.mark.parametrize("interrupted", [False, True])
def test_in_a_terminal_the_state_is_a_bar_that_is_gone_in_the_end(interrupted: bool) -> None:
    ours, theirs = pty.openpty()
    code = f"INTERRUPTED = {interrupted}\n{SHOWN}"
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.DEVNULL, env=env):
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*m", "", shown.decode())
    assert re.search(r"counting sheep [━╸╺]+ +2/4 sheep, \d s (left|so far), sheep 1", text)
    assert "\x1b[2Ktwo [bold]sheep[/bold]\r\n" in text  # the line takes the place of the bar, which follows it
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is there again
    after = text.rpartition("\x1b[?25h")[2]
    assert after.strip() == ("\x1b[1A\x1b[2K" if interrupted else "\x1b[1A\x1b[2Kend")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""

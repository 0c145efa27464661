"""Tests of one GPU, and the table that they end with; RAYNAS_TEST_DEVICE=cpu runs what does not need one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

DEVICE = os.environ.get("RAYNAS_TEST_DEVICE", "cuda")
ROWS = pytest.StashKey[list[tuple[str, str]]]()
Tell = Callable[[str, object], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them where there is no GPU."""
    missing = DEVICE != "cpu" and not torch.cuda.is_available()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if missing:
                item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


@pytest.fixture
def device() -> str:
    """The device to test, with fp32 in full precision."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return DEVICE


@pytest.fixture
def cuda(device: str) -> str:
    """The device of a test that needs CUDA itself."""
    if device == "cpu":
        pytest.skip("needs CUDA itself")
    return device


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Add a row to the table at the end."""
    rows = request.config.stash.setdefault(ROWS, [])
    return lambda what, value: rows.append((what, str(value)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the table."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    name = torch.cuda.get_device_name() if DEVICE != "cpu" else "CPU"
    rows = [("device", name), ("torch", f"{torch.__version__}, CUDA {torch.version.cuda}"), *rows]
    width = max(len(what) for what, _ in rows)
    terminalreporter.section("measured on the device")
    for what, value in rows:
        terminalreporter.write_line(f"| {what:{width}} | {value} |")

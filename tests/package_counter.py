"""The energy counter of a CPU package, as a file, in place of this machine's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raynas.energy import counters


def package_counter(folder: Path, monkeypatch: pytest.MonkeyPatch, at: int, wraps_at: int) -> Path:
    """The file of a counter that stands at so many joules and wraps; no other counter is looked at."""
    zone = folder / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, value in {
        "name": "package-0",
        "energy_uj": f"{at}000000",
        "max_energy_range_uj": f"{wraps_at}000000",
    }.items():
        (zone / name).write_text(f"{value}\n")
    monkeypatch.setattr(counters, "POWERCAP", zone.parent)
    monkeypatch.setattr(counters, "GPUS", folder / "gpus")
    return zone / "energy_uj"


@contextmanager
def ten_watts(folder: Path) -> Iterator[None]:
    """Within, that much goes through a counter."""
    stopped = threading.Event()

    def consume(counter: Path) -> None:
        began, new = time.monotonic(), counter.with_name("new")
        while not stopped.wait(0.02):
            new.write_text(f"{(time.monotonic() - began) * 10e6:.0f}\n")
            new.replace(counter)

    with pytest.MonkeyPatch.context() as monkeypatch:
        counter = package_counter(folder, monkeypatch, at=0, wraps_at=262_143)
        consumer = threading.Thread(target=consume, args=[counter], daemon=True)
        consumer.start()
        yield
        stopped.set()
        consumer.join()

"""Counters read from files laid out as Linux has them, and through NVIDIA's library with and without a driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from raynas.energy.counters import BOOT_ID, Counter, Reading, read_counters

NOWHERE = Path("/nonexistent")
ROOT = Path(__file__).parents[2]


def zone(powercap: Path, folder: str, name: str, energy: int | str, most: int = 262_143_328_850) -> Path:
    """A zone as the kernel shows it, in microjoules."""
    path = powercap / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy}\n")
    (path / "max_energy_range_uj").write_text(f"{most}\n")
    return path


def by_zone(reading: Reading) -> dict[str, Counter]:
    return {key.rpartition("/")[2]: counter for key, counter in reading.counters.items()}


def test_packages_and_memory_are_read_and_nothing_twice(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 4_000_000)  # a part of the package
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_500_000, most=65_532_610_987)
    zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 99_000_000)  # the whole board, packages included
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)  # the first one by another way
    reading = read_counters(tmp_path, NOWHERE)
    assert by_zone(reading) == {
        "intel-rapl:0": Counter("CPU package", 5.0, 262_143.328850),
        "intel-rapl:0:1": Counter("DRAM domain", 1.5, 65_532.610987),
        "intel-rapl:1": Counter("CPU package", 7.0, 262_143.328850),
    }
    assert reading.unread == () and reading.machine == BOOT_ID.read_text().strip()


def test_a_broken_counter_leaves_the_others(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", "nonsense")
    (zone(tmp_path, "intel-rapl:2", "package-2", 1) / "energy_uj").unlink()
    reading = read_counters(tmp_path, NOWHERE)
    assert list(by_zone(reading)) == ["intel-rapl:0"]
    assert len(reading.unread) == 2 and "nonsense" in "".join(reading.unread)


def test_counters_that_only_root_may_read() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        os.chmod(folder, 0o755)
        (zone(Path(folder), "intel-rapl:0", "package-0", 1) / "energy_uj").chmod(0)
        code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from raynas.energy.counters import read_counters
if os.getuid() == 0:
    os.setuid(65534)
print(read_counters(Path({folder!r}), Path("/nonexistent")))
"""
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "counters={}" in shown and "may not be read by this user" in shown


def test_a_machine_without_counters(tmp_path: Path) -> None:
    reading = read_counters(tmp_path / "powercap", NOWHERE)
    assert reading.unread[0].startswith("CPU: no counters in ") and not by_zone(reading)
    assert reading.devices[reading.machine]  # the CPU's name


# -- GPUs ----------------------------------------------------------------------------------------------------------

DRIVER = r"""
#include <stdint.h>
#include <string.h>
/* The functions of libnvidia-ml that are called, for two GPUs; the second is too old to count. */
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(uintptr_t)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strcpy(uuid, (uintptr_t)device == 1 ? "GPU-first" : "GPU-second");
    return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strcpy(name, "Test GPU"); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 5000000123456ull;
    return (uintptr_t)device == 1 ? 0 : 3; /* NVML_ERROR_NOT_SUPPORTED */
}
"""


def read_elsewhere(gpus: Path, library: Path | None = None, before: str = "") -> dict[str, Any]:
    """What another process reads, which finds the driver's library in a folder."""
    code = f"""
import json, sys
{before}
sys.path.insert(0, {str(ROOT)!r})
from dataclasses import asdict
from pathlib import Path
from raynas.energy.counters import read_counters
print(json.dumps(asdict(read_counters(Path("/nonexistent"), Path({str(gpus)!r})))))
"""
    env = {**os.environ, **({} if library is None else {"LD_LIBRARY_PATH": str(library)})}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def two_gpus(tmp_path: Path) -> Path:
    """What the driver shows of two GPUs to those who do not ask its library."""
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n")
    return tmp_path / "gpus"


def test_gpus_without_the_python_package(two_gpus: Path) -> None:
    found = read_elsewhere(two_gpus, before="sys.modules['pynvml'] = None  # cannot be imported")
    assert found["counters"] == {}
    assert "GPUs: pip install 'raynas[energy]' to read their counters" in found["unread"]
    assert list(found["devices"].values()).count("NVIDIA H100 80GB HBM3") == 2


def test_gpus_whose_library_does_not_come_up(two_gpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # found first, also where there is a driver
    found = read_elsewhere(two_gpus, tmp_path)
    assert found["counters"] == {} and "GPUs: NVML Shared Library Not Found" in found["unread"]


def test_without_a_gpu_nothing_is_said_of_gpus(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert "GPU" not in json.dumps(read_elsewhere(NOWHERE, tmp_path))


def test_gpus_through_the_library(tmp_path: Path) -> None:
    """Through NVIDIA's own Python package, to a library of its interface: calls, types and units."""
    pytest.importorskip("pynvml")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(command, check=True)
    found = read_elsewhere(NOWHERE, tmp_path)
    assert found["counters"] == {"GPU-first": {"kind": "GPU", "joules": 5_000_000_123.456, "wraps_at": None}}
    assert found["devices"]["GPU-first"] == found["devices"]["GPU-second"] == "Test GPU"
    assert "GPUs: Not Supported" in found["unread"]


def test_this_machines_gpus_count_on(tmp_path: Path) -> None:
    from raynas.energy.counters import GPUS

    first, second = (read_counters(tmp_path, GPUS).counters for _ in range(2))
    if not first:
        pytest.skip("needs a GPU that counts")
    assert all(second[key].joules >= first[key].joules > 0 for key in first)

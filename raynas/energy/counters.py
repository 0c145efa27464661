"""Energy counters of this machine: Linux's of CPU packages and memory (RAPL), NVIDIA's of GPUs (NVML).

A counter covers its whole device, whoever uses it. Nothing here raises: a counter that cannot be read gives a reason as
text.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
GPUS = Path("/proc/driver/nvidia/gpus")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Other zones would count twice: `core` and `uncore` are parts of a package, `psys` includes the packages.
_KINDS = {"package": "CPU package", "dram": "DRAM domain"}


@dataclass(frozen=True)
class Counter:
    """A counter's state at one moment.

    Attributes:
        kind: `GPU`, `CPU package` or `DRAM domain`.
        joules: energy since an unknown moment in the past.
        wraps_at: the joules at which it restarts at 0; None if it never does.
    """

    kind: str
    joules: float
    wraps_at: float | None = None


@dataclass(frozen=True)
class Reading:
    """A machine's counters at one moment.

    Attributes:
        machine: identifier of the machine and its boot; the same for all containers of one machine.
        devices: names of GPUs and CPU, by keys unique among machines.
        counters: counters, by keys unique among machines.
        unread: reasons why other counters cannot be read.
    """

    machine: str
    devices: dict[str, str]
    counters: dict[str, Counter]
    unread: tuple[str, ...]


def read_counters(powercap: Path, gpus: Path) -> Reading:
    """Read every counter of this machine.

    Args:
        powercap: the folder of Linux's power capping framework, `POWERCAP`.
        gpus: the folder in which NVIDIA's driver lists its GPUs, `GPUS`.
    """
    machine = _text(BOOT_ID) or platform.node()
    devices, counters, unread = {}, {}, set()
    for key, name, found in _gpu_counters(machine, gpus):
        if name is not None:
            devices[key] = name
        if isinstance(found, Counter):
            counters[key] = found
        else:
            unread.add(f"GPUs: {found}")
    devices[machine] = _cpu_name()
    zones = dict(_cpu_counters(machine, powercap))
    counters |= {key: found for key, found in zones.items() if isinstance(found, Counter)}
    unread |= {f"CPU: {found}" for found in zones.values() if isinstance(found, str)}
    if not zones:
        unread.add(f"CPU: no counters in {powercap}")
    return Reading(machine, devices, counters, tuple(sorted(unread)))


def _cpu_counters(machine: str, powercap: Path) -> Iterator[tuple[str, Counter | str]]:
    for zone in sorted(powercap.glob("intel-rapl:*")):  # AMD's have this name too
        kind = _KINDS.get(_text(zone / "name").partition("-")[0])
        if kind is None:
            continue
        try:
            joules, wraps_at = (int((zone / file).read_text()) / 1e6 for file in ("energy_uj", "max_energy_range_uj"))
            yield f"{machine}/{zone.name}", Counter(kind, joules, wraps_at)
        except PermissionError:
            yield zone.name, f"{powercap}/*/energy_uj may not be read by this user"
        except (OSError, ValueError) as error:
            yield zone.name, str(error)


def _gpu_counters(machine: str, gpus: Path) -> Iterator[tuple[str, str | None, Counter | str]]:
    """Yield each GPU's key, name if known, and counter or the reason why there is none."""
    try:
        nvml = _nvml()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except Exception as error:  # NVMLError exists only if the library is installed
        missing = isinstance(error, ImportError)
        why = "pip install 'raynas[energy]' to read their counters" if missing else str(error)
        for gpu in sorted(gpus.glob("*")):  # none without the driver
            model = (line for line in _text(gpu / "information").splitlines() if line.startswith("Model:"))
            yield f"{machine}/{gpu.name}", next(model, "GPU").removeprefix("Model:").strip(), why
        return
    for index, handle in enumerate(handles):
        key, name = f"{machine}/{index}", None
        try:
            key, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            yield key, name, Counter("GPU", nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)  # it counts mJ
        except nvml.NVMLError as error:  # older than Volta, split, or lost
            yield key, name, str(error)


@cache
def _nvml() -> Any:
    """Return NVML, initialised once per process: without a persistent driver this wakes the GPUs up, which is slow."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def _cpu_name() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _text(path: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""

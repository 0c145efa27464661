"""Summation of counter readings to joules."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from raynas.energy.counters import Counter, Reading


class Meter:
    """Sum of the energy counted between rounds of readings.

    A counter that restarts at 0 must be read at least once in each of its cycles.
    """

    def __init__(self) -> None:
        self._machines: dict[str, Reading] = {}
        self._devices: dict[str, str] = {}
        self._last: dict[str, Counter] = {}
        self._joules: dict[str, float] = {}
        self._unread: dict[str, set[str]] = {}  # machines by reason
        self._rounds: list[set[str]] = []  # counters in the first round and in the newest

    def add(self, readings: Sequence[Reading]) -> None:
        """Add a round of readings; rounds must be in the order of time.

        Of a counter that several nodes of one machine read, the first reading counts: the others of the round may be a
        moment older, which would look like a restart at 0.
        """
        found: dict[str, Counter] = {}
        for reading in readings:
            self._machines[reading.machine] = reading
            self._devices |= reading.devices
            for why in reading.unread:
                self._unread.setdefault(why, set()).add(reading.machine)
            found = {**reading.counters, **found}
        for key, counter in found.items():
            if key in self._last:
                self._joules[key] = self._joules.get(key, 0.0) + _between(self._last[key], counter)
        self._last |= found
        self._rounds = [*self._rounds[:1], set(found)]

    def totals(self) -> dict[str, Any]:
        """Return the energy columns of table `phases`."""
        partly = self._last.keys() - set.intersection(*self._rounds) if self._rounds else self._last.keys()
        unread = [
            why + (f" (on {len(machines)} of {len(self._machines)} machines)" if len(self._machines) > 1 else "")
            for why, machines in self._unread.items()
        ]
        if partly:
            unread.append(f"a part of the time of {_count(self._last[key].kind for key in partly)}")
        return {
            "joules": sum(self._joules.values()) if self._joules else None,
            "measured": _count(self._last[key].kind for key in self._joules) or None,
            "unmeasured": "; ".join(unread) or None,
            "machines": len(self._machines) or None,
            "device": _names(self._devices.values()) or None,
        }


def _between(before: Counter, after: Counter) -> float:
    """Return the joules between two readings; 0 if the counter was reset, since the energy is then unknown."""
    joules = after.joules - before.joules
    return joules if joules >= 0 else max(0.0, joules + (after.wraps_at or 0.0))


def _count(kinds: Iterable[str]) -> str:
    counts = sorted(collections.Counter(kinds).items(), reverse=True)
    return ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in counts)


def _names(names: Iterable[str]) -> str:
    counts = sorted(collections.Counter(names).items())
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts)

"""Stopwatches that time subnets in this process, or in a Ray actor with the device's resources."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raynas.cluster.connection import ray_cluster
from raynas.errors import UserError, reason
from raynas.latency.rows import TimedArch
from raynas.latency.timing import Conditions, TimedOn, time_arch, timed_on
from raynas.space import Arch

log = logging.getLogger(__name__)

START_S = 300.0  # until an actor is placed and has imported torch
TELL_S = 30.0  # of waiting for it before a message
LIMIT_S = 600.0  # for one subnet; then the actor counts as hung


class Stopwatch:
    """Timing of subnets one after the other, so that none disturbs another: in an actor, or directly without Ray.

    Attributes:
        on: the device and conditions that the timings are valid for.

    Raises:
        UserError: this process has no such device.
    """

    def __init__(self, conditions: Conditions):
        self._conditions = conditions
        self.on = timed_on(conditions)

    def ready(self) -> TimedOn:
        """Return `on`, for callers of an actor."""
        return self.on

    def time(self, arch: Arch) -> TimedArch:
        """Time a subnet; an error is recorded, so that the other archs are still timed."""
        host = platform.node()
        try:
            return TimedArch(arch, time_arch(arch, self._conditions), None, host)
        except Exception as error:
            return TimedArch(arch, None, reason(error), host)


class RemoteStopwatch:
    """A stopwatch in an actor, which is restarted if it is lost.

    Args:
        resources: by Ray's names: `CPU` (by default the number of threads), `GPU`, and any custom ones of the cluster.
        start_s: seconds to wait for an actor.

    Raises:
        UserError: no node has the resources in time, or its process has no such device.
    """

    def __init__(self, conditions: Conditions, resources: Mapping[str, float], start_s: float = START_S):
        self._conditions = conditions
        self._needs = {"CPU": conditions.threads, **resources}
        self._start_s = start_s
        self.on = self._start()

    def _start(self) -> TimedOn:
        import ray

        own = {name: amount for name, amount in self._needs.items() if name not in ("CPU", "GPU")}
        options = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs.get("GPU", 0), "resources": own}
        actor: Any = ray.remote(Stopwatch).options(**options, max_restarts=0).remote(self._conditions)
        self._actor = actor
        ref = self._actor.ready.remote()
        if not ray.wait([ref], timeout=min(TELL_S, self._start_s))[0]:
            log.warning("waiting for a node that can time: %s", self._room())
        try:
            return ray.get(ref, timeout=self._start_s)
        except ray.exceptions.GetTimeoutError:
            self.end()
            raise UserError(f"nothing could be timed within {self._start_s:.0f} s: {self._room()}") from None
        except ray.exceptions.RayActorError as error:  # its last line is the error of the constructor
            why = str(error).strip().splitlines()[-1].removeprefix("raynas.errors.UserError: ")
            raise UserError(f"nothing can be timed: {why}") from None

    def time(self, arch: Arch) -> TimedArch:
        """Time a subnet; it has failed if it crashes its process or does not end within `LIMIT_S`.

        Raises:
            UserError: the process had to be restarted, and started on another device.
        """
        import ray

        try:
            return ray.get(self._actor.time.remote(arch), timeout=LIMIT_S)
        except ray.exceptions.GetTimeoutError:
            why = f"no answer within {LIMIT_S:.0f} s"
        except ray.exceptions.RayActorError:
            why = "its process ended: it crashed, or was killed by the system for want of memory"
        self.end()
        on = self._start()
        if on != self.on:
            raise UserError(f"timing began on {self.on} and came up again on {on}: name resources that only one has")
        return TimedArch(arch, None, why, "")

    def _room(self) -> str:
        import ray

        total = ray.cluster_resources()
        have = ", ".join(f"{total.get(name, 0):g} {name}" for name in self._needs)
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self._needs.items())
        return f"it needs {needs} on one node, and the cluster has {have} in all (some may be in use)"

    def end(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor, no_restart=True)


@contextmanager
def stopwatch(conditions: Conditions, resources: Mapping[str, float] | None) -> Iterator[Stopwatch | RemoteStopwatch]:
    """Open a stopwatch for a `with` block: in an actor if resources are given, else in this process.

    Raises:
        UserError: there is no such device, or no such resources.
    """
    if resources is None:
        yield Stopwatch(conditions)
        return
    with ray_cluster(cpus=conditions.threads):
        watch = RemoteStopwatch(conditions, resources)
        try:
            yield watch
        finally:
            watch.end()

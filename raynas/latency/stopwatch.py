"""Who times: this process, or a Ray actor with the resources that the device needs."""

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

START_S = 300.0  # for an actor to be placed and to import torch
TELL_S = 30.0  # of waiting for it in silence
LIMIT_S = 600.0  # for one subnet: an actor that says nothing for so long is taken as hung


class Stopwatch:
    """Times one subnet after the other, so that none disturbs another; the actor's class, and plain without Ray.

    Args:
        conditions: how subnets are timed.

    Attributes:
        on: what the timings hold for.

    Raises:
        UserError: this process has no such device.
    """

    def __init__(self, conditions: Conditions):
        self._conditions = conditions
        self.on = timed_on(conditions)

    def ready(self) -> TimedOn:
        """The same as `on`, for an actor's callers."""
        return self.on

    def time(self, arch: Arch) -> TimedArch:
        """Time a subnet; whatever an arch does to a network, the others are timed all the same."""
        host = platform.node()
        try:
            return TimedArch(arch, time_arch(arch, self._conditions), None, host)
        except Exception as error:
            return TimedArch(arch, None, reason(error), host)


class RemoteStopwatch:
    """A stopwatch in an actor, started again where it is lost.

    Args:
        conditions: how subnets are timed.
        resources: by Ray's names: `CPU` (as many as threads if not given), `GPU`, and any of the cluster's own.
        start_s: how long to wait for an actor.

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
        except ray.exceptions.RayActorError as error:  # what its constructor raised is the last line
            why = str(error).strip().splitlines()[-1].removeprefix("raynas.errors.UserError: ")
            raise UserError(f"nothing can be timed: {why}") from None

    def time(self, arch: Arch) -> TimedArch:
        """Time a subnet; one that takes its process down, or never ends, has failed.

        Raises:
            UserError: the process had to be started again, and came up on another device.
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
    """A stopwatch for the time of a block: in this process, or with resources given in an actor.

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

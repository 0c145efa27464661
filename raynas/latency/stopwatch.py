"""Stopwatches that time subnets in this process, or in a Ray actor with the device's resources."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raynas.cluster.connection import is_local, on_cluster, ray_cluster
from raynas.cluster.growth import WAIT_S, check_this_machine, describe_shortage
from raynas.cluster.losses import NODE_LOST, why_lost
from raynas.errors import ClusterError, UserError, reason
from raynas.latency.rows import TimedArch
from raynas.latency.timing import AGAIN, Conditions, TimedOn, time_arch, timed_on
from raynas.progress.reporter import Progress, reporter, silent
from raynas.space import Arch
from raynas.text import duration

log = logging.getLogger(__name__)

START_S = 300.0  # on this machine, until an actor has imported torch
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks
LIMIT_S = 600.0  # for one subnet beside its passes; then the actor counts as hung
LOST = 3  # nodes that may be lost at one subnet


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
        start_s: seconds to wait for an actor; by default 5 minutes on this machine, and 30 on a cluster, which may
            grow.
        progress: shows what is waited for.

    Raises:
        UserError: no node has the resources in time, or its process has no such device.
    """

    def __init__(
        self,
        conditions: Conditions,
        resources: Mapping[str, float],
        start_s: float | None = None,
        progress: Progress = silent,
    ):
        self._conditions = conditions
        self._needs = {"CPU": conditions.threads, **resources}
        self._start_s = start_s or (START_S if is_local() else WAIT_S)
        self._limit_s = LIMIT_S + (1 + AGAIN) * conditions.seconds
        self._progress = progress
        check_this_machine(self._needs, "timing needs", "name others (search.latency.resources)")
        self.on = self._start()

    def _start(self) -> TimedOn:
        import ray

        own = {name: amount for name, amount in self._needs.items() if name not in ("CPU", "GPU")}
        options = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs.get("GPU", 0), "resources": own}
        # On any node, even if this process is in a placement group, as a trial of Ray Tune is.
        anywhere = {"max_restarts": 0, "scheduling_strategy": "DEFAULT"}
        for _ in range(LOST):
            actor: Any = ray.remote(Stopwatch).options(**options, **anywhere).remote(self._conditions)
            self._actor = actor
            try:
                return self._wait_for(actor.ready.remote())
            except ray.exceptions.RayActorError as error:  # its last line is the error of the constructor
                why = why_lost(str(error))
                last = str(error).strip().splitlines()[-1].removeprefix("raynas.errors.UserError: ")
                if why != NODE_LOST:
                    raise UserError(f"nothing can be timed: {why or last}") from None
                log.warning("the node that was to time was lost; another is waited for")
        raise ClusterError(f"{LOST} nodes were lost while timing was to begin")

    def _wait_for(self, ready: Any) -> TimedOn:
        """Wait for the answer of an actor that starts, and show what the cluster lacks."""
        import ray

        began, limit = time.monotonic(), duration(self._start_s)
        with reporter(self._progress).doing("starting a process that times") as activity:
            while not ray.wait([ready], timeout=min(LOOK_S, self._start_s))[0]:
                lack = describe_shortage(self._needs)
                activity.update(detail="" if lack is None else f"waits for {lack}; for {limit} at most")
                if time.monotonic() - began > self._start_s:
                    self.end()
                    needs = ", ".join(f"{amount:g} {name}" for name, amount in self._needs.items())
                    raise UserError(
                        f"nothing could be timed within {limit}: it needs {needs} on one node; "
                        f"{lack or 'no node has all of it free'}"
                    )
        return ray.get(ready)

    def time(self, arch: Arch) -> TimedArch:
        """Time a subnet; it has failed if it crashes its process or does not end in time.

        A subnet whose node is lost is timed again, until `LOST` nodes were lost at it.

        Raises:
            UserError: the process had to be restarted, and started on another device.
        """
        import ray

        for _ in range(LOST):
            try:
                return ray.get(self._actor.time.remote(arch), timeout=self._limit_s)
            except ray.exceptions.GetTimeoutError:
                why = f"no answer within {self._limit_s:.0f} s"
            except ray.exceptions.RayActorError as error:
                why = why_lost(str(error)) or "its process has ended"
            self.end()
            on = self._start()
            if on != self.on:
                raise UserError(
                    f"timing began on {self.on} and came up again on {on}: name resources that only one has"
                )
            if why != NODE_LOST:
                return TimedArch(arch, None, why, "")
            log.warning("%s: the node that timed it was lost; it is timed again", arch.id)
        return TimedArch(arch, None, f"{LOST} nodes were lost at it", "")

    def end(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor, no_restart=True)


@contextmanager
def stopwatch(
    conditions: Conditions, resources: Mapping[str, float] | None, progress: Progress = silent
) -> Iterator[Stopwatch | RemoteStopwatch]:
    """Open a stopwatch for a `with` block: in an actor if resources are given, else in this process.

    Raises:
        UserError: there is no such device, or no such resources.
    """
    if resources is None:
        if on_cluster():
            progress(
                f"timing on this machine ({platform.node()}), not on a node of the cluster: for one, say which "
                "resources it has (search.latency.resources)"
            )
        yield Stopwatch(conditions)
        return
    with ray_cluster(cpus=conditions.threads):
        watch = RemoteStopwatch(conditions, resources, progress=progress)
        try:
            yield watch
        finally:
            watch.end()

"""Supervision of a pool's replicas, which are Ray actors: starting, feeding, watching, replacing and ending them.

A lost replica costs only the archs that were sent to it. Its first task is blamed, not the one queued behind it. If the
whole node was lost it is so only after several losses.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError

from raynas.cluster.growth import coming_nodes
from raynas.cluster.losses import NODE_LOST, why_lost
from raynas.errors import UserError, reason
from raynas.scoring.replica import WeightsChanged
from raynas.scoring.score_arch import Job, Key
from raynas.scoring.score_table import ScoredArch, macs_and_params
from raynas.space import Space

log = logging.getLogger(__name__)

TRIES = 3  # replicas that an arch may break before it counts as failed,
NODES = 5  # or nodes that may be lost at it: clouds take several away at once
FIRST_S = 1800.0  # for the first task of a kind
IN_FLIGHT = 2  # tasks at each replica: one at work, one waiting
TASK_S = 0.5  # approximate length of a task,
DRIVER_S = 0.001  # or longer with many replicas, since sending and receiving a task takes the driver so long,
TASK_ARCHS = 64  # but of at most so many archs
GATHER_S = 1e-4  # for each replica, to take results together: the second task is at work meanwhile
GET_S = 60.0  # to fetch a finished result
TELL_S = 30.0  # between two messages about waiting for replicas,
SELDOM_S = 300.0  # or this while others score


Kind: TypeAlias = tuple[bool, str | None]
"""Jobs that take equally long for equal work: blocks or whole scores, or those by one proxy."""


@dataclass(eq=False)
class _Task:
    jobs: list[Job]
    ref: Any


@dataclass(eq=False)
class _Member:
    """A replica that is running or starting."""

    slot: int
    name: str
    actor: Any
    ready_ref: Any
    started: float
    node: str | None = None  # known once it is ready
    pid: int = 0
    device: str = ""
    tasks: deque[_Task] = field(default_factory=deque)
    since: float = 0.0  # when the first task became the first


class Supervisor:
    """Replicas and the tasks in flight.

    Args:
        start: starts an actor of a name.
        time_limit_s: longest time of a task; None for 60 s and 20 times the slowest arch so far.
        start_limit_s: longest time without any ready replica.
        needs: the resources of one replica, in words.
        first_limit_s: longest time of a task while it is not known how long an arch takes.

    Attributes:
        ended: True when the jobs given to `feed` have come to their end.
    """

    def __init__(
        self,
        size: int,
        start: Callable[[str], Any],
        space: Space,
        time_limit_s: float | None,
        start_limit_s: float,
        needs: str,
        first_limit_s: float = FIRST_S,
    ):
        self._start_actor = start
        self._space = space
        self._time_limit_s = time_limit_s
        self._start_limit_s = start_limit_s
        self._needs = needs
        self._first_limit_s = first_limit_s
        self._queue: deque[list[Job]] = deque()  # tasks to be sent
        self._waiting: deque[tuple[int, Job]] = deque()  # jobs to make tasks of, with their work
        self._work = 0  # of all of these
        self.ended = False  # no more jobs come
        self._lost: dict[str, int] = {}  # replicas lost by arch id
        self._nodes: dict[str, int] = {}  # nodes lost by arch id
        self._pace: dict[Kind, float] = {}  # seconds for a unit of work lately
        self._slowest: dict[Kind, float] = {}  # seconds of an arch, of blocks for each image
        self._failed_starts = 0
        self._outcomes: list[ScoredArch] = []
        self._none_ready_since = time.monotonic()
        self._tell_at = self._none_ready_since + TELL_S  # unless all are ready by then
        self._members = [self._member(slot) for slot in range(size)]

    # -- starting ------------------------------------------------------------------------------------------------------

    def _member(self, slot: int) -> _Member:
        name = f"raynas-replica-{slot}"
        try:
            actor = self._start_actor(name)
        except ValueError:  # the name is taken: by its predecessor, not yet gone, or by another pool
            name = f"{name}-{uuid.uuid4().hex[:6]}"
            actor = self._start_actor(name)
        return _Member(slot, name, actor, actor.ready.remote(), time.monotonic())

    @property
    def ready(self) -> list[_Member]:
        """The replicas that have started."""
        return [member for member in self._members if member.node is not None]

    # -- work ----------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if nothing is queued or in flight and every outcome has been taken."""
        if self._queue or self._waiting or self._outcomes:
            return False
        return not any(member.tasks for member in self._members)

    def in_flight(self) -> set[Key]:
        """Return the keys of the jobs that are queued or sent to a replica."""
        chunks = [*self._queue, *(task.jobs for member in self._members for task in member.tasks)]
        return {job.key for chunk in chunks for job in chunk} | {job.key for _, job in self._waiting}

    def forget_queue(self) -> None:
        """Drop the jobs that have not been sent to a replica."""
        self._queue.clear()
        self._waiting.clear()
        self._work, self.ended = 0, False

    def feed(self, jobs: Iterator[Job | None]) -> None:
        """Fill every ready replica's queue, and keep as much ready; jobs are taken only as there is room.

        None: there are no more jobs now.
        """
        self._pull(jobs)
        for round_ in range(IN_FLIGHT):  # every replica gets one before any gets a second
            for member in self.ready:
                if round_ and self.ended and len(self._waiting) < len(self.ready):
                    return  # the last ones go to whoever is free first
                if self._queue and len(member.tasks) <= round_ and not self._wants_to_be_alone(member):
                    self._send(member, self._queue.popleft())
                    self._pull(jobs)

    def _wants_to_be_alone(self, member: _Member) -> bool:
        """Return True if the next task must wait for an empty replica: an arch that has broken one is sent alone.

        A replica may die of its second task before the driver has seen the first one's result, and the first is blamed.
        So a harmless arch may be blamed once, but sent alone never again.
        """
        chunks = [task.jobs for task in member.tasks]
        suspects = self._lost.keys() | {arch for arch, count in self._nodes.items() if count > 1}
        return bool(chunks) and any(job.arch.id in suspects for chunk in (*chunks, self._queue[0]) for job in chunk)

    def _pull(self, jobs: Iterator[Job | None]) -> None:
        """Make the next task. The last ones are shorter, with the costly jobs first, so that replicas end together."""
        if self._queue:
            return
        places = IN_FLIGHT * max(1, len(self.ready))
        while not self.ended and (len(self._waiting) < places or self._work < places * self._lengths()[1]):
            taken = list(islice(jobs, places))
            found = [job for job in taken if job is not None]
            self._waiting.extend(zip(_work(found), found, strict=True))
            self._work = sum(work for work, _ in self._waiting)
            if len(taken) < places:
                self.ended = True
                self._waiting = deque(sorted(self._waiting, key=lambda each: -each[0]))
            elif len(found) < len(taken):
                break
        chunk: list[Job] = []
        least, most = self._lengths()
        room = min(most, max(self._work / places, min(least, self._work * IN_FLIGHT / places)))
        while self._waiting and len(chunk) < TASK_ARCHS and (not chunk or self._waiting[0][0] <= room):
            work, job = self._waiting.popleft()
            chunk.append(job)
            room -= work
            self._work -= work
        if chunk:
            self._queue.append(chunk)

    def _lengths(self) -> tuple[float, float]:
        """Return the work of the shortest and the longest tasks; 0 while it is not known how long jobs take."""
        shortest = len(self._members) * DRIVER_S  # with shorter ones the driver could not keep all replicas busy
        longest = max(TASK_S, 4 * shortest)
        if self._time_limit_s is not None:
            longest = min(longest, self._time_limit_s / 10)
        pace = self._pace.get(_kind(self._waiting[0][1])) if self._waiting else None
        return (0.0, 0.0) if pace is None else (shortest / pace, longest / pace)

    def _send(self, member: _Member, chunk: list[Job]) -> None:
        own = self._space.fingerprint  # archs of another space are sent whole
        sent = [
            (dict(job.arch) if job.arch.space.fingerprint == own else job.arch, job.block, job.averages, job.proxy)
            for job in chunk
        ]
        if not member.tasks:
            member.since = time.monotonic()
        member.tasks.append(_Task(chunk, member.actor.score.remote(sent)))

    def poll(self, timeout_s: float) -> list[ScoredArch]:
        """Wait for results at most `timeout_s` seconds, and return the finished archs.

        Raises:
            UserError: no replica could be started in time, or none can start at all.
            WeightsChanged: a replica wrote to shared memory.
        """
        refs = {member.ready_ref: member for member in self._members if member.node is None}
        refs |= {member.tasks[0].ref: member for member in self._members if member.tasks}  # which ends first
        if refs:
            done, _ = ray.wait(list(refs), num_returns=1, timeout=timeout_s)
            if done:  # all others that have finished soon after
                done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=GATHER_S * len(self._members))
            for ref in done:
                member = refs[ref]
                if member in self._members:  # not replaced in this loop
                    self._take(member, ref)
        self._watch()
        taken, self._outcomes = self._outcomes, []
        return taken

    def _take(self, member: _Member, ref: Any) -> None:
        starting = ref == member.ready_ref
        try:
            value = ray.get(ref, timeout=GET_S)
        except RayActorError as error:
            self._replace(member, _why_it_died(error), starting)
            return
        except RayTaskError as error:
            if isinstance(error.cause, WeightsChanged):
                raise error.cause from None
            raise
        except (RayError, GetTimeoutError) as error:
            self._replace(member, NODE_LOST if isinstance(error, ObjectLostError) else reason(error), starting)
            return
        if starting:
            member.node, member.pid, member.device = value
            self._failed_starts = 0
            return
        task = member.tasks.popleft()
        member.since = time.monotonic()
        seconds, done = 0.0, 0
        for job, work, (score, why) in zip(task.jobs, _work(task.jobs), value, strict=True):
            self._outcomes.append(ScoredArch(job, score, why, member.device, member.name))
            if score is not None:
                each, kind = score.seconds + (score.calibration_seconds or 0.0), _kind(job)
                seconds, done = seconds + each, done + work
                self._slowest[kind] = max(self._slowest.get(kind, 0.0), each / _images(job))
        if seconds and done:
            kind, pace = _kind(task.jobs[0]), seconds / done
            self._pace[kind] = 0.8 * self._pace.get(kind, pace) + 0.2 * pace

    # -- trouble -------------------------------------------------------------------------------------------------------

    def limit_s(self, jobs: Sequence[Job]) -> float:
        """Return the current time limit of a task."""
        if self._time_limit_s is not None:
            return self._time_limit_s
        if (slowest := self._slowest.get(_kind(jobs[0]))) is None:
            return self._first_limit_s
        return 60.0 + 20.0 * slowest * max(map(_images, jobs))

    def _watch(self) -> None:
        now = time.monotonic()
        for member in list(self._members):
            if member.tasks and now - member.since > (limit := self.limit_s(member.tasks[0].jobs)):
                self._replace(member, f"no answer within {limit:.0f} s (time_limit_s)", False)
        ready = len(self.ready)
        if ready:
            self._none_ready_since = now
        elif now - self._none_ready_since > self._start_limit_s:
            raise UserError(f"no replica could start within {self._start_limit_s:.0f} s: {self._room()}")
        if ready == len(self._members):
            self._tell_at = now + TELL_S
        elif now > self._tell_at:
            self._tell_at = now + (SELDOM_S if ready else TELL_S)
            waiting = f"{len(self._members) - ready} of {len(self._members)} replicas" if ready else "replicas"
            log.warning(f"waiting for {waiting} to start: {self._room()}")

    def _room(self) -> str:
        free, total = ray.available_resources(), ray.cluster_resources()
        have = ", ".join(f"{free.get(k, 0):g} of {total.get(k, 0):g} {k}s free" for k in ("CPU", "GPU"))
        text = f"each needs {self._needs}, the cluster has {have}"
        return "; ".join([text, *coming_nodes()]) + ". Ask for fewer or smaller replicas, or free some"

    def _replace(self, member: _Member, why: str, starting: bool) -> None:
        """End a replica, put its archs back, and start another in its place."""
        ray.kill(member.actor, no_restart=True)
        self._failed_starts += starting and why != NODE_LOST
        if self._failed_starts >= TRIES:
            if not self.ready:
                raise UserError(f"replicas cannot start: {why}")
            log.warning("%s cannot start (%s); going on with %d", member.name, why, len(self.ready))
            self._members.remove(member)
            return
        log.warning("%s was lost (%s); another takes its place", member.name, why)
        chunks = [task.jobs for task in member.tasks]
        if chunks:
            chunks[:1] = self._blame(chunks[0], member, why)
        self._queue.extendleft(reversed(chunks))
        self._members[self._members.index(member)] = self._member(member.slot)

    def _blame(self, jobs: list[Job], member: _Member, why: str) -> list[list[Job]]:
        """Return the tasks in place of one that broke a replica: each arch alone, to find the one to blame.

        A lost node is mostly no fault of an arch, so that a second one has to be lost before archs are suspected.
        """
        lost, most, what = (self._nodes, NODES, "nodes") if why == NODE_LOST else (self._lost, TRIES, "replicas")
        if why == NODE_LOST or len(jobs) == 1:
            for job in jobs:
                lost[job.arch.id] = lost.get(job.arch.id, 0) + 1
        if why == NODE_LOST and lost[jobs[0].arch.id] == 1:
            return [jobs]
        if len(jobs) > 1:
            return [[job] for job in jobs]
        if lost[jobs[0].arch.id] < most:
            return [jobs]
        text = f"{most} {what} were lost at it" + ("" if why == NODE_LOST else f", the last: {why}")
        self._outcomes.append(ScoredArch(jobs[0], None, text, member.device, member.name))
        return []

    # -- the end -------------------------------------------------------------------------------------------------------

    def verify(self, timeout_s: float) -> list[str]:
        """Return the names of shared arrays that have changed, according to one replica on each node."""
        one_each = {member.node: member for member in self.ready if not member.tasks}
        names: list[str] = []
        for member in one_each.values():
            try:
                names += ray.get(member.actor.verify.remote(), timeout=timeout_s)
            except RayError as error:
                log.warning("%s could not check its weights at the end: %s", member.name, reason(error))
        return names

    def ask_all(self, call: Callable[[Any], Any], timeout_s: float) -> Sequence[Any]:
        """Call a method of every replica at once: `ask_all(lambda actor: actor.verify.remote(), 60)`."""
        return ray.get([call(member.actor) for member in self.ready], timeout=timeout_s)

    def wait_for_all(self) -> None:
        """Wait until every replica is ready.

        Raises:
            UserError: they cannot be started.
        """
        deadline = time.monotonic() + self._start_limit_s
        while len(self.ready) < len(self._members):
            self.poll(1.0)
            if time.monotonic() > deadline:
                raise UserError(f"only {len(self.ready)} of {len(self._members)} replicas could start: {self._room()}")

    def end(self) -> None:
        """End every replica."""
        for member in self._members:
            ray.kill(member.actor, no_restart=True)
        self._members = []


def _work(jobs: Sequence[Job]) -> list[int]:
    """Return what jobs cost, to compare them with each other: MACs, of blocks times their images."""
    macs = [macs for macs, _ in macs_and_params([job.arch for job in jobs])]
    return [each * _images(job) for each, job in zip(macs, jobs, strict=True)]


def _images(job: Job) -> int:
    """Return the number of images of a block; 1 for all images, since all such jobs have equally many."""
    return 1 if job.block is None else job.block[1] - job.block[0]


def _kind(job: Job) -> Kind:
    return job.block is not None, job.proxy


def _why_it_died(error: RayActorError) -> str:
    """Return the most useful line of Ray's report: a constructor's exception, or how the process ended."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    if any("creation task" in line for line in lines):
        return lines[-1][:300]
    return why_lost(str(error)) or (lines[0][:300] if lines else type(error).__name__)

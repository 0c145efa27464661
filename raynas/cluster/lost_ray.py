"""Notice that Ray is lost while it is used, so that a command ends with one line instead of waiting for ever."""

from __future__ import annotations

import atexit
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from raynas.errors import ClusterError, first_line
from raynas.locations import hide_secrets

LOOK_S = 0.2  # between two checks of Ray
SILENCE_S = 45.0  # a part silent for so long is lost; after 60 s Ray would end this process without a message
AGAIN_S = 5.0  # between two interruptions of a block that does not end,
GIVE_UP_S = 10.0  # which is waited for so long: Ray would end this process without a message, 60 s after the loss
_ESSENTIAL = ("gcs_server", "raylet")  # processes of a local Ray that nothing restarts
_INTERRUPT = signal.SIGUSR1
_leaving: threading.Thread | None = None  # disconnects from a lost Ray


def wait_until_left() -> None:
    """Wait until an earlier Ray that was lost is left."""
    if _leaving is not None:
        _leaving.join()


def was_lost() -> bool:
    """Return True while a lost Ray is being left: its threads may crash this process at its end, or hold it up."""
    return _leaving is not None and _leaving.is_alive()


@contextmanager
def not_for_ever(ended: Callable[[], str | None]) -> Iterator[None]:
    """End this process with one line if Ray is lost while `ray.init` waits for it.

    Neither a signal nor an exception reaches the waiting thread, and Ray would end the process without a line.

    Args:
        ended: returns in a few words which part of Ray is lost for good; None while there is hope.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if (what := ended()) is not None and not over.is_set():
                _give_up(what)

    thread = threading.Thread(target=watch, name="raynas-ray-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _give_up(what: str) -> NoReturn:
    """End this process with one line, since nothing else reaches the thread that Ray holds."""
    print(f"raynas: Ray was lost: {what}. The same command goes on where it was", file=sys.stderr, flush=True)
    os._exit(1)


class EndedChild:
    """Check of the local Ray's processes while they start; of one that ends, Ray mostly tells by itself, but late."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._ended: tuple[str, float] | None = None

    def __call__(self) -> str | None:
        running = {pid: name for pid in children() if (name := _name_of(pid)) in _ESSENTIAL}
        if self._ended is None and (gone := self._seen.keys() - running):
            self._ended = self._seen[gone.pop()], time.monotonic()
        self._seen = running
        if self._ended is None or time.monotonic() - self._ended[1] < SILENCE_S:
            return None
        return _has_ended(self._ended[0])


def _name_of(pid: int) -> str | None:
    """Return the name of a running process; None of one that has ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return None
    return None if rest.split()[0] == "Z" else name


def _has_ended(kind: str) -> str:
    return f"its process {kind} has ended (it crashed, was killed, or the machine is short of memory)"


def unknown() -> None:
    """Check of a cluster whose head's address Ray finds by itself."""


@contextmanager
def watched(ended: Callable[[], str | None], lost: list[str]) -> Iterator[None]:
    """Interrupt the block once Ray is lost, because many of Ray's calls would wait for ever.

    If the block does not end for all that, this process ends with one line.

    Args:
        ended: returns in a few words which part of Ray has ended; None while all parts run.
        lost: receives these words.

    Raises:
        ClusterError: Ray was lost, or failed otherwise.
    """
    from ray.exceptions import RayError, RayTaskError

    over = threading.Event()
    main = threading.main_thread()
    interruptible = threading.current_thread() is main

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not over.is_set():
            raise KeyboardInterrupt  # Ray makes one of whatever interrupts its waiting

    def watch() -> None:
        since = math.inf
        while not over.wait(AGAIN_S if lost else LOOK_S):
            if time.monotonic() - since > GIVE_UP_S:
                _give_up(lost[0])
            if not lost and (what := ended()) is not None:
                lost.append(what)
                since = time.monotonic()
            if lost and interruptible and main.ident is not None:
                signal.pthread_kill(main.ident, _INTERRUPT)

    before = signal.signal(_INTERRUPT, interrupt) if interruptible else None
    thread = threading.Thread(target=watch, name="raynas-ray", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        over.set()
        if not lost and isinstance(error, Exception) and (what := ended()) is not None:
            lost.append(what)
        if lost:
            raise ClusterError(f"Ray was lost: {lost[0]}") from error
        if isinstance(error, RayError) and not isinstance(error, RayTaskError):
            raise ClusterError(f"Ray failed: {message_of(error)}") from error
        raise
    finally:
        over.set()
        thread.join()
        if interruptible:
            signal.signal(_INTERRUPT, before or signal.SIG_DFL)


def leave() -> None:
    """Disconnect from a lost Ray in the background, because Ray keeps trying to reach it for half a minute."""
    global _leaving
    import ray

    atexit.unregister(ray.shutdown)  # a command would wait for it at its end
    _leaving = threading.Thread(target=ray.shutdown, name="raynas-leaving", daemon=True)
    _leaving.start()


def ended_here() -> str | None:
    """Return which essential process of the local Ray has ended; None while both run. Nothing restarts them."""
    from ray._private import worker

    node = worker._global_node
    ended = [] if node is None else [kind for kind, _ in node.dead_processes() if kind in _ESSENTIAL]
    if node is None or not ended:
        return None
    # End the others at once: they would report the loss at length, and wait.
    node.kill_all_processes(check_alive=False, allow_graceful=False)
    return _has_ended(ended[0])


def silent_part() -> Callable[[], str | None]:
    """Return a check of the parts of a cluster that this process needs: the head, and the raylet of its own node."""
    import ray

    context = ray.get_runtime_context()
    parts = [Silence(context.gcs_address)]
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            parts.append(Silence(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", "the raylet of this node"))
    return lambda: next((what for part in parts if (what := part()) is not None), None)


class Silence:
    """Check of a part of a cluster, which counts as lost only after a long silence because it may be restarted."""

    def __init__(self, address: str, what: str = "its head"):
        host, _, port = address.rpartition(":")
        self._what = what
        self._place = (host.strip("[]"), int(port))
        self._address = hide_secrets(address)
        self._heard = self._looked = time.monotonic()

    def __call__(self) -> str | None:
        now = time.monotonic()
        if now - self._looked < 2.0:
            return None
        self._looked = now
        try:
            socket.create_connection(self._place, timeout=5).close()
            self._heard = time.monotonic()
        except OSError as error:
            if now - self._heard > SILENCE_S:
                return f"{self._what} at {self._address} has not answered for {SILENCE_S:.0f} s ({message_of(error)})"
        return None


def children() -> set[int]:
    """Return the ids of the processes that this one has started."""
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def message_of(error: BaseException) -> str:
    """Return the first line of an exception that may hold a credential of an address, without it."""
    return hide_secrets(first_line(error)).rstrip(".")

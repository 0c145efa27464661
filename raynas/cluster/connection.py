"""Connect to Ray: to the cluster that the user names, or to a quiet local one that lives as long as a command.

A local Ray listens on the loopback interface only. If Ray is lost while it is used, the command ends with one line
instead of waiting.
"""

from __future__ import annotations

import atexit
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from raynas.errors import ClusterError, UserError, first_line
from raynas.locations import hide_secrets
from raynas.progress.reporter import Progress, reporter, silent

log = logging.getLogger(__name__)

_QUIET = {
    # A Ray that ends with the command has no collector of metrics and no spot nodes.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # With the mode unset, Ray would turn token authentication on and leave a token file in the user's home, which
    # changes how later clusters start.
    "RAY_AUTH_MODE": "disabled",
}
"""Settings of a local Ray, unless the user's environment has others."""

_LOOPBACK = {
    # Makes every server of Ray bind to the loopback address. Ray has the switch for macOS and Windows, where open ports
    # make the firewall ask; it works on Linux as well.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise training workers listen on the address of the host's name, or on every interface.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Lets Ray's agent notice a lost raylet two seconds later, after us: otherwise it prints 20 lines about it.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "0",
}
LOCAL = (None, "", "local")  # values of RAY_ADDRESS for which a local Ray is started
LOOK_S = 0.2  # between two checks of Ray
SILENCE_S = 45.0  # a part silent for so long is lost; after 60 s Ray would end this process without a message
AGAIN_S = 5.0  # between two interruptions of a block that does not end,
GIVE_UP_S = 10.0  # which is waited for so long: Ray would end this process without a message, 60 s after the loss
_ESSENTIAL = ("gcs_server", "raylet")  # processes of a local Ray that nothing restarts
_INTERRUPT = signal.SIGUSR1
_leaving: threading.Thread | None = None  # disconnects from a lost Ray


@contextmanager
def ray_cluster(cpus: int = 1, progress: Progress = silent, dashboard: bool = False) -> Iterator[None]:
    """Connect to Ray for the time of the block.

    A Ray that this process already uses, or the cluster named by `RAY_ADDRESS`, is used as it is. Otherwise a local one
    is started for the time of the block, with a CPU count of at least `cpus`, so that a small machine can hold every
    worker and replica that was asked for. It listens on the loopback interface only.

    Args:
        cpus: the least number of CPUs of a local Ray.
        progress: shows that Ray starts.
        dashboard: give a local Ray a dashboard, which is a second's work.

    Raises:
        ClusterError: the local Ray does not start, or Ray is lost during the block.
        UserError: there is no cluster at `RAY_ADDRESS`, or it refuses.
    """
    import ray

    if _leaving is not None:
        _leaving.join()
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    told_to_end = signal.getsignal(signal.SIGTERM)
    local = address in LOCAL
    with environment(_local_settings() if local else {}):
        with reporter(progress).doing("starting Ray" if local else "connecting to Ray"):
            if local:
                _start(max(cpus, os.cpu_count() or 1), dashboard)
            else:
                # Without it the dashboard's Train page fails.
                os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
                _connect(str(address))
        # Ray installs a handler that ends the process silently: restore an earlier one if there was one.
        if callable(told_to_end) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, told_to_end)
        lost: list[str] = []
        try:
            with _watched(_ended_here if local else _silent_part(), lost):
                yield
        finally:
            if lost:
                _leave()
            else:
                ray.shutdown()


def was_lost() -> bool:
    """Return True while a lost Ray is being left: its threads may crash this process at its end, or hold it up."""
    return _leaving is not None and _leaving.is_alive()


def on_cluster() -> bool:
    """Return True if Ray is a cluster, not this machine's own: one is connected, or `RAY_ADDRESS` names one.

    In a Ray job, and on the head of the shipped cluster, `RAY_ADDRESS` is set.
    """
    if "ray" in sys.modules:  # importing it takes more than a second
        import ray

        if ray.is_initialized():
            return not is_local()
    return os.environ.get("RAY_ADDRESS") not in LOCAL


def is_local() -> bool:
    """Return True if this process started the connected Ray itself, so that no node will ever be added to it."""
    from ray._private import worker

    return worker._global_node is not None and worker._global_node.is_head()


def on_loopback() -> bool:
    """Return True if only this machine can reach the connected Ray."""
    import ray

    try:
        return ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback
    except ValueError:  # the name of a host
        return False


# -- starting ----------------------------------------------------------------------------------------------------------


def _local_settings() -> dict[str, str]:
    return {**unless_set(_QUIET), **_LOOPBACK}


def unless_set(values: Mapping[str, str]) -> dict[str, str]:
    """Return values for environment variables, with the user's own where there are any."""
    return {name: os.environ.get(name, value) for name, value in values.items()}


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the time of the block, also for the processes that it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(cpus: int, dashboard: bool) -> None:
    """Start a local Ray. Try twice: on a busy machine its parts may time out while they wait for each other."""
    try:
        _start_once(cpus, dashboard)
    except ClusterError as error:
        log.warning("%s; trying once more", error)
        _start_once(cpus, dashboard)


def _start_once(cpus: int, dashboard: bool) -> None:
    import ray
    from ray._private import ray_constants

    others = _children()
    # Read from the environment when ray was imported, which may have been before this.
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        # "local": another Ray that happens to run on this machine is not ours to use.
        with _not_for_ever(_EndedChild()):
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            # None: if Ray has what a dashboard needs.
            ray.init(address="local", num_cpus=cpus, include_dashboard=None if dashboard else False, **quiet)
    except Exception as error:  # Ray raises this very class when it waited in vain, and others
        ray.shutdown()
        for pid in _children() - others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise ClusterError(f"Ray did not start on this machine ({_said(error)})") from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
    if not on_loopback():
        ray.shutdown()
        raise UserError(
            f"Ray {ray.__version__} would listen to the whole network: install ray 2.60, or start a Ray of your own "
            "and set RAY_ADDRESS"
        )


def _connect(address: str) -> None:
    import ray

    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit() and "://" not in host:  # Ray asks for a minute and a half
            socket.create_connection((host.strip("[]"), int(port)), timeout=30).close()
            ended: Callable[[], str | None] = _Silence(address)
        else:
            ended = _unknown
        with _not_for_ever(ended):
            ray.init(address=address)
    except Exception as error:  # of many classes, by what is wrong with the address or the cluster
        ray.shutdown()
        raise UserError(
            f"no Ray cluster can be used at RAY_ADDRESS={hide_secrets(address)} ({_said(error)}): start it, or "
            "unset RAY_ADDRESS to use a local Ray"
        ) from None  # which may hold a credential of the address


def _children() -> set[int]:
    """Return the ids of the processes that this one has started."""
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def _said(error: BaseException) -> str:
    """Return the first line of an exception that may hold a credential of an address, without it."""
    return hide_secrets(first_line(error)).rstrip(".")


# -- losing it ---------------------------------------------------------------------------------------------------------


@contextmanager
def _not_for_ever(ended: Callable[[], str | None]) -> Iterator[None]:
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


class _EndedChild:
    """Check of the local Ray's processes while they start; of one that ends, Ray mostly tells by itself, but late."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}
        self._ended: tuple[str, float] | None = None

    def __call__(self) -> str | None:
        running = {pid: name for pid in _children() if (name := _name_of(pid)) in _ESSENTIAL}
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


def _unknown() -> None:
    """Check of a cluster whose head's address Ray finds by itself."""


@contextmanager
def _watched(ended: Callable[[], str | None], lost: list[str]) -> Iterator[None]:
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
            raise ClusterError(f"Ray failed: {_said(error)}") from error
        raise
    finally:
        over.set()
        thread.join()
        if interruptible:
            signal.signal(_INTERRUPT, before or signal.SIG_DFL)


def _leave() -> None:
    """Disconnect from a lost Ray in the background, because Ray keeps trying to reach it for half a minute."""
    global _leaving
    import ray

    atexit.unregister(ray.shutdown)  # a command would wait for it at its end
    _leaving = threading.Thread(target=ray.shutdown, name="raynas-leaving", daemon=True)
    _leaving.start()


def _ended_here() -> str | None:
    """Return which essential process of the local Ray has ended; None while both run. Nothing restarts them."""
    from ray._private import worker

    node = worker._global_node
    ended = [] if node is None else [kind for kind, _ in node.dead_processes() if kind in _ESSENTIAL]
    if node is None or not ended:
        return None
    # End the others at once: they would report the loss at length, and wait.
    node.kill_all_processes(check_alive=False, allow_graceful=False)
    return _has_ended(ended[0])


def _silent_part() -> Callable[[], str | None]:
    """Return a check of the parts of a cluster that this process needs: the head, and the raylet of its own node."""
    import ray

    context = ray.get_runtime_context()
    parts = [_Silence(context.gcs_address)]
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            parts.append(_Silence(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", "the raylet of this node"))
    return lambda: next((what for part in parts if (what := part()) is not None), None)


class _Silence:
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
                return f"{self._what} at {self._address} has not answered for {SILENCE_S:.0f} s ({_said(error)})"
        return None

"""Connect to Ray: to the cluster that the user names, or to a quiet local one that lives as long as a command.

A local Ray listens on the loopback interface only. If Ray is lost while it is used, the command ends with one line
instead of waiting.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from raynas.cluster import lost_ray
from raynas.errors import ClusterError, UserError
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


@contextmanager
def ray_cluster(cpus: int = 1, progress: Progress = silent, dashboard: bool = False) -> Iterator[None]:
    """Connect to Ray for the time of the block.

    A Ray that this process already uses, or the cluster named by `RAY_ADDRESS`, is used as it is. Otherwise a local one
    is started for the time of the block, with a CPU count of at least `cpus`, so that a small machine can hold every
    worker and replica that was asked for. It listens on the loopback interface only.

    Args:
        cpus: the least number of CPUs of a local Ray.
        dashboard: give a local Ray a dashboard, which is a second's work.

    Raises:
        ClusterError: the local Ray does not start, or Ray is lost during the block.
        UserError: there is no cluster at `RAY_ADDRESS`, or it refuses.
    """
    import ray

    lost_ray.wait_until_left()
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    told_to_end = signal.getsignal(signal.SIGTERM)
    local = address in LOCAL
    with environment({**unless_set(_QUIET), **_LOOPBACK} if local else {}):
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
            with lost_ray.watched(lost_ray.ended_here if local else lost_ray.silent_part(), lost):
                yield
        finally:
            if lost:
                lost_ray.leave()
            else:
                ray.shutdown()


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

    others = lost_ray.children()
    # Read from the environment when ray was imported, which may have been before this.
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        # "local": another Ray that happens to run on this machine is not ours to use.
        with lost_ray.not_for_ever(lost_ray.EndedChild()):
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            # None: if Ray has what a dashboard needs.
            ray.init(address="local", num_cpus=cpus, include_dashboard=None if dashboard else False, **quiet)
    except Exception as error:  # Ray raises this very class when it waited in vain, and others
        ray.shutdown()
        for pid in lost_ray.children() - others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise ClusterError(f"Ray did not start on this machine ({lost_ray.message_of(error)})") from error
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
            ended: Callable[[], str | None] = lost_ray.Silence(address)
        else:
            ended = lost_ray.unknown
        with lost_ray.not_for_ever(ended):
            ray.init(address=address)
    except Exception as error:  # of many classes, by what is wrong with the address or the cluster
        ray.shutdown()
        raise UserError(
            f"no Ray cluster can be used at RAY_ADDRESS={hide_secrets(address)} ({lost_ray.message_of(error)}): "
            "start it, or unset RAY_ADDRESS to use a local Ray"
        ) from None  # which may hold a credential of the address

"""Where Ray comes from: the cluster that the user points at, or a quiet local one for as long as a command runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


@contextmanager
def ray_cluster(cpus: int = 1) -> Iterator[None]:
    """Ray, connected for the time of the block.

    A Ray that this process already uses, or the cluster named by `RAY_ADDRESS`, is used as it is. Otherwise a local one
    is started for the time of the block, with a CPU count of at least `cpus`, so that a small machine can hold every
    worker and replica that was asked for.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    # Unset, Ray would turn token authentication on for a local cluster and leave a token file in the user's home, which
    # changes how later clusters start. A cluster that is already there keeps its own mode, and so does this process
    # once the block is over.
    ours = not address and "RAY_AUTH_MODE" not in os.environ
    if ours:
        os.environ["RAY_AUTH_MODE"] = "disabled"
    told_to_end = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            # "local": another Ray that happens to run on this machine is not ours to use. The dashboard stays on:
            # without it Ray Train's placement group cleaner logs an error every second.
            count = max(cpus, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=count, log_to_driver=False, logging_level=logging.ERROR)
        # Ray leaves a handler that ends the process without a word. One that was there before knows better; where
        # there was none, Ray's is kept.
        if callable(told_to_end) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, told_to_end)
        try:
            yield
        finally:
            ray.shutdown()
    finally:
        if ours:
            os.environ.pop("RAY_AUTH_MODE", None)

"""One Ray for all tests, kept small and quiet: of the processes that `make test` starts, one has those with Ray."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# One torch thread: networks of tests are tiny, and the threads of several processes would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
# Ray's processes run at niceness 15 by default: beside two more test processes on two cores they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")
# Of the S3 server below; workers of Ray inherit them.
os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = "key", "secret"

# Collecting the tests imports every module, and all of it stays: there is no garbage to look for.
gc.disable()


def pytest_collection_finish() -> None:
    """Search for garbage from now on, among what the tests make alone."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal whole files to the test processes in the order that they are collected in, all of Ray's to one."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ray" if _needs_ray(config.rootpath / file) else file

    config.option.loadscopereorder = False
    return OneRay(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest: the files that need Ray, which one process has, then those with slow tests."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not _needs_ray(item.path), item.path not in slow))


@cache
def _needs_ray(file: Path) -> bool:
    return "ray_session" in file.read_text()


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with four logical CPUs; tests kill the actors that they start."""
    import ray

    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    for attempt in range(3):
        try:
            ray.init(num_cpus=4, object_store_memory=150 * 2**20, **quiet)
            break
        except Exception:  # on a busy machine Ray's parts may time out while they wait for each other
            ray.shutdown()
            if attempt == 2:
                raise
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Callable[[str], str]]:
    """A real S3-protocol server on loopback; gives the URI of a path in its bucket: `s3_server("some/prefix")`."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    filesystem, _ = fs.FileSystem.from_uri(f"s3://raynas?{options}&allow_bucket_creation=true")
    filesystem.create_dir("raynas")
    yield lambda path: f"s3://raynas/{path}?{options}"
    server.stop()

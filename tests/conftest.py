"""One Ray for the whole test session, kept small and quiet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray with four logical CPUs; tests kill the actors that they start."""
    import ray

    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=150 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()

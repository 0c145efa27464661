"""A pipeline on an object store that is slow and fails for a while now and then: given again, the command goes on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer
from pyarrow import fs

import raynas
from raynas.errors import UserError
from raynas.presets.preset import override
from tests.commands.test_killed import results
from tests.small_run import PRESET

HERE = raynas.Resources(workers=0, replicas=0)
SHORT = override(PRESET, {"recipe.epochs": 2, "retrain.recipe": {"epochs": 2}})


class FailingStore:
    """An S3 server of which one request in three is slow, and which every now and then answers none for a while.

    In an outage a request is lost before or after it was carried out, so that a write that seems to have failed may
    have been done.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]], seed: int):
        self.application, self.random = application, random.Random(seed)
        self.lock, self.outages, self.until, self.left = threading.Lock(), 0, 0.0, 60

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self.lock:
            self.left -= 1
            if self.left <= 0 and self.outages < 12:
                self.outages, self.left = self.outages + 1, self.random.randint(30, 120)
                self.until = time.monotonic() + 4.0  # longer than the client tries again
            failing, after = time.monotonic() < self.until, self.random.random() < 0.5
            slow = self.random.random() < 0.3
        if slow:
            time.sleep(0.02)
        if failing and not after:
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if failing:
            list(self.application(environ, lambda *arguments: lambda data: None))
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        return self.application(environ, start_response)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FailingStore, str]]:
    """The server, and the URI of a run directory in it."""
    made: list[FailingStore] = []
    whole = threaded_moto_server.DomainDispatcherApplication

    def application(*arguments: Any) -> FailingStore:
        made.append(FailingStore(whole(*arguments), seed=0))
        return made[0]

    monkeypatch.setattr(threaded_moto_server, "DomainDispatcherApplication", application)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    filesystem, _ = fs.FileSystem.from_uri(f"s3://failing?{options}&allow_bucket_creation=true")
    filesystem.create_dir("failing")
    yield made[0], f"s3://failing/run?{options}"
    server.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_ends_as_on_a_disk(store: tuple[FailingStore, str], tmp_path: Path) -> None:
    failing, uri = store
    raynas.pipeline(SHORT, run_dir=tmp_path / "run", resources=HERE)
    told: list[str] = []
    for _ in range(60):
        try:
            raynas.pipeline(SHORT, run_dir=uri, resources=HERE)
            break
        except UserError as error:
            told.append(str(error))
            time.sleep(1)
    else:
        raise AssertionError(told)
    assert told and failing.outages >= 5, (told, failing.outages)
    assert all("\n" not in line for line in told), told
    run = raynas.open_run(uri)
    filesystem = run.filesystem
    for found in filesystem.get_file_info(fs.FileSelector(run.root, recursive=True)):
        if found.is_file:
            there = tmp_path / "copy" / Path(found.path).relative_to(run.root)
            there.parent.mkdir(parents=True, exist_ok=True)
            with filesystem.open_input_stream(found.path) as stream:
                there.write_bytes(stream.read())
    assert results(tmp_path / "copy") == results(tmp_path / "run")

"""`ray up` to `ray down` by docs/cluster.md: cluster.yaml's commands and mounts on two hosts, used from a third."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import SHARED, Host, hosts, missing
from tests.cluster.machines_of_ones_own import on_machines_of_ones_own

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class User:
    """A person at a machine of their own, in a checkout, with the token's mode set."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(self, command: str, timeout: float = 300) -> tuple[int, str]:
        prepare = f"cd ~/checkout; export PATH={sys.prefix}/bin:$PATH PYTHONPATH=$HOME/checkout RAY_AUTH_MODE=token"
        return self.host.run(f"{prepare} RAY_UP_enable_autoscaler_v2=0 RAY_USAGE_STATS_ENABLED=0; {command}", timeout)

    def done(self, command: str, timeout: float = 300) -> str:
        code, output = self.run(command, timeout)
        assert code == 0, output
        return output


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[User, Host, Host]]:
    """A user, and a head and a worker that `ray up` has started."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    for module in ("aiohttp", "boto3", "editables", "pynvml"):
        pytest.importorskip(module, reason="there is no network to install it from")
    folder = Path(tempfile.mkdtemp(prefix="up"))  # not pytest's: Ray's socket paths must stay below 108 bytes
    try:
        with hosts(folder, ["user", "head", "work"]) as (mine, head, worker):
            checkout = mine.home / "checkout"
            for name in (*CONFIG["file_mounts"].values(), "cluster.yaml"):
                if name.startswith("~"):
                    continue
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                copy_of = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy_of(ROOT / name, checkout / name)
            local = on_machines_of_ones_own(CONFIG, head.address, worker.address)
            (checkout / "own.yaml").write_text(yaml.safe_dump(local))
            user = User(mine)
            user.done("ray get-auth-token --generate > /dev/null && chmod 600 ~/.ray/auth_token")
            user.done("ray up -y own.yaml", timeout=400)
            _wait_for_two_nodes(user)
            with user.host.start(f"cd checkout; {sys.prefix}/bin/ray dashboard own.yaml") as tunnel:
                _wait_for_tunnel(mine)
                yield user, head, worker
                tunnel.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_two_nodes(user: User) -> None:
    until = time.monotonic() + 240
    while "2 local.cluster.node" not in (status := user.run("ray exec own.yaml 'ray status'")[1]):
        assert time.monotonic() < until, status
        time.sleep(3)


def _wait_for_tunnel(host: Host) -> None:
    until = time.monotonic() + 60
    while not _listens(host, "127.0.0.1:8265"):
        assert time.monotonic() < until
        time.sleep(0.5)


def _listens(host: Host, address: str) -> bool:
    command = ["nsenter", "--target", str(host.pid), "--net", "ss", "-Hltn"]
    return address in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_nodes_have_the_mounted_project_and_a_token_of_their_owner_alone(cluster: tuple[User, Host, Host]) -> None:
    _, head, worker = cluster
    for host in (head, worker):
        token = host.home / ".ray/auth_token"
        assert token.stat().st_mode & 0o777 == 0o600
        code, output = host.run("cd /; ~/venv/bin/python -c 'import raynas; print(raynas.__file__)'")
        assert code == 0 and f"{Path.home()}/raynas/raynas/__init__.py" in output


def test_only_who_has_the_token_submits_a_job(cluster: tuple[User, Host, Host]) -> None:
    user, head, _ = cluster
    assert "example:" in user.done("python jobs/submit.py -- train.py --help")
    for without in ("RAY_AUTH_MODE=disabled", "env -u RAY_AUTH_MODE", f"RAY_AUTH_TOKEN={'0' * 64}"):
        code, output = user.run(f"{without} python jobs/submit.py -- train.py --help")
        assert code == 2 and "wants its token" in output
    code, output = user.run(f"python jobs/submit.py --address http://{head.address}:8265 -- train.py --help")
    assert code == 2 and "no Ray dashboard answers" in output  # not without the tunnel


def test_a_script_over_ssh_computes_on_the_worker(cluster: tuple[User, Host, Host]) -> None:
    user, head, _ = cluster
    settings = "--workers 1 --set recipe.epochs=1"
    run = f"{SHARED}/runs/first"
    output = user.done(f"ray submit own.yaml jobs/train.py -- digits --run {run} {settings}", timeout=400)
    assert f"supernet written to {run}" in output
    assert (head.home.parents[1] / "shared/runs/first/supernet.safetensors").exists()


def test_down_ends_ray_on_the_head(cluster: tuple[User, Host, Host]) -> None:
    """The last test of this file: the cluster is gone after it."""
    user, head, _ = cluster
    user.done("ray down -y own.yaml")
    assert not _listens(head, ":6379") and not _listens(head, ":8265")

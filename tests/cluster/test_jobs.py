"""Job scripts against a real local head with token authentication, and what is checked before an upload."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from raynas.cluster.submission import check_working_dir, packed_files, submit
from raynas.documents import write_yaml
from raynas.errors import UserError
from raynas.outer.evolution.record import read_iterations
from raynas.presets.preset import override
from raynas.runs.run import Run
from tests.small_run import PRESET
from tests.training_of_small_run import trained_run

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "jobs").glob("*.py"))


@dataclass(frozen=True)
class Head:
    """A running head: its dashboard's address, its files, and the environment of a client that may use it."""

    address: str
    env: dict[str, str]
    home: Path
    temp: Path


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    pytest.importorskip("aiohttp", reason="the jobs API is in raynas[jobs]")
    temp = tempfile.mkdtemp(prefix="ray")  # not pytest's: Ray's socket paths must stay below 108 bytes
    home = tmp_path_factory.mktemp("home")
    (home / "token").write_text("0123456789abcdef0123456789abcdef")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {
        **inherited,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # a job's `python` is looked up in it
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--num-cpus=3", f"--temp-dir={temp}"]
    command += ["--object-store-memory=150000000", "--dashboard-host=127.0.0.1"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    try:
        started = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert started.returncode == 0, started.stdout + started.stderr
        yield Head(f"http://127.0.0.1:{ports['dashboard-port']}", env, home, Path(temp))
    finally:
        # By process, never by `ray stop`, which would end every other Ray of this machine too. What the head started,
        # jobs included, has the token's path in its environment, and nothing else has.
        ours = [each for each in psutil.process_iter(["environ"]) if str(home) in str(each.info["environ"])]
        for process in ours:
            process.kill()
        psutil.wait_procs(ours, timeout=10)
        shutil.rmtree(temp, ignore_errors=True)


def submitted(head: Head, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "jobs" / "submit.py", "--address", head.address, "--", *arguments]
    return subprocess.run([str(part) for part in command], env={**head.env, **env}, capture_output=True, text=True)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_an_evolution_of_spaces_runs_as_a_job(head: Head, tmp_path: Path) -> None:
    """All of Ray at once: a job, in it a trial of Ray Tune, and in that Ray Train and scoring actors.

    The second space's supernet, which begins with the first one's weights, is trained here.
    """
    evolution = {"iterations": 2, "archs": 12, "fewest": 2, "most_steps": 1, "warm_start": True}
    settings = override(PRESET, {"plan.sampler": {"name": "sandwich"}, "space_evolution": evolution})
    write_yaml(tmp_path / "preset.yaml", settings.model_dump(mode="json", exclude_unset=True))
    run = tmp_path / "run"
    Run(run, create=True)
    trained_run(run / "iterations/0")
    done = submitted(head, "evolve_space.py", tmp_path / "preset.yaml", "--run", run, "--replicas", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "space 0: digits/vit, " in done.stdout and "space 1: digits/vit.1, " in done.stdout
    assert "E-T error" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: ")  # the last line of a job is shown too
    first, second = read_iterations(Run(run))
    assert first.next == second.space and second.ended is not None
    last = Run(run / "iterations/1")
    assert last.space == second.space and last.exists("init.safetensors")
    assert "init" in last.read_yaml("train.yaml")["settings"]
    assert last.store.read("training").num_rows == 1 and last.exists("supernet.safetensors")
    assert {row["phase"] for row in last.store.read("phases").to_pylist()} == {"supernet", "search"}
    assert [path.name for path in head.home.iterdir()] == ["token"]  # no token file of Ray's beside it


@pytest.mark.slow
def test_a_failed_job_is_an_error_with_its_own_message(head: Head) -> None:
    done = submitted(head, "train.py", "digitz", "--run", "runs/lost")
    assert done.returncode == 2
    assert "no preset 'digitz'" in done.stdout
    assert "failed" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_run_that_would_be_deleted_with_its_job_is_refused(head: Head) -> None:
    """Below where Ray has unpacked the jobs before this one."""
    unpacked = next(head.temp.rglob("working_dir_files"))
    with pytest.raises(UserError, match="runs/lost lies in the working directory of a Ray job"):
        Run(unpacked / "_ray_pkg_0/runs/lost", create=True)


@pytest.mark.slow
def test_a_cluster_with_a_token_refuses_who_has_none(head: Head) -> None:
    done = submitted(head, "train.py", "--help", RAY_AUTH_MODE="disabled")
    assert done.returncode == 2
    assert "wants its token" in done.stderr


def test_no_cluster_is_told() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UserError, match=r"no Ray dashboard answers at .*`ray dashboard cluster\.yaml`"):
        submit(["python", "train.py"], ROOT / "jobs", f"http://127.0.0.1:{port}")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)  # as if it were not there
    with pytest.raises(UserError, match=r"aiohttp: pip install 'raynas\[jobs\]'"):
        submit(["python", "train.py"], ROOT / "jobs")


def test_the_size_is_that_of_the_package_that_ray_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the archive itself, as Ray's jobs client makes it for the cluster."""
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
    from ray.dashboard.modules.dashboard_sdk import create_package

    folder = tmp_path / "folder"
    names = ("a.py", "data/x.bin", "data/keep.txt", "sub/.venv/lib.so", "sub/b.py", "sub/deep/c.log", "runs/r")
    for number, name in enumerate((*names, ".git/objects/1", ".venv/bin/python", "venv/x", "sub/__pycache__/b.pyc")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(1000 + 2**number))
    (folder / ".gitignore").write_text("# comment\n\nruns\n*.bin\n!keep.bin\n")
    (folder / ".rayignore").write_text("large\n")
    (folder / "sub" / ".gitignore").write_text("*.log\n")
    (tmp_path / "outside").write_bytes(bytes(5000))
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "dangling").symlink_to(tmp_path / "nowhere")

    def packed(name: str, obeyed: bool) -> tuple[set[str], int]:
        archive = tmp_path / name

        def upload(path: str, excludes: list[str] | None, is_file: bool = False) -> None:
            create_package(path, archive, include_gitignore=obeyed, excludes=excludes)

        upload_working_dir_if_needed({"working_dir": str(folder)}, include_gitignore=obeyed, upload_fn=upload)
        members = zipfile.ZipFile(archive).infolist()
        return {each.filename for each in members}, sum(each.file_size for each in members)

    for name, obeyed in (("obeyed.zip", True), ("ignored.zip", False)):
        monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0" if obeyed else "1")
        expected, size = packed(name, obeyed)
        assert {path.relative_to(folder).as_posix() for path in packed_files(folder)} == expected
        assert check_working_dir(folder) == size
        assert ("data/x.bin" in expected) is not obeyed and "link" in expected and ".git/objects/1" not in expected


def test_what_git_and_a_virtual_environment_hold_is_not_counted(tmp_path: Path) -> None:
    for name in (".git/pack", ".venv/lib/torch.so", "train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(120 * 2**20 if "/" in name else 10)  # holes: nothing is written
    assert check_working_dir(tmp_path) == 10


def test_a_pipe_in_the_working_directory_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe is no regular file: list it in \.rayignore"):
        check_working_dir(tmp_path)
    (tmp_path / ".rayignore").write_text("pipe\n")
    assert check_working_dir(tmp_path) == len("pipe\n")


def test_a_large_working_directory_is_refused_with_its_largest_entries(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, size in {"images/0": 3, "images/1": 4, "weights": 2, "train.py": 1}.items():
        (tmp_path / name).write_bytes(bytes(size * 2**20))
    assert check_working_dir(tmp_path) == 10 * 2**20
    with pytest.raises(UserError, match=r"holds 10 MiB, more than 5 MiB; .* images \(7 MiB\), weights \(2 MiB\)"):
        check_working_dir(tmp_path, limit_mib=5)
    (tmp_path / ".rayignore").write_text("images\n")
    assert check_working_dir(tmp_path, limit_mib=5) < 4 * 2**20
    with pytest.raises(UserError, match="not a folder"):
        check_working_dir(tmp_path / "nowhere")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "jobs" / script), "--help"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout

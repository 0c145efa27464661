"""Submit a script to a running cluster through Ray's jobs API, after checks for the usual mistakes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raynas.errors import UserError, reason
from raynas.locations import hide_secrets, refuse_credentials
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ADDRESS = "http://127.0.0.1:8265"
"""Address of the dashboard: of `ray dashboard cluster.yaml`, and of a local head."""

LIMIT_MIB = 100
"""Largest working directory. It is for code; Ray itself gives up at 512 MiB, after it has packed everything."""


def submit(
    command: Sequence[str],
    working_dir: str | Path,
    address: str | None = None,
    wait: bool = True,
    progress: Progress = silent,
) -> str:
    """Run a command on a cluster, in a copy of a local folder.

    Args:
        command: what to run, such as `["python", "pipeline.py", "digits", "--run", "s3://bucket/run"]`; `python` is the
            one on the PATH that the cluster's `ray start` had.
        working_dir: a local folder with the script and code of your own; never data.
        address: the cluster's dashboard; None for `RAY_API_SERVER_ADDRESS`, else `http://127.0.0.1:8265`.
        wait: wait for the end, and show the job's output.
        progress: called with lines of text.

    Returns:
        The job's id; with `wait`, only once it has succeeded.

    Raises:
        UserError: Ray's jobs API is not installed, the folder is too large, the cluster does not answer or refuses, or
            the job failed.
    """
    if importlib.util.find_spec("aiohttp") is None:  # of our dependencies only the extra `jobs` brings it
        raise UserError("submitting jobs needs aiohttp: pip install 'raynas[jobs]'")
    for argument in (*command, address or ""):  # Ray's dashboard and logs show them
        refuse_credentials(argument)
    from ray.job_submission import JobSubmissionClient

    check_working_dir(working_dir)
    folder = str(Path(working_dir).resolve())
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or ADDRESS
    with _refusals(address):
        client = JobSubmissionClient(address)
        job = client.submit_job(entrypoint=shlex.join(command), runtime_env={"working_dir": folder})
    progress(f"submitted {job}: {shlex.join(command)}")
    if not wait:
        return job
    asyncio.run(_follow(client, job, progress))
    info = client.get_job_info(job)
    if info.status != "SUCCEEDED":
        why = (info.message or "no reason given").partition(", last available logs")[0]  # they have been shown
        raise UserError(f"job {job} {str(info.status).lower()}: {' '.join(why.split())}")
    return job


def check_working_dir(folder: str | Path, limit_mib: float = LIMIT_MIB) -> int:
    """Check the size of what would be uploaded from a folder, and return it in bytes.

    Raises:
        UserError: there is no such folder, or it holds more than `limit_mib`; the message names the largest entries.
    """
    folder = Path(folder).absolute()
    if not folder.is_dir():
        raise UserError(f"working directory {folder} is not a folder")
    sizes: Counter[str] = Counter()
    for file in packed_files(folder):
        sizes[file.relative_to(folder).parts[0]] += file.stat().st_size
    total = sum(sizes.values())
    if total > limit_mib * 2**20:
        largest = ", ".join(f"{name} ({size / 2**20:.0f} MiB)" for name, size in sizes.most_common(3))
        raise UserError(
            f"working directory {folder} holds {total / 2**20:.0f} MiB, more than {limit_mib:g} MiB; the largest are "
            f"{largest}. It is for code: name data by a path that every node sees or by a URI, and list what the job "
            "does not need in .rayignore"
        )
    return total


def packed_files(folder: Path) -> list[Path]:
    """Return the files of a folder that Ray uploads, as its own packager finds them.

    It leaves out what `.gitignore` and `.rayignore` name, and by itself `.git`, virtual environments and the like.

    Raises:
        UserError: something in the folder cannot be packed.
    """
    from ray._private import ray_constants
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    folder = folder.absolute()  # as Ray compares
    files = []

    def found(path: Path) -> None:
        if path.is_file():
            files.append(path)
        elif path.exists() and not path.is_dir():  # a pipe, which Ray would wait for
            raise UserError(f"{path} is no regular file: list it in .rayignore")

    # Releases without this function leave nothing out by themselves.
    excludes: list[str] = getattr(ray_constants, "get_runtime_env_default_excludes", list)()
    obeyed = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE) != "1"
    quiet = logging.getLogger("raynas.packaging")
    quiet.disabled = True  # it names the files that it obeys, and every folder above a mistake
    try:
        _dir_travel(folder, [_get_excludes(folder, excludes)], found, include_gitignore=obeyed, logger=quiet)
    except OSError as error:
        raise UserError(f"working directory {folder} cannot be packed: {error}; list it in .rayignore") from error
    return files


@contextmanager
def _refusals(address: str) -> Iterator[None]:
    """Make one line of what Ray's client raises, without the credentials that the address may hold."""
    from ray.exceptions import AuthenticationError

    address = hide_secrets(address)
    try:
        yield
    except ConnectionError:
        raise UserError(
            f"no Ray dashboard answers at {address}; for a cluster of `ray up`, leave `ray dashboard cluster.yaml` "
            "running in another terminal"
        ) from None
    except AuthenticationError:
        raise UserError(
            f"the cluster at {address} wants its token: export RAY_AUTH_MODE=token, with the token in "
            "~/.ray/auth_token or in the file that RAY_AUTH_TOKEN_PATH names"
        ) from None
    except Exception as error:  # of many classes, by what is wrong with the address or the cluster
        raise UserError(f"no job can be submitted to {address}: {hide_secrets(reason(error))}") from None


async def _follow(client: JobSubmissionClient, job: str, progress: Progress) -> None:
    received, unfinished = 0, ""
    async for text in client.tail_job_logs(job):
        received += len(text)
        *lines, unfinished = (unfinished + text).split("\n")
        for line in lines:
            progress(line)
    # The stream may close before a job's last lines have come through it, and those are its results.
    if rest := (unfinished + client.get_job_logs(job)[received:]).rstrip("\n"):
        progress(rest)

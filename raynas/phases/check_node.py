"""One machine as it sees itself: versions, devices, memory, the data and the run directory. It runs on every node."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from pyarrow import fs

from raynas.data.config import DataConfig
from raynas.data.glance import glance
from raynas.data.held import machine_memory
from raynas.errors import UserError, reason
from raynas.filesystem import FAILURES, open_filesystem, open_location, write_whole
from raynas.results.versions import versions

SHARED_MEMORY = Path("/dev/shm")
SIDE = 512  # of the matrices that are multiplied


@dataclass(frozen=True)
class Seen:
    """A machine as it sees itself; sizes in bytes.

    Attributes:
        versions: of Python and packages.
        cpus: CPUs that this process may use.
        gpus: names of the GPUs that torch finds.
        gpu_memory: of each.
        gpu_fault: why a GPU does not compute; None if all do.
        memory: of the machine, or of the container.
        shared_memory: of /dev/shm.
        data: a fingerprint of the dataset; None if none was named.
        data_fault: why it cannot be read.
        run_fault: why nothing can be written to the run directory.
    """

    versions: dict[str, str]
    cpus: int
    gpus: tuple[str, ...]
    gpu_memory: tuple[int, ...]
    gpu_fault: str | None
    memory: int
    shared_memory: int
    data: str | None = None
    data_fault: str | None = None
    run_fault: str | None = None


@dataclass(frozen=True)
class Probe:
    """A folder in a run directory for one file of each node.

    Attributes:
        run_dir: path or URI of the run directory, which need not exist.
        is_new: True if the run directory does not exist yet, so that it is deleted with the folder.
    """

    run_dir: str
    folder: str
    is_new: bool


def look(data: DataConfig | None, probe: Probe | None) -> Seen:
    """Look at this machine, and leave a file in the run directory.

    Args:
        probe: where to leave the file; None for nowhere.
    """
    names, sizes, fault = _gpus()
    fingerprint = data_fault = None
    if data is not None:
        try:
            fingerprint = glance(data)
        except UserError as error:
            data_fault = str(error)
    return Seen(
        versions={name: versions()[name] for name in ("python", "raynas", "ray")} | {"torch": torch.__version__},
        cpus=len(os.sched_getaffinity(0)),
        gpus=names,
        gpu_memory=sizes,
        gpu_fault=fault,
        memory=machine_memory(),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else 0,
        data=fingerprint,
        data_fault=data_fault,
        run_fault=None if probe is None else _leave(probe),
    )


def _gpus() -> tuple[tuple[str, ...], tuple[int, ...], str | None]:
    """Return names and memory of torch's GPUs, and why one of them does not multiply matrices."""
    names, sizes = [], []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        names.append(about.name)
        sizes.append(about.total_memory)
        try:
            ones = torch.ones(SIDE, SIDE, device=f"cuda:{index}")
            if float((ones @ ones).sum()) != SIDE**3:
                return (*names,), (*sizes,), f"GPU {index} ({about.name}) multiplies matrices wrongly"
        except RuntimeError as error:
            return (*names,), (*sizes,), f"GPU {index} ({about.name}): {reason(error)}"
    return (*names,), (*sizes,), None


# -- the run directory -------------------------------------------------------------------------------------------------


HERE = "here"
"""The name of this machine's file without Ray; with Ray it is the node's id."""


def _leave(probe: Probe) -> str | None:
    in_a_task = ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE
    me = ray.get_runtime_context().get_node_id() if in_a_task else HERE  # this process may have a Ray for other work
    try:
        filesystem, root = open_filesystem(probe.run_dir)
        write_whole(filesystem, f"{root}/{probe.folder}/{me}", me.encode())
    except UserError as error:
        return str(error)
    return None


def unseen(probe: Probe, names: list[str], limit_s: float = 5.0) -> list[str]:
    """Return which of the other nodes' files cannot be read here. A shared mount may show them late."""
    filesystem, root = open_filesystem(probe.run_dir)
    left, began = list(names), time.monotonic()
    while left:
        left = [name for name in left if not _reads(filesystem, f"{root}/{probe.folder}/{name}", name)]
        if time.monotonic() - began > limit_s:
            break
        time.sleep(0.2 if left else 0)
    return left


def absent(locations: Sequence[str]) -> list[str]:
    """Return those of some files and folders, by path or URI, that this node does not find."""

    def found(location: str) -> bool:
        try:
            filesystem, path = open_location(location)
            return filesystem.get_file_info(path).type != fs.FileType.NotFound
        except (*FAILURES, UserError):
            return False

    return [location for location in locations if not found(location)]


def _reads(filesystem: fs.FileSystem, path: str, name: str) -> bool:
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            return stream.read() == name.encode()
    except FAILURES:
        return False


def clear(probe: Probe) -> None:
    """Delete the files, and the run directory if there was none."""
    filesystem, root = open_filesystem(probe.run_dir)
    with suppress(*FAILURES):  # another node was quicker
        filesystem.delete_dir(f"{root}/{probe.folder}")
    if probe.is_new and isinstance(filesystem, fs.LocalFileSystem):
        with suppress(OSError):  # there is something in it by now
            Path(root).rmdir()

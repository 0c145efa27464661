"""Settings of a piece of work, recorded in a run directory and binding once results depend on them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pydantic
from pyarrow import fs

from raynas.config import spelled_out
from raynas.errors import RunDirError
from raynas.filesystem import FAILURES, open_filesystem
from raynas.locations import hide_secrets
from raynas.results.run_dir import MARKER, RunDir, first_difference, plain
from raynas.results.versions import versions
from raynas.runs.files import (
    CHECKPOINTS,
    EVOLUTION,
    LOCAL_CHECKPOINTS,
    NETWORKS,
    PRESET,
    RAY_CHECKPOINTS,
    SPACE,
    START,
    SUPERNET,
    SUPERNET_WEIGHTS,
    ray_checkpoints,
)
from raynas.runs.network_folder import WEIGHTS_FILE

KINDS = (("adapt", "train"), ("import",), EVOLUTION, ("ablation",), ("tune",))
"""Pieces of work of which a run directory holds only one, since later work uses its results."""


def begin(
    run: RunDir,
    what: str,
    settings: Mapping[str, Any] | pydantic.BaseModel,
    otherwise: str = "give the same, or another run directory",
) -> bool:
    """Record the resolved settings of a piece of work in `<what>.yaml`, or check them if it began before.

    Software versions, host and time are added to the file's list of starts each time. Settings bind once something
    depends on them, such as the first checkpoint; until then they can be replaced.

    Args:
        what: name of the work: `train`, `search`, ...; a slash makes folders.
        settings: everything that the result depends on, as plain values or a pydantic model.
        otherwise: advice for the message if it began with other settings.

    Returns:
        True if the work began before with equal settings, and is to be resumed.

    Raises:
        RunDirError: it began with other settings (the message names the first difference), or the directory holds
            another kind of work.
    """
    begun = check_settings(run, what, settings, otherwise)
    start = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "machine": platform.machine(),
        **versions(),
    }
    for work in _others(what):  # they left no results, and their presets are not this work's
        if run.exists(f"{work}.yaml"):
            for file in (f"{work}.yaml", PRESET, SPACE):
                run.delete(file)
    name = f"{what}.yaml"
    starts = run.read_yaml(name, "starts")["starts"] if begun else []
    run.write_yaml(name, {"settings": plain(settings), "starts": [*starts, start]})
    return begun


def check_settings(
    run: RunDir,
    what: str,
    settings: Mapping[str, Any] | pydantic.BaseModel,
    otherwise: str = "give the same, or another run directory",
) -> bool:
    """Return True if a piece of work began before with equal settings, without writing; see `begin`."""
    if found := [work for work in _others(what) if is_bound(run, work)]:
        raise RunDirError(f"{run.name} holds other work (its {found[0]}.yaml): give another run directory")
    name = f"{what}.yaml"
    if not run.exists(name):
        return False
    before = run.read_yaml(name, "settings", "starts")
    difference = first_difference(*(spelled_out(each, settings) for each in (before["settings"], plain(settings))))
    if difference is not None and is_bound(run, what):
        raise RunDirError(f"{run.name}: {what} began with other settings: {difference}; {otherwise}")
    return difference is None


def is_bound(run: RunDir, what: str) -> bool:
    """Return True if a piece of work has begun and left something that depends on its settings."""
    if not run.exists(f"{what}.yaml"):
        return False
    left = _left_by(what)
    if what == "trials":
        left = [
            f"{folder}{name}" for folder in ("", *(f"trials/{each}/" for each in run.list("trials"))) for name in left
        ]
    return not left or any(run.holds(name) for name in left)


def has_begun(uri: str | os.PathLike[str] | RunDir, what: str) -> bool:
    """Return True if something depends on a piece of work in a run directory, which need not exist."""
    given = uri.uri if isinstance(uri, RunDir) else os.fspath(uri)
    filesystem, root = open_filesystem(given)
    try:
        there = filesystem.get_file_info(f"{root}/{MARKER}").type == fs.FileType.File
    except FAILURES as error:
        raise RunDirError(f"{hide_secrets(given)}: cannot be reached: {error}") from error
    return there and is_bound(RunDir(given), what)


def _others(what: str) -> list[str]:
    """Return the pieces of work that a run directory cannot hold beside this one."""
    if not any(what in kind for kind in KINDS):
        return []
    return [work for kind in KINDS if what not in kind for work in kind]


def _left_by(what: str) -> list[str]:
    """Return the files and folders that bind a piece of work's settings; if none, they bind from its start."""
    if what.startswith(f"{NETWORKS}/"):
        path = what.rpartition("/")[0]
        name = path.removeprefix(f"{NETWORKS}/")
        return [f"{path}/{WEIGHTS_FILE}", ray_checkpoints(name)]
    trained = [SUPERNET, SUPERNET_WEIGHTS, "tables/training", RAY_CHECKPOINTS, LOCAL_CHECKPOINTS]
    evolved = ["tables/space_scores", *(f"iterations/0/{name}" for name in trained)]
    return {
        "train": trained,
        "adapt": ["tables/networks", START, CHECKPOINTS, *trained],
        "import": [SUPERNET],
        "space_evolution": evolved,
        "trials": evolved,
        "ablation": ["tables/trials"],
        "tune": ["tables/trials"],
    }.get(what, [])

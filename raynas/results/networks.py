"""Reading table `networks`."""

from __future__ import annotations

from raynas.results.run_dir import RunDir
from raynas.results.schemas import Row

ABOUT_FILE = "network.json"
"""In a network's folder: its row, and how images become its input."""


def network_rows(run: RunDir) -> list[Row]:
    """The rows of table `networks`, without those of networks that were deleted, and perhaps trained again."""
    newest = {row["path"] or row["weights"]: row for row in run.store.read("networks").to_pylist()}
    return [row for row in newest.values() if not row["path"] or _is_there(run, row)]


def _is_there(run: RunDir, row: Row) -> bool:
    """Whether a row's folder holds its network, and not one that was trained after it and has no row yet."""
    if not run.exists(f"{row['path']}/arch.yaml"):
        return False
    about = f"{row['path']}/{ABOUT_FILE}"
    return not run.exists(about) or run.read_json(about)["weights"] == row["weights"]

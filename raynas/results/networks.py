"""Reading table `networks`."""

from __future__ import annotations

from typing import Any

from raynas.results.run_dir import RunDir


def network_rows(run: RunDir) -> list[dict[str, Any]]:
    """The rows of table `networks`: of a network whose folder was deleted, and that was trained again, the newest."""
    rows = run.store.read("networks").to_pylist()
    return list({row["path"] or row["weights"]: row for row in rows}.values())

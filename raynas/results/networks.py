"""Reading table `networks`."""

from __future__ import annotations

from typing import Any

from raynas.results.run_dir import RunDir


def network_rows(run: RunDir) -> list[dict[str, Any]]:
    """The rows of table `networks`, without those of networks that were deleted, and perhaps trained again."""
    newest = {row["path"] or row["weights"]: row for row in run.store.read("networks").to_pylist()}
    return [row for row in newest.values() if not row["path"] or run.exists(f"{row['path']}/arch.yaml")]

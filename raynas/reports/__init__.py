"""Figures and the self-contained HTML page of a run."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from raynas.reports.page import write_report

        return write_report
    raise AttributeError(f"module 'raynas.reports' has no attribute {name!r}")

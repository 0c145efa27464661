"""Run directories and their tables of measured numbers, on a local path or an object store."""

from raynas.results.run_dir import RunDir
from raynas.results.store import Store

__all__ = ["RunDir", "Store"]

"""Versions of the software that numbers are measured with."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("raynas", "torch", "timm", "ray", "numpy")


@cache
def versions() -> dict[str, str]:
    """Return the versions of packages that can change results, from their metadata, without importing them."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return {**found, "python": platform.python_version()}


@cache
def versions_text() -> str:
    """Return the versions as one text for a column: `raynas=0.1 torch=2.9 ...`."""
    return " ".join(f"{name}={number}" for name, number in versions().items())

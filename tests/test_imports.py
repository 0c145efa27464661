"""Imports point one way, and the parts that search needs are light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import raynas

PACKAGE = Path(raynas.__file__).parent

LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "duration": set(),
    "config": {"errors"},
    "locations": set(),
    "board": set(),
    "cluster": set(),
    "statistics": set(),
    "space": set(),
    "nets": {"space"},
    "costs": {"nets", "space"},
    "data": {"space"},
    "energy": set(),
    "results": {"space"},
    "phases": {"cluster", "energy", "results"},
    "reports": {"results", "space", "statistics"},
    "search": {"costs", "duration", "space"},
    "scoring": {"duration", "cluster", "costs", "data", "nets", "results", "space"},
    # A preset holds the configurations of all parts; the training job, which reads one, stands above the loop.
    "preset": {"data", "outer", "search", "space", "training"},
    "training": {
        "board",
        "cluster",
        "costs",
        "data",
        "duration",
        "nets",
        "networks",
        "phases",
        "preset",
        "results",
        "space",
    }
    | {"timm_weights"},
    # Over a whole search: it times what the search goes by before it, and its candidates after it.
    "timing": {"cluster", "costs", "duration", "networks", "phases", "results", "search", "space"},
    # Over whole runs: it trains, scores, moves on and searches.
    "outer": {"cluster", "costs", "nets", "phases", "preset", "results", "scoring", "search", "searches", "space"}
    | {"training"},
    "bench": {"costs", "data", "nets", "networks", "results", "scoring", "search", "space"},
}
"""What each package or module may import, besides itself, `config`, `errors` and `locations`; others join them up."""

EXCEPTIONS = {("space/space.py", "costs"), ("reports/sharing.py", "nets")}
"""`Space.scaled` is a question about a space that needs its costs; a report draws cyclic patterns, found by numpy."""


def imported(path: Path) -> Iterator[str]:
    """The first part below `raynas` of every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            below = [f"raynas.{alias.name}" for alias in node.names]
            names = below if node.module == "raynas" else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("raynas."):
                yield name.split(".")[1]


def test_imports_point_one_way() -> None:
    used_exceptions = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        layer = relative.parts[0].removesuffix(".py")
        if layer not in LAYERS:
            continue
        for target in imported(path):
            if (relative.as_posix(), target) in EXCEPTIONS:
                used_exceptions.add((relative.as_posix(), target))
                continue
            allowed = LAYERS[layer] | {layer, "errors", "config", "locations", "own", "best"}
            assert target in allowed, f"raynas/{relative} imports raynas.{target}"
    assert used_exceptions == EXCEPTIONS


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(LAYERS), "say in LAYERS what the new package may import"


def test_what_search_needs_is_light() -> None:
    code = (
        "import sys, raynas, raynas.space, raynas.search, raynas.costs\n"
        "space = raynas.load_space('digits/vit')\n"
        "raynas.cost(space, [space.largest()])\n"
        "raynas.costs.scale_to_macs(space, space.largest(), macs=1e6)\n"
        "raynas.RandomSearch(space, constraints={'macs': (None, 2e6)}, seed=0).ask(2)\n"
        "print(*{'torch', 'ray', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""

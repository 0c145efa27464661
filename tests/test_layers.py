"""Imports point one way, without circles, and the parts that search needs are light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import raynas

PACKAGE = Path(raynas.__file__).parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("locations",),
    ("text",),
    ("documents", "filesystem", "comparison", "arguments", "quantities", "drawing", "correlation"),
    ("config", "user_code", "progress"),
    ("space",),
    ("nets", "figures"),
    ("families",),
    ("costs",),
    ("data", "results", "cluster"),
    ("training", "latency", "energy"),
    ("search",),
    ("presets",),
    ("runs",),
    ("proxies",),
    ("scoring",),
    ("reports",),
    ("phases",),
    ("outer",),
    ("api", "timm", "bench", "downstream"),
    ("commands",),
    ("__init__", "__main__"),
)
"""Every package and module of raynas, each allowed to import those of the lines above it and itself."""

NARROW: dict[str, set[str]] = {
    "data": {"space"},
    "results": {"space"},
    "search": {"costs", "latency", "space"},
    "training": {"costs", "data", "nets", "space"},
    "reports": {"costs", "figures", "nets", "results", "runs", "space"},
}
"""What some packages keep to, besides the modules above `space`."""


def source_of(module: str) -> Path | None:
    """Return the file of a module `raynas.a.b`; None if it is none, but a name in one."""
    path = PACKAGE.parent / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def module_of(path: Path) -> str:
    """Return the dotted name of a file in raynas."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of raynas that a file imports, wherever in the file, if only for a type checker."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if source_of(name) else node.module or "" for name in names if name.startswith("raynas."))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("raynas."))


def part_of(module: str) -> str:
    """The package or module right below `raynas`."""
    return module.split(".")[1] if "." in module else "__init__"


def test_every_module_is_in_a_layer() -> None:
    there = {part_of(module_of(path)) for path in PACKAGE.rglob("*.py")}
    assert there == {part for layer in LAYERS for part in layer}


def test_imports_point_one_way() -> None:
    height = {part: place for place, layer in enumerate(LAYERS) for part in layer}
    above_space = {part for layer in LAYERS[:5] for part in layer}
    for path in sorted(PACKAGE.rglob("*.py")):
        part = part_of(module_of(path))
        for module in imported(path):
            target = part_of(module)
            told = f"{path.relative_to(PACKAGE.parent)} imports {module}"
            assert target == part or height[target] < height[part], told
            if part in NARROW:
                assert target in NARROW[part] | above_space | {part}, told


def test_no_circle_of_imports() -> None:
    graph = {module_of(path): set(imported(path)) - {module_of(path)} for path in PACKAGE.rglob("*.py")}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def printed(code: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_search_needs_is_light() -> None:
    code = (
        "import sys, raynas, raynas.space, raynas.search, raynas.costs\n"
        "space = raynas.load_space('digits/vit')\n"
        "raynas.cost(space, [space.largest()])\n"
        "raynas.costs.scale_to_macs(space, space.largest(), macs=1e6)\n"
        "raynas.RandomSearch(space, constraints={'macs': (None, 2e6)}, seed=0).ask(2)\n"
        "print(*{'torch', 'ray', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    assert printed(code) == ""


def test_a_search_imports_neither_timm_nor_torchvision() -> None:
    code = (
        "import sys, raynas.phases.search, raynas.phases.evaluate, raynas.phases.rank, raynas.scoring.pool\n"
        "import raynas.reports.lines\n"
        "print(*{'timm', 'torchvision', 'torch._dynamo', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    assert printed(code) == ""

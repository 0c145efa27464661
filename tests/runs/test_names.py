"""A name of a file or folder in a run directory stands in one module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import raynas

PACKAGE = Path(raynas.__file__).parent

OWNERS = {
    "raynas.yaml": "results/run_dir.py",
    "phase.json": "results/phases.py",
    "space.yaml": "runs/files.py",
    "preset.yaml": "runs/files.py",
    "supernet.json": "runs/files.py",
    "supernet.safetensors": "runs/files.py",
    "arch.yaml": "runs/network_folder.py",
    "model.safetensors": "runs/network_folder.py",
    "network.json": "runs/network_folder.py",
}
"""Names, with the module that they stand in."""

FOLDERS = ("best", "reference", "searches", "networks", "checkpoints")
"""Folders whose names are also words for other things: `searches/...` is a path."""


def strings(path: Path) -> Iterator[str]:
    """Yield the text constants of a module and the fixed parts of its f-strings, docstrings and prose left out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.search(r"\s", node.value.strip()):
            yield node.value


@pytest.fixture(scope="module")
def constants() -> dict[str, set[str]]:
    return {path.relative_to(PACKAGE).as_posix(): set(strings(path)) for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("name", OWNERS)
def test_a_file_name_stands_in_one_module(constants: dict[str, set[str]], name: str) -> None:
    found = {module for module, texts in constants.items() if any(name in text.split("/") for text in texts)}
    assert found == {OWNERS[name]}


@pytest.mark.parametrize("folder", FOLDERS)
def test_paths_into_a_folder_are_made_by_the_run(constants: dict[str, set[str]], folder: str) -> None:
    path = re.compile(rf"(^|/){folder}/")
    found = {module for module, texts in constants.items() if any(path.search(text) for text in texts)}
    assert found <= {"runs/run.py"}


def test_the_data_of_a_run_are_read_out_of_its_preset_in_one_place() -> None:
    calls = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"(?<!def )stored_config\(", path.read_text())]
    assert calls == ["files.py"]

"""The site: pages made from the code hold every command, table, column and public name; it builds strictly."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import raynas
from raynas.commands.main import COMMANDS
from raynas.presets.preset import Preset
from raynas.results.schemas import SCHEMAS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The module that writes the pages, `docs/reference.py`, loaded as mkdocs does."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    return reference.pages()


def test_every_command_has_its_help(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]
    headings = re.findall("^## (.+)$", page, re.MULTILINE)
    assert {f"raynas {name}" for name in COMMANDS} < set(headings) and "raynas bench latency" in headings
    done = subprocess.run([sys.executable, "-m", "raynas", "runs", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("usage: ") and all(word in page for word in done.stdout.split())


def test_every_table_and_column_is_there(pages: dict[str, str]) -> None:
    tables = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", pages["reference/tables.md"], re.DOTALL | re.MULTILINE))
    assert list(tables) == list(SCHEMAS)
    for name, schema in SCHEMAS.items():
        assert re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", tables[name], re.MULTILINE) == schema.names


def test_every_public_name_is_there(pages: dict[str, str]) -> None:
    named = re.findall(r"^::: (\S+)$", pages["reference/python.md"], re.MULTILINE)
    assert sorted(name.rpartition(".")[2] for name in named) == raynas.__all__


def test_every_key_of_a_preset_is_on_its_page() -> None:
    page = (ROOT / "docs/preset.md").read_text()  # test_documentation.py says that it is current
    for key in (*Preset.model_fields, *Preset.model_fields["recipe"].annotation.model_fields):  # type: ignore[union-attr]
        assert f"| `{key}` |" in page


def test_the_start_page_is_the_readme_with_links_of_the_site(pages: dict[str, str], reference: ModuleType) -> None:
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.*")} | pages.keys()
    for page in ("index.md", "contributing.md", "changelog.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", pages[page]):
            assert "://" in link or link in there, f"{page} links to {link}"
    assert reference.on_page_markdown("[a](../CONTRIBUTING.md#b)") == "[a](contributing.md#b)"


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/]+\.md", str(yaml.safe_load(text)["nav"])))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} | pages.keys()


def test_nothing_of_the_site_is_fetched_from_elsewhere() -> None:
    theme = yaml.safe_load(re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text()))["theme"]
    assert theme["font"] is False
    for page in (ROOT / "docs").glob("*.md"):
        assert not re.search(r"!\[[^\]]*\]\(https?:|<script|```mermaid", page.read_text()), page


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="make docs installs mkdocs")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True)
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.search(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?|png|svg)"', page.read_text()), page

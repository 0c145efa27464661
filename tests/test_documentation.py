"""The documentation: the page of a preset's keys is what the models say, and what pages name and link to exists."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

NOT_CODE = {"raynas.yaml", "raynas.replaces"}
"""A file of a run directory, and a key of a fragment's metadata."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_page_of_a_presets_keys_is_current() -> None:
    made = subprocess.run([sys.executable, "docs/preset.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs/preset.md").read_text(), "run: python docs/preset.py > docs/preset.md"
    assert "| `train_on` | `train`, `train+search` | `train+search` |" in made.stdout
    assert "| `repeats` | whole number, at least 1, at most 100 | `1` |" in made.stdout


@each_page
def test_modules_and_functions_on_a_page_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w./-])raynas(?:\.[A-Za-z_]\w*)+", text)) - NOT_CODE
    for module, names in re.findall(r"^from (raynas[\w.]*) import (.+)$", text, re.MULTILINE):
        named |= {f"{module}.{name}" for name in names.split(", ")}
    for name in sorted(named):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            pytest.fail(f"{page.name} speaks of {name}")


@each_page
def test_files_of_the_repository_on_a_page_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w/.])(?:raynas|jobs|tests)/[\w/.]*\w", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} speaks of {path}"


@each_page
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert "://" in link or target.exists(), f"{page.name} links to {link}"
        assert not heading or heading in anchors(target), f"{page.name} links to {link}"


@each_page
def test_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(bars) == 1, f"{page.name}: {table.splitlines()[0]}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

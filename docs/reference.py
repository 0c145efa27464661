"""Pages of the site that are written from the code; mkdocs calls `on_files` of this module when it builds.

They are the reference of the commands, of the tables and of the Python interface, the start page (README.md), and the
notebooks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import raynas
from raynas.commands.main import make_parser
from raynas.results.schemas import SCHEMAS

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of the folder."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with its links to the repository's root as they are in the site."""
    return markdown.replace("](../CONTRIBUTING.md", "](contributing.md")


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    return {
        "index.md": of_repository("README.md"),
        "contributing.md": of_repository("CONTRIBUTING.md"),
        "changelog.md": of_repository("CHANGELOG.md"),
        "reference/commands.md": commands(),
        "reference/tables.md": tables(),
        "reference/python.md": python(),
        **{f"notebooks/{file.stem}.md": notebook(file) for file in sorted((ROOT / "docs/notebooks").glob("*.py"))},
    }


def of_repository(name: str) -> str:
    """Return a page of the repository's root, with its links as they are in the site."""
    text = (ROOT / name).read_text().replace("](docs/", "](")
    for page in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = text.replace(f"]({page})", f"]({page.lower()})")
    # Without links to what the site does not have.
    return re.sub(r"\[([^\]]+)\]\((?:cluster\.yaml|LICENSE|notebooks)\)", r"\1", text)


def notebook(file: Path) -> str:
    """Return a notebook in jupytext's percent form as a page: its text, and its code in blocks."""
    _, *cells = re.split(r"^# %%(.*)\n", file.read_text(), flags=re.MULTILINE)
    parts = []
    for kind, content in zip(cells[::2], cells[1::2], strict=True):
        text = content.strip()
        parts.append(re.sub("^# ?", "", text, flags=re.MULTILINE) if kind else f"```python\n{text}\n```")
    about = f"This page is a file, [{file.name}]({file.name}); `jupytext --to notebook` makes a Jupyter notebook of it."
    parts.insert(1, about)
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return the help of every command."""
    os.environ["COLUMNS"] = "80"  # argparse wraps at the terminal's width
    lines = ["# Commands\n", "The help of each command, as `--help` prints it."]
    for name, parser in make_parser().with_commands("raynas"):
        lines.append(f"\n## {name}\n\n```text\n{parser.format_help().rstrip()}\n```")
    return "\n".join(lines) + "\n"


def tables() -> str:
    """Return every table of a run directory with its columns."""
    lines = [
        "# Tables\n",
        "The tables of a run directory, each a folder of Parquet files ([how to read them](../results.md#reading)).",
    ]
    for name, schema in SCHEMAS.items():
        lines += [f"\n## {name}\n", said(schema.metadata), "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{field.name}` | {field.type} | {said(field.metadata)} |" for field in schema]
    return "\n".join(lines) + "\n"


def said(metadata: Any) -> str:
    """Return the text of a table or column, without signs that a table of Markdown would read."""
    return str(metadata[b"doc"].decode()).replace("|", "\\|").replace("<", "&lt;")


def python() -> str:
    """Return the page of the public names; mkdocstrings puts signatures and docstrings in the place of `:::`."""
    groups: dict[str, list[str]] = {}
    for name in raynas.__all__:
        module = getattr(raynas, name).__module__
        groups.setdefault(GROUPS[module.split(".")[1]], []).append(f"\n::: {module}.{name}")
    lines = ["# Python\n", "Every name here is one of `raynas` itself, such as `raynas.train`."]
    for heading in dict.fromkeys(GROUPS.values()):
        lines += [f"\n## {heading}", *groups[heading]]
    return "\n".join(lines) + "\n"


GROUPS = {
    "api": "Functions, one for each command",
    "runs": "Runs",
    "presets": "Presets and resources",
    "cluster": "Presets and resources",
    "space": "Spaces, costs and supernets",
    "costs": "Spaces, costs and supernets",
    "nets": "Spaces, costs and supernets",
    "scoring": "Scores",
    "proxies": "Scores",
    "search": "Searches",
}
"""Heading of the public names by their package."""

"""The notebooks of docs/notebooks run from top to bottom, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, notebook], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_in_jupytexts_form(notebook: Path) -> None:
    text = notebook.read_text()
    assert text.startswith("# ---\n# jupyter:") and "format_name: percent" in text
    compile(text, notebook.name, "exec")
    assert "import matplotlib.pyplot" in text  # without it Jupyter shows no figures
    assert {"# %% [markdown]", "# %%"} == set(re.findall(r"^# %%.*$", text, re.MULTILINE))


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3

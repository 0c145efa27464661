"""The documentation: the page of a preset's keys is what the models say, and examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_of_a_presets_keys_is_current() -> None:
    made = subprocess.run([sys.executable, "docs/preset.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs/preset.md").read_text(), "run: python docs/preset.py > docs/preset.md"
    assert "| `train_on` | `train`, `train+search` | `train+search` |" in made.stdout
    assert "| `repeats` | whole number, at least 1, at most 100 | `1` |" in made.stdout

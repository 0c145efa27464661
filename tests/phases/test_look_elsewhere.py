"""The look at every image by Ray tasks finds what the look in this process does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from raynas.cluster.resources import Resources
from raynas.data import look
from raynas.data.config import DataConfig
from raynas.data.load import look_at
from raynas.phases import look_elsewhere
from tests.data.pictures import write_classes


@pytest.mark.slow
def test_tasks_find_what_this_process_finds(tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "pictures", {"cat": 11, "dog": 12})
    broken = sorted((tmp_path / "pictures").rglob("*.*"))[5]
    broken.write_bytes(broken.read_bytes()[:40])
    config = DataConfig(name=str(tmp_path / "pictures"), size=(8, 8), channels=3)
    expected = look_at(config)
    assert len(expected.unreadable) == 1 and expected.count == 23
    look._KNOWN.clear()
    asked = iter([True])
    monkeypatch.setattr(look_elsewhere, "HERE_UP_TO", 5)
    monkeypatch.setattr(look_elsewhere, "AT_ONCE", 4)
    monkeypatch.setattr(look_elsewhere, "on_cluster", lambda: next(asked))
    assert asdict(look_at(config, see_all=look_elsewhere.see_with(Resources(workers=2)))) == asdict(expected)
    assert not list(asked)  # it was asked for: there are more images than this process reads itself

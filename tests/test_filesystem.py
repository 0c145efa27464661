"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from raynas.filesystem import whole_file


def test_a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert path.read_bytes() == b"old"
        _ = 1 / 0
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with whole_file(path) as stream:
        stream.write(b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]

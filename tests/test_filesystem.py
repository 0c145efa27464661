"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raynas.filesystem import whole_file
from raynas.training.context import read_state, write_state


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


def test_a_checkpoint_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / ".000000003-0-0.1.pt.1234abcd.tmp").write_bytes(b"half")
    write_state({"step": 4, "weights": torch.ones(2)}, tmp_path / "000000004-0-0.2.pt")
    (left,) = tmp_path.iterdir()
    assert left.name == "000000004-0-0.2.pt" and read_state(left)["step"] == 4

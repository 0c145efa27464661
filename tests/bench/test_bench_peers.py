"""The folder of released code that `bench peers` imports from; what it measures was run on a clone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from raynas.bench.peers import bench_peers, importable
from raynas.errors import UserError


def test_modules_of_a_folder_are_importable_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("from torch._six import inf\n")
    (tmp_path / "released_engine.py").write_text("import lib\nlimit = lib.inf\n")
    before = list(sys.path)
    with importable(tmp_path, "released_engine.py"):
        assert importlib.import_module("released_engine").limit == float("inf")
    assert sys.path == before and not {"released_engine", "lib", "torch._six"} & set(sys.modules)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no supernet_engine\.py: give the folder of the clone"):
        bench_peers(tmp_path)
    with pytest.raises(UserError, match=r"no models/attentive_nas_dynamic_model\.py"):
        bench_peers(nasvit=tmp_path)
    with pytest.raises(UserError, match=r"there is no supernet_engine\.py"):
        bench_peers("n" * 300)  # longer than any name of a file
    with pytest.raises(UserError, match="give a folder of released code, autoformer or nasvit"):
        bench_peers()

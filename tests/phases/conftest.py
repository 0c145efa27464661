"""What tests of phases share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def without_exporters() -> Iterator[None]:
    """Exports have no archive of torch's and no ONNX, which take seconds each; the tests of exports have both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raynas.phases.export._missing_for_onnx", lambda: ["onnx"])
        patch.setattr("raynas.phases.export._write_archive", lambda model, reading, path: path.touch())
        yield

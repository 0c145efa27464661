from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import ray

from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.space import Space
from tests.scoring.hand_written_search import climb
from tests.scoring.scoring_parts import make_run

PROGRAM = Path(__file__).parent / "hand_written_search.py"


def _start(run: Run, out: Path) -> subprocess.Popen[str]:
    # In the tests' cluster: it outlives the killed driver, as a user's cluster would.
    address = ray.get_runtime_context().gcs_address
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    command = [sys.executable, str(PROGRAM), str(run), str(out)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _kill_after(process: subprocess.Popen[str], rounds: int) -> None:
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line == "round\n"
        if seen == rounds:
            process.kill()
    process.wait()
    assert seen >= rounds


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_hand_written_search_killed_and_run_again_scores_nothing_twice(tmp_path: Path, space: Space) -> None:
    undisturbed, run = make_run(tmp_path / "undisturbed", space), make_run(tmp_path / "run", space)
    with LocalScorer(undisturbed) as scorer:
        expected = climb(scorer)

    _kill_after(_start(run, tmp_path / "out.json"), rounds=3)
    assert not (tmp_path / "out.json").exists()
    before = run.store.read("scores").to_pylist()
    assert 0 < len(before) < len({arch for arch, _ in expected["history"]})
    assert _start(run, tmp_path / "out.json").wait() == 0

    assert json.loads((tmp_path / "out.json").read_text()) == expected
    after = run.store.read("scores").to_pylist()
    assert after[: len(before)] == before  # what was committed stays, and is not scored again
    assert set(Counter(row["arch"] for row in after).values()) == {1}
    assert {row["arch"] for row in after} == {arch for arch, _ in expected["history"]}
    assert sorted(run.store.read("correct")["arch"].to_pylist()) == sorted(row["arch"] for row in after)

"""Images that memory has no room for are decoded batch by batch, with the numbers of those that are held."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from raynas.data import held as held_module
from raynas.data.held import Streamed, held
from raynas.data.images import ImageSet, decode
from raynas.data.load import load_data
from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases import training_job
from raynas.phases.evaluate import evaluate
from raynas.phases.training_job import TrainingJob
from raynas.presets.preset import override
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.scoring import shared_images
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.scoring.score_arch import Job, score_arch
from raynas.scoring.scored_supernet import load_scored_supernet
from tests.data.pictures import write_classes
from tests.small_run import PRESET, SPACE

BATCH = 5
VOLATILE = {"seconds", "time", "replica"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with fresh weights on image files of 10 classes: 76 to train on, 20 to search on, 24 to test on."""
    write_classes(tmp_path / "images", {str(label): 12 for label in range(10)})
    data = {"data.name": str(tmp_path / "images"), "data.size": [8, 8], "data.channels": 1}
    run = Run(tmp_path / "run", create=True)
    torch.manual_seed(0)
    state = build_supernet(SPACE).state_dict()
    run.write_yaml("space.yaml", SPACE.to_dict())
    run.write_yaml("preset.yaml", override(PRESET, data))
    run.write_bytes("supernet.safetensors", save(state))
    run.write_json("supernet.json", {"fingerprint": weights_fingerprint(state), "seed": 0})
    return run


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory without room; the numbers of decoded images that are alive whenever some more are decoded."""
    monkeypatch.setattr(held_module, "HELD", 0.0)
    seen, now = list[int](), [0]

    def forget(count: int) -> None:
        now[0] -= count

    def counted(images: ImageSet, threads: int | None = None) -> tuple[Tensor, Tensor]:
        pixels, labels = decode(images, threads)
        now[0] += len(pixels)
        seen.append(now[0])
        weakref.finalize(pixels, forget, len(pixels))
        return pixels, labels

    monkeypatch.setattr(held_module, "decode", counted)
    return seen


def _stable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in VOLATILE} for row in rows]


def test_what_streams_stands_in_for_a_tensor(run: Run) -> None:
    images = run.data().search
    pixels, streamed = decode(images)[0], Streamed(images)
    assert len(streamed) == len(pixels) == 20
    assert [len(batch) for batch in streamed.split(8)] == [8, 8, 4]
    assert torch.equal(torch.cat(list(streamed.split(8))), pixels)
    chosen = torch.tensor([1, 7, 19])
    assert torch.equal(streamed[chosen], pixels[chosen])


def test_what_takes_a_share_of_memory_at_most_is_held(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images = run.data().search
    size = len(images) * 1 * 8 * 8
    monkeypatch.setattr(held_module, "machine_memory", lambda: 2 * size)
    for share, kind in ((0.5, Tensor), (0.49, Streamed)):
        monkeypatch.setattr(held_module, "HELD", share)
        assert isinstance(held(images), kind)
    monkeypatch.setattr(held_module, "HELD", 0.0)
    digits = load_data("digits").search
    assert isinstance(held(digits), Tensor)  # in memory already, but not in another size
    assert isinstance(held(digits.at((16, 16), 1)), Streamed)


def test_scores_and_blocks_are_the_same(run: Run, alive: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    archs = SPACE.decode(SPACE.sample_codes(np.random.default_rng(0), 3))
    rows, blocks = [], list[list[list[Any]]]()
    for share in (1.0, 0.0):
        monkeypatch.setattr(held_module, "HELD", share)
        alive.clear()
        with LocalScorer(None, BATCH, scored=load_scored_supernet(run)) as scorer:
            blocks.append([scorer.score_block(archs, *block) for block in ((0, 12), (12, 20))])
            rows.append(scorer.score([SPACE.smallest(), *archs]))
        assert alive == [20] if share else max(alive) <= 3 * BATCH
    assert _stable(rows[0]) == _stable(rows[1])
    assert np.array_equal(np.concatenate(blocks[0], axis=1), np.concatenate(blocks[1], axis=1))


def test_evaluations_are_the_same(run: Run, alive: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    networks = [Network(SPACE.largest(), "inherited"), Network(SPACE.smallest(), "inherited")]
    streamed = evaluate(run, networks, batch_size=BATCH)
    assert max(alive) <= 3 * BATCH < 24
    monkeypatch.setattr(held_module, "HELD", 1.0)
    plain = evaluate(run, networks, again=True, batch_size=BATCH)
    same = [{k: v for k, v in row.items() if k not in {"reading", *VOLATILE}} for row in streamed]
    assert same == [{k: v for k, v in row.items() if k not in {"reading", *VOLATILE}} for row in plain]


def test_the_score_of_a_training_streams_in_any_case(
    run: Run, alive: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "HELD", 1.0)
    monkeypatch.setattr(training_job, "score_arch", partial(score_arch, batch_size=BATCH))
    model, data = run.model(Network(SPACE.smallest(), "inherited")), run.data()
    preset = run.preset
    job = TrainingJob("n", model.space, run.data_config, preset.plan, preset.recipe, scored=True)
    accuracy, _ = training_job.score(job, data, SimpleNamespace(weights=model.state_dict()), torch.device("cpu"))  # type: ignore[arg-type]
    assert max(alive) <= 3 * BATCH
    pixels, labels = decode(data.search)
    assert accuracy == score_arch(model, SPACE.smallest(), pixels, labels, data.normalisation, BATCH).top1.mean()


@pytest.mark.usefixtures("ray_session")
def test_replicas_stream_what_their_store_has_no_room_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archs = [SPACE.smallest(), SPACE.largest()]
    with LocalScorer(None, BATCH, scored=load_scored_supernet(run)) as scorer:
        expected = scorer.score(archs)
    monkeypatch.setattr(shared_images, "has_room", lambda images, room: False)
    with ScorePool(run, replicas=1, batch_size=BATCH) as pool:
        rows = pool.score(archs)
        assert not isinstance(pool._shared_images, list)
        assert pool.supervisor.limit_s([Job(SPACE.sample(np.random.default_rng(1)), (0, 5))]) == 1800 + 0.1 * 20
    assert _stable(rows) == _stable(expected)
    assert "decoded batch by batch, anew for each network" in caplog.text

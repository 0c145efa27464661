"""Evaluation: right numbers, one row for each network, and a count of how often the test split was read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save

from raynas.costs import cost
from raynas.data.load import load_data, load_test
from raynas.errors import RunDirError, UserError
from raynas.nets.weights import load_supernet
from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.phases.retrain import retrain
from raynas.presets.preset import override
from raynas.runs.networks import Network
from raynas.runs.run import Run
from raynas.search import RandomSearch
from raynas.space import save_arch
from tests.small_run import PRESET, SPACE, small_run

ARCH = SPACE.smallest()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = small_run(tmp_path / "run")
    run.write_arch("best", ARCH)
    return run


def test_row_is_what_a_plain_loop_measures(run: Run) -> None:
    (row,) = evaluate(run, networks_to_evaluate(run))
    data, test = load_data("digits"), load_test("digits")
    supernet = load_supernet(SPACE, load(run.read_bytes("supernet.safetensors"))).eval()
    right, top5, loss = 0, 0, 0.0
    with torch.no_grad():
        pixels = torch.stack([torch.as_tensor(np.asarray(test[i][0])) for i in range(len(test))])
        rows = supernet((pixels / 255 - data.mean[0]) / data.std[0], ARCH)
        for logits, label in zip(rows, test.labels.tolist(), strict=True):
            right += int(logits.argmax() == label)
            top5 += int(label in logits.topk(5).indices)
            loss += float(torch.logsumexp(logits, 0) - logits[label])
    assert row["images"] == len(test)
    assert row["accuracy"] * len(test) == pytest.approx(right, abs=1)  # a tie may round otherwise in a batch
    assert row["top5"] * len(test) == pytest.approx(top5, abs=1)
    assert row["loss"] == pytest.approx(loss / len(test), rel=1e-4)
    assert (row["arch"], row["how"], row["reading"], row["seed"]) == (ARCH.id, "inherited", 1, None)


def test_an_empty_name_is_no_arch(run: Run) -> None:
    with pytest.raises(UserError, match="no arch ''"):
        networks_to_evaluate(run, "")


def test_row_says_how_far_every_head_looks(run: Run) -> None:
    (row,) = evaluate(run, networks_to_evaluate(run))
    heads = [ARCH[f"blocks.{block}.heads"] for block in range(ARCH["depth"])]
    assert [len(block) for block in row["distances"]] == heads
    # Fresh weights attend alike to all 16 patches of 2 x 2 pixels, whose mean distance is this one.
    places = [(x, y) for x in range(4) for y in range(4)]
    even = 2 * float(np.mean([np.hypot(a - c, b - d) for a, b in places for c, d in places]))
    assert np.allclose(np.concatenate(row["distances"]), even, rtol=0.02)
    assert [alike is None or alike > 0.9 for alike in row["similarities"]] == [True] * len(heads)


def test_whole_sets_are_placed_by_the_room_there_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []

    def stay(parts: Sequence[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor]:
        placed.extend(map(len, parts))
        return parts

    monkeypatch.setattr("raynas.phases.evaluate.placed_images", stay)
    (row,) = evaluate(run, [Network(run.space.smallest(), "inherited")])
    assert placed == [row["images"]]


def test_attention_with_too_many_weights_is_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arch = 16 * ARCH["depth"] * (1 + 16) ** 2  # weights of one image, for 16 heads
    monkeypatch.setattr("raynas.phases.evaluate.MOST_WEIGHTS", arch)
    (row,) = evaluate(run, networks_to_evaluate(run))
    assert row["distances"]
    monkeypatch.setattr("raynas.phases.evaluate.MOST_WEIGHTS", arch - 1)
    (row,) = evaluate(run, networks_to_evaluate(run), again=True)
    assert row["distances"] is None and row["accuracy"] is not None


def test_a_winner_changed_by_hand_is_not_left_out(run: Run) -> None:
    retrain(run, [ARCH], PRESET.retrain_recipe, train_on="train", parallel=1)
    text = run.read_bytes("best/arch.yaml").decode()
    assert "{size: 8," in text
    run.write_bytes("best/arch.yaml", text.replace("{size: 8,", "{size: 16,").encode())
    with pytest.raises(
        UserError, match=r"best/arch\.yaml is no subnet of the run's space: 16 x 16 pixels, not 8 x 8\."
    ):
        networks_to_evaluate(run)


def test_readings_are_counted_and_answers_are_not_readings(run: Run) -> None:
    lines: list[str] = []
    networks = [Network(ARCH, "inherited"), Network(SPACE.largest(), "inherited")]
    first = evaluate(run, networks, progress=lines.append)
    assert [row["reading"] for row in first] == [1, 2]
    assert len(lines) == 2
    answered = evaluate(run, networks[::-1], progress=lines.append)
    assert [row["reading"] for row in answered] == [2, 1]
    assert len(lines) == 2 and run.store.read("evaluations").num_rows == 2
    (again,) = evaluate(run, networks[:1], again=True, progress=lines.append)
    assert again["reading"] == 3 and again["accuracy"] == first[0]["accuracy"]
    assert run.store.read("evaluations").num_rows == 3


def test_other_test_images_are_another_evaluation(tmp_path: Path) -> None:
    """A label in `test/` is mended: the network, and what it was trained on, are the same."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 3)):
        for name in ("a", "b"):
            (folder := tmp_path / "data" / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(256, size=(8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{name}{index}.png")
    run = small_run(tmp_path / "run")
    run.write_preset(
        override(PRESET, {"data": {"name": str(tmp_path / "data"), "channels": 1, "search_fraction": 0.25}})
    )
    networks = [Network(ARCH, "inherited")]
    (before,) = evaluate(run, networks)
    (tmp_path / "data/test/a/a0.png").rename(tmp_path / "data/test/b/a0.png")
    (after,) = evaluate(run, networks)
    assert (after["reading"], after["images"], after["weights"]) == (2, 6, before["weights"])
    assert after["test"] != before["test"] and after["loss"] != before["loss"]
    assert evaluate(run, networks) == [after]


def test_a_row_of_an_older_version_still_answers(run: Run) -> None:
    (row,) = evaluate(run, networks_to_evaluate(run))
    shutil.rmtree(run.local_or_uri("tables/evaluations"))
    run.store.append("evaluations", [{**row, "test": None}])
    assert evaluate(run, networks_to_evaluate(run)) == [{**row, "test": None}]


@pytest.mark.parametrize(
    ("value", "said"),
    [(torch.nan, r"supernet\.safetensors: norm\.bias holds NaN"), (3e38, "weights are finite and outputs are not")],
)
def test_outputs_that_are_not_finite_are_one_line(run: Run, value: float, said: str) -> None:
    state = load(run.read_bytes("supernet.safetensors"))
    state["norm.bias"][:] = value
    state["head.weight"][:] = 100
    run.write_bytes("supernet.safetensors", save(state))
    with pytest.raises(UserError, match=said):
        evaluate(run, networks_to_evaluate(run))
    assert run.store.read("evaluations").num_rows == 0


def test_nothing_finished(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with pytest.raises(RunDirError, match=r"best/arch\.yaml"):
        networks_to_evaluate(run)


def test_a_name_that_is_no_arch(run: Run) -> None:
    with pytest.raises(
        UserError, match=r"no arch 'nope': .* \(give best, the name of a search, reference, the id of a"
    ):
        networks_to_evaluate(run, "nope")
    with pytest.raises(UserError, match="did you mean 'autoformer/published/tiny'"):
        networks_to_evaluate(run, "autoformer/publishd/tiny")


def test_an_arch_outside_the_space_has_no_inherited_weights(run: Run) -> None:
    wide = SPACE.off_grid({**ARCH, "width": 33})
    with pytest.raises(UserError, match="not in space"):
        evaluate(run, [Network(wide, "inherited")])


def test_an_arch_in_memory_for_other_images_is_refused(run: Run) -> None:
    """By all that takes archs of a run; as files they are fitted to the run, with a line."""
    for foreign, words in (
        (SPACE.with_input(size=16).smallest(), "16 x 16 pixels, not 8 x 8"),
        (SPACE.with_input(classes=3).smallest(), "classes 3, not 10"),
    ):
        with pytest.raises(UserError, match=words):
            evaluate(run, [Network(foreign, "inherited")])
        with pytest.raises(UserError, match=words):
            retrain(run, [foreign], PRESET.recipe, parallel=1)
        search = RandomSearch(SPACE, evaluations=1)
        (arch,) = search.ask(1)
        with pytest.raises(UserError, match=words):
            search.tell([foreign.space.arch(dict(arch))], [0.5])


def test_a_reference_that_is_not_there_is_not_advised_by_what_failed(run: Run) -> None:
    with pytest.raises(UserError, match=r"raynas pipeline makes one.*--arch FILE"):
        run.arch("reference")


def test_a_busy_run_directory_is_left_alone(run: Run) -> None:
    code = f"""
import sys
from raynas.runs.run import Run
with Run({run.uri!r}).lock():
    print("held", flush=True)
    sys.stdin.read()
"""
    root = str(Path(__file__).parents[2])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunDirError, match=str(holder.pid)):
            evaluate(run, [Network(ARCH, "inherited")])
        holder.communicate("")


def test_an_arch_file_of_another_space_is_taken_for_the_images_of_the_run(run: Run, tmp_path: Path) -> None:
    elsewhere = SPACE.with_input(size=16, classes=3)
    save_arch(elsewhere.smallest(), tmp_path / "arch.yaml")
    told: list[str] = []
    run.arch(str(tmp_path / "arch.yaml"), told.append)
    assert len(told) == 1 and "for 16 x 16 pixels, not 8 x 8; classes 3, not 10" in told[0]
    (row,) = evaluate(run, networks_to_evaluate(run, str(tmp_path / "arch.yaml")))
    assert row["macs"] == cost(SPACE, [ARCH])["macs"][0] and row["space"] == SPACE.fingerprint
    wide_heads = SPACE.constants.model_copy(update={"head_dim": 24})
    other = elsewhere.replace(constants=wide_heads).smallest()
    save_arch(other, tmp_path / "other.yaml")
    found = run.arch(str(tmp_path / "other.yaml"))
    assert found == other and found.space == SPACE.replace(constants=wide_heads)
    with pytest.raises(UserError, match="has other constants than space"):
        evaluate(run, networks_to_evaluate(run, str(tmp_path / "other.yaml")))

"""The checks of a cluster: what they find, and each fault with its mend."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm

from raynas.cluster.nodes import Node, ask_nodes
from raynas.cluster.resources import Resources
from raynas.commands.main import main
from raynas.costs import cost
from raynas.data.config import DataConfig
from raynas.data.glance import glance
from raynas.errors import UserError
from raynas.phases.check import _data, _run, _teachers, check_cluster
from raynas.phases.check_memory import PROCESS, _evaluating, _largest_winner, _memory, _retrainings, _store
from raynas.phases.check_node import HERE, Probe, look
from raynas.phases.check_place import Finding, Place
from raynas.phases.preflight import preflight
from raynas.presets.preset import override
from raynas.training.memory import weights_bytes
from tests.cluster.simulated import autoscaling_cluster
from tests.data.pictures import write_classes
from tests.small_run import PRESET
from tests.training.training_parts import teacher_file

ROOT = Path(__file__).parents[2]
ALONE = Resources(workers=0, replicas=0)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_this_machine_without_ray(tmp_path: Path) -> None:
    findings = by_name(check_cluster(PRESET, PRESET.data, ALONE, str(tmp_path / "run")))
    assert list(findings) == [
        "versions", "CPUs and GPUs", "data", "run directory", "/dev/shm", "preset", "memory"
    ]  # fmt: skip
    assert all(finding.mend is None for finding in findings.values()), findings
    assert list(tmp_path.iterdir()) == []  # the probe's files and the folder made for them


def test_without_a_cluster_in_a_process_that_has_ray_for_other_work(tmp_path: Path, ray_session: None) -> None:
    assert by_name(check_cluster(None, None, ALONE, str(tmp_path / "run")))["run directory"].mend is None


def test_a_preset_whose_space_follows_from_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "adapt", "--data", "digits"]) == 0
    assert "read as   8 x 8 grey" in capsys.readouterr().out


def test_a_run_directory_that_exists_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert by_name(check_cluster(None, None, ALONE, str(run)))["run directory"].mend is None
    assert run.is_dir() and list(run.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_told() -> None:
    found = by_name(check_cluster(None, None, ALONE, "/dev/null/run"))["run directory"]
    assert found.mend is not None and "/dev/null/run" in found.found


def test_a_bucket(s3_server: object) -> None:
    found = by_name(check_cluster(None, None, ALONE, s3_server("check/run")))["run directory"]  # type: ignore[operator]
    assert found.mend is None and "endpoint_override" not in found.found


def test_nodes_that_share_no_disk_are_told(tmp_path: Path) -> None:
    probe = Probe(str(tmp_path), ".check-1", False)
    (tmp_path / ".check-1").mkdir()  # as on a machine that does not see what was written on another
    found = _run(Place((), ALONE), probe, {HERE: look(None, None)})
    assert found.mend is not None and "a URI such as s3://" in found.mend


def test_data_that_a_node_lacks_is_told(tmp_path: Path) -> None:
    config = DataConfig(name=str(tmp_path / "images"))
    missing = look(config, None)
    write_classes(tmp_path / "images", {"cat": 2, "dog": 2})
    there = look(config, None)
    assert _data(config, {"a": there, "b": there}).mend is None
    found = _data(config, {"a": there, "b": missing})
    assert "b: " in found.found and "no such file or folder" in found.found
    assert found.mend is not None and "every node" in found.mend
    next((tmp_path / "images").rglob("*.png")).write_bytes(b"other")
    assert _data(config, {"a": there, "b": look(config, None)}).mend is not None


def test_a_glance_knows_embedded_sets_apart() -> None:
    assert glance(DataConfig(name="digits")) == glance(DataConfig(name="digits"))
    few = {"digits": "digits", "train": 100, "test": 100}
    clutter = [DataConfig.model_validate({"name": "clutter", "clutter": {**few, "seed": seed}}) for seed in (0, 1)]
    assert len({glance(config) for config in (DataConfig(name="digits"), *clutter)}) == 3


def test_a_preset_too_large_for_memory_is_told() -> None:
    large = override(PRESET, {"recipe.batch_size": 1_000_000})
    found = by_name(check_cluster(large, large.data, ALONE))["memory"]
    assert found.mend is not None and "recipe.accumulate" in found.mend and "activations of 1000000" in found.found


def test_the_memory_of_the_worst_phase_is_told(tmp_path: Path) -> None:
    def memory(**changes: object) -> Finding:
        return by_name(check_cluster(preset := override(PRESET, changes), preset.data, ALONE))["memory"]

    plain = memory()
    assert plain.mend is None and plain.found.startswith("training the supernet needs")
    assert "the rest needs less (retraining " in plain.found and "evaluating " in plain.found
    assert "scoring " in plain.found
    large = memory(**{"retrain.recipe.batch_size": 1_000_000})
    assert large.found.startswith("retraining needs") and "activations of 1000000 image(s)" in large.found
    assert large.mend is not None and "retrain.recipe.accumulate" in large.mend
    resized = memory(**{"retrain.finetune": {"size": 16, "recipe": {"batch_size": 1_000_000}}})
    assert resized.found.startswith("fine-tuning needs") and "retrain.finetune.recipe.accumulate" in str(resized.mend)
    hybrid = override(PRESET, {"space": "digits/nasvit", "search.constraints": {}, "calibration.images": 10**6})
    small = {HERE: replace(look(None, None), memory=900 * 2**20)}
    drawn = _memory(
        Place((), Resources(workers=0, replicas=1)),
        preflight(override(hybrid, {"reference": None}), ALONE, look=False),
        small,
    )
    assert drawn.found.startswith("evaluating needs") and "calibration.images" in str(drawn.mend)
    assert f"1,000,000 calibration images {4 * 10**6 * 8 * 8 / 1e6:.3g} MB" in drawn.found


EVALUATION = """
import resource, sys, torch
torch.set_num_threads(1)
from raynas.cluster.resources import Resources
from raynas.phases.evaluate import evaluate
from raynas.runs.networks import Network
from tests.small_run import SPACE, small_run
evaluate(small_run(sys.argv[1]), [Network(SPACE.largest(), "inherited")], resources=Resources(workers=0, replicas=0))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_an_evaluation_holds_about_what_is_said(tmp_path: Path) -> None:
    run = [sys.executable, "-c", EVALUATION, str(tmp_path / "run")]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, timeout=200, cwd=ROOT)
    (need,) = _evaluating(preflight(PRESET, ALONE, look=False), 10**9)
    assert int(done.stdout) == pytest.approx(need.total + PROCESS, rel=0.3)


def test_teachers_and_the_winner_s_limits_count_in_the_memory(tmp_path: Path) -> None:
    teacher = teacher_file(tmp_path / "teacher.safetensors")
    size = sum(
        t.numel() * t.element_size() for t in timm.create_model("test_resnet", num_classes=10).state_dict().values()
    )
    place = Place((), ALONE)
    taught = preflight(override(PRESET, {"retrain.recipe.teachers": {"models": [teacher]}}), ALONE, look=False)
    plain, (winner,) = preflight(PRESET, ALONE, look=False), _retrainings(place, taught)
    kept = 4 * len(plain.data.train) * 10  # its predictions, since images are not augmented
    (untaught,) = _retrainings(place, plain)
    assert winner.device == untaught.device + size + kept
    largest = preflight(override(PRESET, {"search.constraints": {}}), ALONE, look=False)
    assert _largest_winner(largest) == largest.space.largest()
    limited = _largest_winner(plain)  # of at most 900,000 MACs
    assert 800_000 < cost(plain.space, [limited])["macs"][0] <= 900_000
    assert untaught.device < next(_retrainings(place, largest)).device


def test_a_teacher_of_the_retraining_that_a_node_lacks_is_told(tmp_path: Path) -> None:
    file = tmp_path / "teacher.pth"
    models = [{"timm": "test_vit", "weights": str(file)}]
    taught = override(PRESET, {"retrain.recipe.teachers": {"models": models}})
    place = Place((), ALONE)
    (found,) = _teachers(place, taught)
    assert found.mend is not None and f"{HERE} lacks {file}" in found.found
    file.write_bytes(b"")
    (found,) = _teachers(place, taught)
    assert found.mend is None and not list(_teachers(place, PRESET))


def test_a_retraining_that_would_be_refused_is_told() -> None:
    half = override(PRESET, {"retrain.recipe.amp": "fp16"})
    found = by_name(check_cluster(half, half.data, ALONE))["preset"]
    assert found.mend is not None and "retraining: " in found.mend and "--gpu" in found.mend


def test_rungs_with_more_images_than_there_are_are_refused_before_training() -> None:
    rungs = {"search.rungs": [{"images": 5000, "keep": 0.5}]}
    with pytest.raises(UserError, match="rungs: 5,000 images, and whole scores have"):
        preflight(override(PRESET, rungs), ALONE, look=False)


def test_only_nodes_that_score_need_room_for_many_images() -> None:
    ready = preflight(PRESET, ALONE, look=False)
    ready = replace(ready, estimate=replace(ready.estimate, search_bytes=8 * 10**9))
    head = Node("a", "head", {"object_store_memory": 1e9}, is_head=True)
    for store, fits in ((1e9, False), (9e9, True)):
        worker = Node("b", "worker", {"CPU": 4, "object_store_memory": store}, is_head=False)
        found = _store(Place((head, worker), Resources(workers=1)), ready)
        assert found.mend is None and "head has" not in found.found
        assert ("worker has 1 GB; replicas decode the images anew for each subnet" in found.found) == (not fits)
    ready = replace(ready, estimate=replace(ready.estimate, search_bytes=10**8))  # decoded by the driver on the head
    tiny = replace(head, resources={"object_store_memory": 5e7})
    assert "head has 50 MB" in _store(Place((tiny, worker), Resources(workers=1)), ready).found


def test_calibration_images_are_counted_in_the_store() -> None:
    hybrid = override(PRESET, {"space": "digits/nasvit", "search.constraints": {}, "reference": None})
    ready = preflight(override(hybrid, {"calibration.images": 2**20 // 2**6}), ALONE, look=False)
    size = 4 * 2**14 * ready.space.channels * ready.space.input_size[0] * ready.space.input_size[1]
    place = Place((Node("b", "worker", {"CPU": 4, "object_store_memory": 1e9}, is_head=False),), Resources(workers=1))
    assert f"with 16,384 calibration images {size / 1e6:.3g} MB" in _store(place, ready).found
    without = override(hybrid, {"calibration.images": 128})
    rest = weights_bytes(ready.space)  # images are decoded anew
    node = replace(place.nodes[0], resources={"CPU": 4, "object_store_memory": rest + size - 1})
    for preset, fits in ((ready.preset, False), (without, True)):
        found = _store(replace(place, nodes=(node,)), replace(ready, preset=preset))
        assert (found.mend is None) == fits


def test_on_ray(ray_session: None, tmp_path: Path) -> None:
    findings = by_name(check_cluster(PRESET, PRESET.data, Resources(workers=0, replicas=2), str(tmp_path / "run")))
    assert all(finding.mend is None for finding in findings.values()), findings
    assert "2 x (1 CPU) can be had" in findings["nodes"].found
    assert "288 decoded images" in findings["object store"].found


def test_nothing_is_said_of_a_node_that_does_not_answer(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_late(nodes: Any, question: Any, *arguments: Any, limit_s: float) -> Any:
        return ask_nodes(nodes, lambda *_: time.sleep(60), *arguments, limit_s=0.5)

    monkeypatch.setattr("raynas.phases.check_place.ask_nodes", ask_late)
    findings = by_name(check_cluster(None, DataConfig(name="digits"), Resources(workers=0, replicas=1), None))
    assert set(findings) == {"nodes", "versions"}
    found, mend = findings["versions"].found, findings["versions"].mend
    assert "no answer within" in found and mend is not None and "busy" in mend


def test_the_command_ends_with_2_and_the_mend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "digits", "--run", "/dev/null/run"]) == 2
    out, err = capsys.readouterr()
    assert "FAILED  run directory" in out and "mend: give a folder or bucket" in out
    assert err == "raynas: 1 of 7 checks failed: run directory (see above)\n"
    assert "classes" not in out  # images are read once the rest is well


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_from_no_nodes(tmp_path: Path) -> None:
    check = (sys.executable, "-m", "raynas", "check", "digits")
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        code, output = cluster.run(*check, "--workers", "2", "--run", str(tmp_path / "run"), PYTHONPATH=str(ROOT))
        assert code == 0, output
        assert "it can grow to 2 x worker (1 CPU); 2 x (1 CPU) can be had" in output
        assert "equal on 3 node(s)" in output and "written, read and deleted by 3 node(s)" in output
        assert "2 worker(s) by gloo over lo of 127.0.0.1: 16 MiB right" in output
        code, output = cluster.run(*check, "--workers", "4", PYTHONPATH=str(ROOT))
        assert code == 2 and "raise max_workers of worker" in output
        code, output = cluster.run(*check, "--workers", "2", "--cpus", "2", PYTHONPATH=str(ROOT))
        assert code == 2 and "no node type holds 2 CPU" in output

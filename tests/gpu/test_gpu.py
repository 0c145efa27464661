"""Everything that needs a GPU: numbers, training in half precision, replicas, latency, energy, memory and speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from raynas.bench import PARTS
from raynas.bench.all import bench_all
from raynas.bench.mixed import bench_mixed
from raynas.cluster.connection import ray_cluster
from raynas.cluster.resources import Resources
from raynas.energy import counters
from raynas.latency.timing import Conditions, time_arch
from raynas.nets import build_supernet
from raynas.phases.check_workers import all_reduce
from raynas.phases.evaluate import evaluate
from raynas.phases.retrain import retrain
from raynas.phases.teachers import load_teachers
from raynas.progress.reporter import Reporter
from raynas.runs.networks import Network
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.scoring.replica import device_name
from raynas.space import load_space
from raynas.training.context import Context, DistributedContext, check_connection
from raynas.training.loop import Trainer, train_loop
from raynas.training.memory import training_memory
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe
from tests.families.test_autoformer_golden import DATA, SUBNETS, golden_arch, golden_supernet
from tests.gpu.conftest import Tell
from tests.scoring.test_calibrated_scores import make_hybrid_run
from tests.small_run import SPACE, small_run
from tests.training.training_parts import few


@pytest.mark.parametrize("fused", [False, True])
def test_golden_logits(device: str, fused: bool, tell: Tell) -> None:
    with np.load(DATA / "autoformer_head64.npz") as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored}
    supernet = golden_supernet(arrays).to(device)
    images, worst = arrays["input"].to(device), 0.0
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION] if fused else [SDPBackend.MATH]
    with torch.no_grad(), sdpa_kernel([*kernels, SDPBackend.MATH]):
        for subnet in SUBNETS:
            logits = supernet(images, golden_arch(supernet.space, subnet)).cpu()
            torch.testing.assert_close(logits, arrays[f"logits_gp/{subnet}"], rtol=0, atol=1e-4)
            worst = max(worst, float((logits - arrays[f"logits_gp/{subnet}"]).abs().max()))
    tell(f"golden logits, {'fused' if fused else 'plain'} attention", f"off by {worst:.1e} at most")


def trainer(device: str, amp: Literal["none", "bf16", "fp16"], epochs: int = 3) -> Trainer:
    recipe = Recipe(epochs=epochs, batch_size=32, lr=2e-3, lr_base_batch=None, warmup_epochs=0, amp=amp)
    data = few()
    space = SPACE.with_input(size=data.size, channels=data.channels, classes=data.classes)
    made = Trainer(space, data, Plan(), recipe, Context(device=device), None, "train", None, build_supernet)
    made.resume()
    return made


@pytest.mark.parametrize("amp", ["none", "bf16", "fp16"])
def test_training(device: str, amp: Literal["none", "bf16", "fp16"], tell: Tell) -> None:
    if amp == "fp16" and device == "cpu":
        pytest.skip("fp16 is trained on GPUs alone")
    made = trainer(device, amp)
    made.train()
    losses = [entry["loss"] for entry in made.state.history]
    assert losses[-1] < losses[0]
    tell(f"training in {amp}", "loss " + ", ".join(f"{loss:.3f}" for loss in losses))


def test_an_overflow_is_skipped(cuda: str, tell: Tell) -> None:
    made = trainer(cuda, "fp16")
    made.state.scaler.scale(torch.zeros(1, device=cuda))  # it takes its first scale only now
    made.state.scaler.update(2.0**26)  # the first steps' gradients overflow; each halves the scale
    made.train()
    assert made.state.scaler.get_scale() < 2.0**26
    assert all(bool(p.isfinite().all()) for p in made.model.parameters())
    assert made.state.history[-1]["step"] == 9
    tell("fp16 after an overflow", f"scale 2**26 -> {made.state.scaler.get_scale():.3g}, weights finite")


def test_one_rank_of_nccl(device: str, tmp_path: Path, tell: Tell) -> None:
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        context = DistributedContext(device=device)
        check_connection(context)
        tensor = torch.ones(10, device=device)
        context.all_reduce(tensor)
        assert tensor.sum().item() == 10 and context.gather("x") == ["x"]
    finally:
        dist.destroy_process_group()
    tell("process group of one rank", backend)


def test_workers_of_ray_train(device: str, tell: Tell) -> None:
    count = 2 if device == "cpu" else min(2, torch.cuda.device_count())
    resources = Resources(workers=count, replicas=0, gpus=0 if device == "cpu" else 1)
    with ray_cluster(cpus=count):
        accounts = all_reduce(resources, Reporter())
    assert len(accounts) == count and {account["backend"] for account in accounts} <= {"gloo", "nccl"}
    slowest = max(account["seconds"] for account in accounts)
    tell(f"all-reduce of 16 MiB, {count} worker(s)", f"{accounts[0]['backend']}, {slowest * 1e3:.1f} ms")


def test_replicas(device: str, tmp_path: Path, tell: Tell) -> None:
    rng = np.random.default_rng(0)
    archs = [SPACE.sample(rng) for _ in range(4)]
    with LocalScorer(small_run(tmp_path / "cpu"), images=100) as scorer:
        expected = [score["accuracy"] for score in scorer.score(archs)]
    gpus = 0 if device == "cpu" else 1
    sharing: list[int | Literal["fit"]] = [1, 2, "fit"] if gpus else [1]
    for per_gpu in sharing:
        run = small_run(tmp_path / f"{per_gpu}")
        replicas = 4 if per_gpu == "fit" else per_gpu
        began = time.monotonic()
        with ScorePool(run, replicas=replicas, gpus=gpus, per_gpu=per_gpu, images=100) as pool:
            pool.supervisor.wait_for_all()
            found = [score["accuracy"] for score in pool.score(archs)]
        np.testing.assert_allclose(found, expected, atol=0.03)  # an image or two may fall on the other side
        tell(f"{replicas} replica(s) a card ({per_gpu})", f"{time.monotonic() - began:.1f} s with their start")


def test_latency_is_steady(device: str, tell: Tell) -> None:
    arch = load_space("autoformer/tiny").largest()
    first, again = (time_arch(arch, Conditions(device=device, batch_size=8, seconds=1.0)) for _ in range(2))
    assert abs(first.ms - again.ms) < (0.5 if device == "cpu" else 0.15) * first.ms
    tell("latency of autoformer/tiny, batch 8", f"{first.ms:.2f} ms, again {again.ms:.2f} ms")


def test_energy(cuda: str, tell: Tell) -> None:
    pytest.importorskip("pynvml")

    def joules() -> float:
        reading = counters.read_counters(counters.POWERCAP, counters.GPUS)
        return sum(counter.joules for counter in reading.counters.values() if counter.kind == "GPU")

    before, began = joules(), time.monotonic()
    matrix = torch.randn(4096, 4096, device=cuda)
    while time.monotonic() - began < 3:
        for _ in range(20):
            matrix = F.normalize(matrix @ matrix)
        torch.cuda.synchronize()
    watts = (joules() - before) / (time.monotonic() - began)
    assert 20 < watts < 2000
    tell("energy of the GPUs at work", f"{watts:.0f} W")


def test_compiled(device: str, tell: Tell) -> None:
    subnet = build_supernet(SPACE).extract(SPACE.largest()).eval().to(device)
    images = torch.randn(8, SPACE.channels, *SPACE.input_size, device=device)
    began = time.monotonic()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(subnet)(images), subnet(images), rtol=1e-3, atol=1e-4)
    tell("torch.compile", f"{time.monotonic() - began:.1f} s to the first result")


@pytest.mark.parametrize("amp", ["none", "bf16"])
def test_peak_memory(device: str, amp: Literal["none", "bf16"], tell: Tell) -> None:
    """Of a training whose steps include the largest subnet."""
    name, images = ("digits/vit", 32) if device == "cpu" else ("autoformer/tiny", 64)
    data = few(images, 2).resized(load_space(name).input_size)
    space = load_space(name).with_input(size=data.size, channels=data.channels, classes=data.classes)
    health = {"probe_every": 2}  # none in the only epoch
    recipe = Recipe.model_validate({"epochs": 1, "batch_size": images, "lr": 1e-3, "amp": amp, "health": health})
    plan = Plan.model_validate({"sampler": "sandwich"})
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    state = train_loop(space, data, plan, recipe, Context(device=device))
    said, peak = training_memory(space, recipe), state.history[-1]["memory"]
    if device == "cpu":  # of the whole process
        assert peak > said.total
    else:
        assert 0.6 < said.total / peak < 1.5
    tell(f"peak memory of the trainer in {amp}", f"{peak / 1e9:.2f} GB; said {said.total / 1e9:.2f} GB")


def test_batch_norms_are_calibrated(device: str, tmp_path: Path, tell: Tell) -> None:
    """As on the CPU: of a subnet, in its score, and of a teacher."""
    run = make_hybrid_run(tmp_path / "run", space := load_space("digits/nasvit"))
    archs = [space.largest(), space.sample(np.random.default_rng(0))]
    worst = 0.0
    for arch in archs:
        expected = run.model(Network(arch, "inherited")).state_dict()
        for name, tensor in run.supernet(device).subnet(arch).state_dict().items():
            torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-3, atol=1e-4)
            worst = max(worst, float((tensor.cpu() - expected[name]).abs().max()))
    scores = []
    for place in ("cpu", device):
        with LocalScorer(make_hybrid_run(tmp_path / f"scored-{place}", space), device=place) as scorer:
            scores.append([row["accuracy"] for row in scorer.score(archs)])
    np.testing.assert_allclose(scores[1], scores[0], atol=0.03)  # an image or two may fall on the other side
    settings = Recipe.model_validate(
        {"epochs": 1, "batch_size": 32, "lr": 1e-3, "teachers": {"models": [{"run": str(run.path)}]}}
    )
    teachers = load_teachers(settings, few())
    assert teachers is not None
    teachers.join(Context(device=device))
    expected = run.model(Network(archs[0], "inherited")).state_dict()
    for name, tensor in teachers.teachers[0].network.state_dict().items():
        assert tensor.device.type == torch.device(device).type
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-3, atol=1e-4)
    tell("calibrated batch norms", f"off by {worst:.1e} at most from those of the CPU")


def test_a_training_and_a_task_of_ray(device: str, tmp_path: Path, tell: Tell) -> None:
    """A worker and a task have the GPU, and do what this process does."""
    recipe = Recipe(epochs=3, batch_size=128, lr=2e-3, lr_base_batch=None, warmup_epochs=0)
    arch, found, seconds = SPACE.largest(), [], []
    for workers in (0, 1):
        resources = Resources(workers=workers, replicas=workers, gpus=0 if device == "cpu" else 1)
        began, run = time.monotonic(), small_run(tmp_path / f"{workers}")
        (trained,) = retrain(run, [arch], recipe, resources=resources)
        (evaluated,) = evaluate(run, [Network(arch, "scratch", 0, trained["path"])], resources=resources)
        seconds.append(time.monotonic() - began)
        assert {row["device"] for row in (trained, evaluated)} == {device_name(torch.device(device))}
        found.append([trained["accuracy"], evaluated["accuracy"], trained["loss"]])
    np.testing.assert_allclose(found[1], found[0], atol=0.05)
    tell("training and evaluating", f"{seconds[0]:.1f} s here, {seconds[1]:.1f} s by a worker and a task of Ray")


def test_ratios(device: str, tell: Tell) -> None:
    space, images = ("digits/vit", 16) if device == "cpu" else ("vit_resnas/tiny", 64)
    found = [bench_mixed(space, batch_size=images, archs=4, rounds=5, device=device) for _ in range(3)]
    for timings in zip(*([row for row in rows if row.name.endswith("/ largest")] for rows in found), strict=True):
        ratios = sorted(float(np.median(timing.ratios)) for timing in timings)
        assert all(np.isfinite(ratios))
        tell(f"bench mixed: {timings[0].name}", f"{ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})")


def test_ratios_of_bench_all(device: str, tell: Tell) -> None:
    """Rows without a reference have a speed alone. On a CPU only one part, since all take minutes."""
    rows = bench_all(("archs",) if device == "cpu" else PARTS, rounds=1 if device == "cpu" else 3, device=device)
    for row in rows:
        values = row.ratios or row.ours
        assert all(np.isfinite(values)) and min(values) > 0
        unit = "" if row.reference else f" {row.unit}"
        tell(f"bench all: {row.name}", f"{np.median(values):,.3f}{unit} ({min(values):,.3f} to {max(values):,.3f})")

"""Every example of the help, the README and the documentation: run on a small run, or taken as far as can be here."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import timm
import torch
from torch import Tensor

import raynas
from raynas.commands.main import main, make_parser
from raynas.documents import parse_overrides, parse_yaml, write_yaml
from raynas.phases.inputs import space_of
from raynas.phases.pipeline import make_reference
from raynas.phases.preflight import check_later
from raynas.phases.retrain import retrain as retrain_networks
from raynas.presets.preset import Preset, load_preset, override
from raynas.runs.run import Run
from raynas.space import Space, load_space
from raynas.space.load import SPACES
from tests.data.pictures import write_classes
from tests.families.released import released_state
from tests.families.test_nasvit_checkpoint import released_shapes as nasvit_shapes
from tests.families.test_resnas_checkpoint import released_shapes as resnas_shapes
from tests.small_run import PRESET, SPACE, small_run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

SMALL_SCENES = [
    *(f"--scenes={each}" for each in ("size=[32,32]", "side=[12,20]", "train=4", "test=2")),
    *("--set=epochs=1", "--set=batch_size=2"),
]

SMALL = {
    "demo": ["--workers", "0", "--replicas", "0"],
    "pipeline": ["--workers", "0", "--replicas", "0"],
    "adapt": ["--workers", "0", "--replicas", "0", "--set=adapt.images=16", "--set=adapt.untrained=6"],
    "check": ["--workers", "0", "--replicas", "0"],
    "train": ["--workers", "0"],
    "search": ["--replicas", "0", "--images", "50"],
    "retrain": ["--parallel", "1", "--seeds", "1"],
    "rank": ["--replicas", "0", "--archs", "8", "--buckets", "2"],
    "evaluate": [],
    "export": ["--no-onnx"],
    "report": [],
    "watch": ["--once"],
    "runs": [],
    "compare": [],
    "cost": [],
    "evolve-space": [
        *("--workers", "1", "--replicas", "1"),
        *(f"--set=space_evolution.{key}" for key in ("iterations=1", "archs=8", "fewest=1")),
    ],
    "ablate": [
        *("--seeds", "1", "--workers", "0", "--replicas", "0"),
        *(f"--set={key}" for key in ("recipe.epochs=1", "retrain.recipe.epochs=1", "search.evaluations=8")),
    ],
    "tune": ["--workers", "0", "--replicas", "0", "--at-a-time", "1"],
    "bench all": ["--device", "cpu", "--rounds", "1", "--only", "precision"],
    "bench archs": ["--rounds", "1", "--candidates", "4000"],
    "bench forward": ["--rounds", "1", "--batch-size", "1"],
    "bench latency": ["--device", "cpu", "--dtype", "fp32", "--batch-size", "1", "--seconds", "0.001"],
    "bench segment": [*SMALL_SCENES, "--width=8"],
    "bench detect": [*SMALL_SCENES, "--width=32"],
    "bench window": ["--draws", "10"],
    "bench mixed": ["--device", "cpu", "--archs", "2", "--batch-size", "2", "--rounds", "1"],
    "bench search": ["--evaluations", "20", "--seeds", "1"],
    "bench tune": ["--seeds", "1", "--samplers", "random"],
}
"""Options that make a command small, and keep it without Ray: an option that is given again counts as given last."""

SMALLER = {
    r"(^|[ '])/data/\w+": r"\1data",
    r" --gpu": "",
    r"s3://bucket/imagenet": "data",
    r"epochs=\d+": "epochs=1",
    r"--size (280|320)": "--size 12",
    r"--train \d+": "--train 2",
    r"tau=\[[\d.,]+\]( --try|$)": r"tau=[0.2]\1",
    r"seed=\[0,1,2\]": "seed=[1]",
    r"tau=\[[\d.,]+\] --trials 3": "tau=[0.2,0.4] --trials 2",
    r"--from trained$": "--from trained --size 12",
    r"\{threads: 1\}\}": (
        "{threads: 1, timings: 20, seconds: 0.001}, evaluations: 24, "
        "options: {samples: 12, held_out: 6, verify: 6, evolution: {generations: 1, initial: 8, parents: 4}}}"
    ),
    r"latency=\{threads: 1\}": "latency={threads: 1, timings: 20, seconds: 0.001}",
    r"4\.5e9": "9.0e+5",
    r"segment s3/published/tiny": "segment digits/deit",
    r"^adapt \w+_patch16_224( --weights \S+)?": "adapt runs/a",
    r"vit_resnas/tiny|autoformer/tiny|twins_small": "digits/vit",
    r"vitas/digits": "digits",
}
"""What else is written smaller in a command line: its data, its image size, its networks."""

BEFORE = {
    r"retrain .*--from trained": ["retrain {run} --parallel 1 --seeds 1"],
    r"export .*--size 280": [
        "retrain {run} --parallel 1 --seeds 1",
        "retrain {run} --from trained --size 12 --parallel 1 --seeds 1 --set retrain.finetune.recipe.epochs=1",
    ],
    r"--arch fast/front": [
        "search {run} --name fast --replicas 0 --set 'search={name: random, objectives: {accuracy: max, macs: min}, "
        "evaluations: 4}'"
    ],
    r"--arch phone": ["search {run} --name phone --replicas 0 --images 50"],
    r"(--space|cost) my_space": ["adapt runs/a --write-space my_space.yaml"],
}
"""Commands that an example follows, on the shared run."""

NOT_HERE = {
    r"^import ": "its weights are a download; see below, test_import.py and test_import_timm.py",
}
"""Why an example is parsed, with its preset checked as before a training, and not run."""

SLOW = (
    r"--head (fcos|upernet)|^demo|^pipeline|rank .*(--seeds|--finetune)|^evolve-space|^ablate|^tune|^adapt (?!deit)"
    r"|--name both|latency|runs/vitas|flowers --seeds|rank runs/flowers"
    r"|^bench archs( vitas/twins_small)?$|^bench all$|^bench all --only"
)
"""Examples that need Ray for minutes, wait for timings, or repeat at some length what another one shows."""

SMALL_PRESET = {
    "space": "digits/vit",
    "recipe": {"epochs": 1, "warmup_epochs": 0, "batch_size": 256, "lr": 1e-3, "health": {"probe_images": 100}},
    "search": {"evaluations": 8, "constraints": {"macs": [None, 2.0e6]}},
    "retrain": {"train_on": "train", "recipe": {"epochs": 1, "warmup_epochs": 0, "batch_size": 256}},
    "tune": {"params": {"recipe.lr": {"low": 1e-4, "high": 1e-2, "log": True}}, "trials": 2},
}
"""Takes the place of every shipped preset in what is run."""


def commands() -> Iterator[tuple[str, str]]:
    """Each example's place and command line, without the program."""
    found: dict[str, str] = {}
    for name, parser in make_parser().with_commands(""):
        for line in (parser.epilog or "").splitlines():
            if line.startswith("  raynas "):
                found.setdefault(re.split(r"\s{3,}", line.strip())[0], f"raynas {name} --help")
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\.venv/bin/)?raynas ", line):
                    found.setdefault(line.partition(" #")[0].strip().removeprefix(".venv/bin/"), page.name)
        for line in re.findall(r"`raynas ([a-z][^`]*)`", page.read_text().replace("\n", " ")):
            if " " in line and not re.search(r"^\w+ --|\b[A-Z]{3,}\b|\.\.\.|RUN|SPACE", line):
                found.setdefault(f"raynas {' '.join(line.split())}", page.name)
    for line, place in found.items():
        yield place, line.split("raynas ", 1)[1]


EXAMPLES = list(commands())


def why_not_here(line: str) -> str | None:
    return next((reason for pattern, reason in NOT_HERE.items() if re.search(pattern, line)), None)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run whose search is done, with a reference as the pipeline makes one."""
    run = small_run(tmp_path_factory.mktemp("examples") / "run")
    assert main(["search", str(run.path), "--replicas", "0"]) == 0
    with run.lock():
        make_reference(run, PRESET, run.arch("best"), SPACE)
    return run


@pytest.fixture(scope="module")
def exported(searched: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The winner of the shared run, exported."""
    folder = tmp_path_factory.mktemp("exported") / "my_network"
    assert main(["export", str(searched.path), "--to", str(folder), "--no-onnx"]) == 0
    return folder


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 40 and {"raynas  --help", "README.md", "raynas train --help"} <= {
        place for place, _ in EXAMPLES
    }


@pytest.mark.parametrize(("place", "line"), [(place, line) for place, line in EXAMPLES if why_not_here(line)])
def test_an_example_that_is_not_for_here_is_understood(place: str, line: str) -> None:
    options = make_parser().parse_args(shlex.split(line))
    if getattr(options, "preset", None) is not None:
        changes = parse_overrides(options.overrides)
        if str(changes.get("space", "")).startswith("runs/"):
            del changes["space"]
        preset = load_preset(options.preset, changes)
        preset.recipe.micro_batch(max(1, getattr(options, "workers", 1)))
        check_later(preset, space_of(preset))
    elif getattr(options, "changes", None):
        override(load_preset("s3"), parse_overrides(options.overrides))


@pytest.fixture(scope="module")
def small_presets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped files, with a small preset in the place of each, and the space that CONTRIBUTING.md adds."""
    folder = tmp_path_factory.mktemp("shipped") / "spaces"
    shutil.copytree(SPACES, folder)
    for file in folder.rglob("preset*.yaml"):
        data = "digits" if {"digits", "truths"} & set(file.parts) else None
        write_yaml(file, {**SMALL_PRESET, **({"data": data} if data else {})})
    (folder / "mine").mkdir()
    (folder / "mine" / "small.yaml").write_text(yaml_of(ROOT / "CONTRIBUTING.md")[0])
    return folder


@pytest.fixture
def workplace(
    searched: Run,
    small_presets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A current directory with the shared run as `runs/a` and grey images of 8 x 8 pixels in `data`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raynas.space.load.SPACES", small_presets)
    monkeypatch.setattr("raynas.presets.preset.SPACES", small_presets)
    shutil.copytree(str(searched.path), "runs/a")
    return tmp_path


def put_run(searched: Run, where: str) -> None:
    """Make a run directory that an example is about."""
    if where.startswith("s3://"):
        small_run(where)
    elif not Path(where).exists():
        shutil.copytree(str(searched.path), where)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        pytest.param(place, line, marks=[pytest.mark.slow] if re.search(SLOW, line) else [])
        for place, line in EXAMPLES
        if not why_not_here(line)
    ],
)
def test_an_example_runs(
    place: str,
    line: str,
    searched: Run,
    workplace: Path,
    s3_server: Callable[[str], str],
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if re.search("bench (forward|segment|detect)", line):
        shutil.copytree(exported, "my_network")
    if "--onnx" not in line:
        monkeypatch.setattr("raynas.phases.export._missing_for_onnx", lambda: ["onnx"])
    again = line.replace("s3://bucket/runs/first", shlex.quote(bucket := s3_server(f"{workplace.name}/runs/first")))
    if "s3://bucket/runs" in again:
        put_run(searched, bucket)
        again = again.replace("s3://bucket/runs", shlex.quote(s3_server(f"{workplace.name}/runs")))
    for long, short in SMALLER.items():
        again = re.sub(long, short, again)
    argv = shlex.split(again)
    if "data" in argv:
        write_classes(Path("data"), {"1": 12, "2": 12, "3": 12}, size=(8, 8), mode="L")
    if "truth.parquet" in line:
        rows = searched.store.read("scores").select(["network", "values", "accuracy"])
        pq.write_table(rows.slice(0, 6), "truth.parquet")
    if "my_tuning.yaml" in line:
        write_yaml("my_tuning.yaml", SMALL_PRESET["tune"])
    if "best.yaml" in line:
        SPACE.save("space.yaml")
        argv[argv.index("space=runs/e/spaces/best.yaml")] = "space=space.yaml"
    options = vars(make_parser().parse_args(argv))
    run: Any = options.get("run", options.get("run_dir"))
    verb = next(verb for verb in SMALL if line.startswith(verb))
    if verb in ("search", "evaluate") and (verb == "search" or "--arch front" in line):
        small_run(run := f"{run}-new")
        argv[1] = run
    elif verb in ("train", "pipeline", "adapt", "evolve-space", "ablate", "tune"):  # which make a run directory
        shutil.rmtree(run or "", ignore_errors=True)
        if verb == "adapt":
            put_run(searched, options["model"])
    elif run is not None and verb != "demo":
        put_run(searched, run)
    for each in options.get("runs", ()):
        put_run(searched, each)
    before = next((lines for pattern, lines in BEFORE.items() if re.search(pattern, line)), [])
    if "--arch front" in line:
        several = "search={name: random, objectives: {accuracy: max, macs: min}, evaluations: 4}"
        assert main(["search", run, "--replicas", "0", "--set", several]) == 0
    for earlier in before:
        assert main(shlex.split(earlier.replace("{run}", str(run)))) == 0, capsys.readouterr().err
    assert main([*argv, *SMALL[verb]]) == 0, capsys.readouterr().err
    if verb in ("train", "pipeline") or (verb == "adapt" and run is not None):
        assert Run(run).exists("supernet.json")
    elif verb == "ablate":
        assert Path(run, "ablation.html").exists()
    elif verb == "tune":
        assert Run(run).exists("study.db")
    elif verb == "evolve-space":
        assert list(Path(run).rglob("spaces/best.yaml"))


def released(system: str, checkpoint: str) -> dict[str, Tensor]:
    """Weights of the names and shapes of a download."""
    if system == "timm":
        return timm.create_model(checkpoint).state_dict()
    if system == "s3":  # merging of patches ends a stage there, and begins the next one in timm's model
        state = timm.create_model("swin_s3_tiny_224").state_dict()
        earlier = {f"layers.{stage}.downsample": f"layers.{stage - 1}.downsample" for stage in (1, 2, 3)}
        found = {name.replace("head.fc.", "head."): tensor for name, tensor in state.items()}
        return {name.replace(name[:19], earlier.get(name[:19], name[:19])): found[name] for name in found}
    if system == "autoformer":
        return released_state(256, 14, 4, 64, 1024, 16, 14, 1000, 14)
    shapes = (
        nasvit_shapes(load_space("nasvit/released"), 1000)
        if system == "nasvit"
        else resnas_shapes(load_space("vit_resnas/tiny"), 224, 1000)
    )
    return {name: torch.rand(tensor.shape) for name, tensor in shapes.items()}


@pytest.fixture(scope="module")
def thousand_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny images in as many classes as ImageNet has."""
    folder = tmp_path_factory.mktemp("imagenet")
    for split, count in (("train", 12), ("val", 1)):
        write_classes(folder / split, {f"n{k:04}": count for k in range(1000)}, size=(8, 8))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for _, line in EXAMPLES if line.startswith("import ")])
def test_an_example_of_an_import_reads_the_file_of_a_release(
    line: str, thousand_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = shlex.split(line.replace("/data/imagenet", str(thousand_classes)))
    _, system, checkpoint = argv[:3]
    torch.save(released(system, checkpoint), file := "weights.pth" if system == "timm" else checkpoint)
    assert main([*argv, "--weights", file] if system == "timm" else argv) == 0
    space = Run(argv[argv.index("--run") + 1]).space
    assert space.classes == 1000 and (space.cardinality() == 1) == (system in ("timm", "s3"))


CODE = {
    "autoformer/tiny": "digits/vit",
    "raynas.ScorePool(run, replicas=4)": "raynas.LocalScorer(run)",
    '{"macs": (None, 1.0e6)})': '{"macs": (None, 1.0e6)}, evaluations=4)',
    '{"macs": (None, 1.8e9)}, seed=0)': '{"macs": (None, 1.8e9)}, evaluations=4, seed=0)',
    "trials=20,": "trials=2,",
    "space, 300)": "space, 20)",
    "Conditions(batch_size=8)": "Conditions(batch_size=1, seconds=0.001)",
    "size=280": "size=12",
    "resized(280)": "resized(12)",
}
"""What makes a page's Python small."""


def blocks_of(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def python_of(page: Path) -> list[str]:
    return blocks_of(page, "python")


def yaml_of(page: Path) -> list[str]:
    return blocks_of(page, "yaml")


SLOW_PAGES = ("tuning.md",)
"""Pages whose Python needs Ray for long; the README shows the same shortly, and test_tune_function.py runs that."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW_PAGES else [])
        for page in PAGES
        if python_of(page)
    ],
)
def test_python_of_a_page_runs(
    page: Path, searched: Run, exported: Path, workplace: Path, s3_server: Callable[[str], str]
) -> None:
    """Block after block in one namespace, which has what pages speak of without making it."""
    import duckdb
    import numpy as np
    from PIL import Image

    for name in ("runs/first", "runs/other"):
        put_run(searched, name)
    if "my_network" in page.read_text():
        shutil.copytree(exported, "my_network")
    if page.name == "own_parts.md":
        Path("my_space.yaml").write_text(yaml_of(page)[0])
    budgets = page.name == "budgets.md"
    space = load_space("vitas/twins_small" if budgets else "digits/vit")
    run = Run("runs/a")
    family = load_space("digits/nasvit") if page.name == "nasvit.md" else SPACE
    supernet = raynas.build_supernet(family)
    x = torch.randn(4, family.channels, *family.input_size)
    known: dict[str, Any] = {
        "raynas": raynas,
        "duckdb": duckdb,
        "space": space,
        "run": run,
        "recipe": PRESET.recipe,
        "supernet": supernet,
        "arch": family.sample(np.random.default_rng(0)),
        "x": x,
        "batches": [x, x],
        "image": Image.new("L", (8, 8)),
    }
    if page.name == "after_search.md":
        retrain_networks(run, [run.arch("best")], PRESET.recipe, train_on="train", parallel=1)
    with raynas.LocalScorer(run) as known["pool"]:
        for block in python_of(page):
            if page.name == "README.md" and "raynas.tune(" in block:
                continue
            compile(block, page.name, "exec")
            if "s3://" in block:
                put_run(searched, bucket := s3_server(f"{workplace.name}/code"))
                block = re.sub(r"s3://[^\"]*", bucket, block)
            for name in re.findall(r"\braynas\.(\w+)\(", block):  # also of what is replaced
                assert callable(getattr(raynas, name))
            for long, short in CODE.items():
                block = block.replace(long, short)
            exec(compile(block, page.name, "exec"), known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_of_a_page_is_valid(page: Path) -> None:
    for block in yaml_of(page):
        data = parse_yaml(block, page.name).data
        if isinstance(data, dict) and "family" in data:
            assert Space.from_dict(data).cardinality() > 1
        elif isinstance(data, dict) and data.keys() <= Preset.model_fields.keys() and "teachers" not in block:
            own = {key: value for key, value in data.items() if "my_parts" not in str(value)}
            tokens = "digits/preset_vit_resnas" if "token_labels" in block or "sort_channels" in block else "digits"
            override(load_preset(tokens), own)

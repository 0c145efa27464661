"""Every example of the help, the README and the documentation: run on a small run, or taken as far as can be here."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.commands.main import main, make_parser
from raynas.commands.parser import Parser
from raynas.config import parse_yaml
from raynas.phases.pipeline import make_reference
from raynas.phases.preflight import check_later
from raynas.presets.preset import Preset, load_preset, override, parse_overrides
from raynas.runs.run import Run
from raynas.space import Space, load_space
from tests.small_run import PRESET, SPACE, small_run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

SMALL = {
    "train": ["--workers", "0", "--set", "recipe.health.probe_images=100"],
    "search": ["--replicas", "0", "--images", "50"],
    "retrain": ["--parallel", "1", "--seeds", "1", "--set", "retrain.recipe.epochs=1"],
    "rank": ["--replicas", "0", "--archs", "8", "--buckets", "2"],
    "evaluate": [],
    "export": ["--no-onnx"],
    "report": [],
    "cost": [],
    "bench forward": ["--rounds", "1"],
    "bench latency": ["--seconds", "0.01"],
    "bench window": ["--draws", "10"],
    "bench mixed": ["--rounds", "1"],
}
"""Commands that are run, and what makes them small: options that are given again count as given last."""

NOT_HERE = {
    r"/data/|/path/to": "the data is the user's",
    r"^import ": "a released checkpoint is the user's",
    r"--gpu|cuda": "needs a GPU",
    r"mine/small": "the file is the reader's; see the test of code on pages",
    r"s3://": "the bucket is the user's",
    r"truth\.parquet|my_network --batch": "the file is the user's",
    r"--(from trained|size 280)": "takes minutes; see test_finetune_resized.py",
    r"--train 40|--train 50": "trains dozens of networks; see test_rank.py",
    r"--name fast|fast/front": "times hundreds of networks; see test_latency_search.py",
    r"--arch front": "its search has several objectives; see test_evaluate.py",
    r"evolve-space|runs/[efg]\b|trials/": "takes minutes; see tests/outer",
    r"^(demo|pipeline) ?": "takes minutes; see test_pipeline.py",
    r"bench (search|mixed|window)": "takes minutes; see tests/bench",
    r"bench latency autoformer": "times a network of ImageNet's size; see tests/timing",
}
"""Why an example is parsed, with its preset checked as before a training, and not run."""


def commands() -> Iterator[tuple[str, str]]:
    """Each example's place and command line, without the program."""
    found: dict[str, str] = {}
    for name, parser in parsers(make_parser(), ""):
        for line in (parser.epilog or "").splitlines():
            if line.startswith("  raynas "):
                found.setdefault(re.split(r"\s{3,}", line.strip())[0], f"raynas {name} --help")
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(\.venv/bin/)?raynas ", line):
                    found.setdefault(line.partition(" #")[0].strip(), page.name)
        for line in re.findall(r"`raynas ([a-z][^`]*)`", page.read_text().replace("\n", " ")):
            if " " in line and not re.search(r"^\w+ --|\b[A-Z]{3,}\b|\.\.\.|RUN|SPACE", line):
                found.setdefault(f"raynas {' '.join(line.split())}", page.name)
    for line, place in found.items():
        yield place, line.split("raynas ", 1)[1]


def parsers(parser: Parser, name: str) -> Iterator[tuple[str, Parser]]:
    parser.load()
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from parsers(inner, f"{name} {verb}".strip())


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


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 40 and {"raynas  --help", "README.md", "raynas train --help"} <= {
        place for place, _ in EXAMPLES
    }


@pytest.mark.parametrize(("place", "line"), [(place, line) for place, line in EXAMPLES if why_not_here(line)])
def test_an_example_that_is_not_for_here_is_understood(place: str, line: str) -> None:
    options = make_parser().parse_args(shlex.split(line))
    if getattr(options, "preset", None) is not None:
        changes = parse_overrides(options.changes)
        if str(changes.get("space", "")).startswith("runs/"):
            del changes["space"]
        preset = load_preset(options.preset, changes)
        preset.recipe.micro_batch(max(1, getattr(options, "workers", 1)))
        check_later(preset, load_space(preset.space))
    elif getattr(options, "changes", None):
        override(load_preset("s3"), parse_overrides(options.changes))


@pytest.mark.parametrize(("place", "line"), [(place, line) for place, line in EXAMPLES if not why_not_here(line)])
def test_an_example_runs(
    place: str,
    line: str,
    searched: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    again = re.sub(r"recipe\.epochs=30", "recipe.epochs=1", line)
    argv = shlex.split(again)
    run: Any = getattr(make_parser().parse_args(argv), "run", None)
    verb = next(verb for verb in SMALL if line.startswith(verb))
    if verb == "search":
        small_run(run)
    elif run is not None and verb != "train":
        shutil.copytree(str(searched.path), run)
    small = SMALL[verb] if again == line else SMALL[verb][:-2]  # no key of a preset is given twice
    assert main([*argv, *small]) == 0, capsys.readouterr().err
    if verb == "train":
        assert run is not None and Run(run).exists("supernet.json")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_is_code(page: Path) -> None:
    text = page.read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        compile(block, page.name, "exec")
        for name in re.findall(r"\braynas\.(\w+)\(", block):
            assert hasattr(raynas, name), f"{page.name} speaks of raynas.{name}"
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        data = parse_yaml(block, page.name).data
        if isinstance(data, dict) and "family" in data:
            assert Space.from_dict(data).cardinality() > 1
        elif isinstance(data, dict) and data.keys() <= Preset.model_fields.keys() and "teachers" not in block:
            own = {key: value for key, value in data.items() if "my_parts" not in str(value)}
            tokens = "digits/preset_vit_resnas" if "token_labels" in block or "sort_channels" in block else "digits"
            override(load_preset(tokens), own)

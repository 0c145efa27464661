"""Every line of every code block of the pages is run by a test, or stands here with the reason why it is not."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from raynas.commands.main import make_parser
from raynas.errors import UserError
from raynas.presets.ablation import load_ablation
from raynas.presets.preset import load_preset, override
from raynas.space.load import SPACES
from tests.test_examples import PAGES, ROOT, blocks_of, yaml_of

DEMO = ROOT / "tests/golden/runs/demo"

NOT_RUN = {
    r"\.venv/bin/python -m pytest ": "the suite itself",
    r"aws ": "an account of a cloud",
    r"export RAY_AUTH_MODE=token|ray (get-auth-token|up|dashboard|job|submit) |python jobs/submit\.py ": (
        "a cluster: tests/cluster/test_up_and_down.py runs them on machines of its own, test_jobs.py on a local head; "
        "the options of their scripts are parsed below"
    ),
    r"kubectl ": "Kubernetes: tests/cluster/test_cluster_yaml.py reads the files",
    r"(tensorboard|optuna-dashboard) ": "servers, each in a package of its own",
}
"""What is run by no example test, by the line's beginning, and why."""

NO_COMMANDS = {
    r"\| row ": "the printed table of an ablation",
    r"raynas/\n": "the layout of the repository",
    r"  width: \[": "the printed log of a space evolution",
    r"custom_imports": "a configuration of mmdetection, which is not installed; it is compiled below",
}
"""What a block holds that is none of commands, by its beginning."""

TESTED = {
    r"(\.venv/bin/)?raynas ": "test_examples.py",
    r"make ": "test_targets_of_make_exist",
}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of each block of a page, also of those inside lists."""
    for indent, language, text in re.findall(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the command lines of a page's blocks."""
    for language, text in blocks(page):
        if language in ("", "bash") and not any(re.match(pattern, text) for pattern in NO_COMMANDS):
            text = re.sub(r'^\S*python -c "\n.*?"$', "", text, flags=re.DOTALL | re.MULTILINE)  # run below
            yield from filter(None, re.sub(r"\\\n\s*", "", text).splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_line_of_a_block_is_accounted_for(page: Path) -> None:
    assert {language for language, _ in blocks(page)} <= {"", "bash", "python", "yaml", "sql"}
    for line in shell_lines(page):
        assert any(re.match(pattern, line) for pattern in (*TESTED, *NOT_RUN)), f"{page.name}: {line}"


def test_no_reason_stands_without_a_line() -> None:
    lines = [line for page in PAGES for line in shell_lines(page)]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, line) for line in lines), pattern
    texts = [text for page in PAGES for _, text in blocks(page)]
    for pattern in NO_COMMANDS:
        assert any(re.match(pattern, text) for text in texts), pattern


def test_targets_of_make_exist() -> None:
    targets = {line.split()[1] for page in PAGES for line in shell_lines(page) if line.startswith("make ")}
    targets |= {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    assert {"demo", "test"} <= targets
    if shutil.which("make") is not None:
        subprocess.run(["make", "-n", *sorted(targets)], cwd=ROOT, check=True, capture_output=True)


def test_python_of_a_command_line_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "CONTRIBUTING.md"
    shutil.copytree(SPACES, tmp_path / "spaces")
    (tmp_path / "spaces/mine").mkdir()
    (tmp_path / "spaces/mine/small.yaml").write_text(yaml_of(page)[0])
    monkeypatch.setattr("raynas.space.load.SPACES", tmp_path / "spaces")
    (code,) = re.findall(r'python -c "\n(.*?)"$', page.read_text(), re.DOTALL | re.MULTILINE)
    exec(code, {})
    assert "torch.Size([2, 10])" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_queries_of_a_page_answer(page: Path) -> None:
    import duckdb

    for query in blocks_of(page, "sql"):
        answer = duckdb.sql(query.replace("runs/first", str(DEMO)))
        assert answer is not None and answer.fetchall()


def test_scripts_of_jobs_take_the_options_on_the_pages() -> None:
    lines = [line.partition("#")[0] for page in PAGES for line in shell_lines(page)]
    found = [call for line in lines for call in re.findall(r"(?:jobs/|-- )(?!submit)(\w+)\.py (.*)", line)]
    calls = [(name, options.removeprefix("-- ")) for name, options in found]
    assert len(calls) >= 2
    for name, options in calls:
        make_parser().parse_args([name.replace("_", "-"), *shlex.split(options)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_are_understood(page: Path) -> None:
    """Also those with a word for what the reader gives, and those of which only options are named."""
    for line in re.findall(r"`raynas ([a-z][^`]*)`", page.read_text().replace("\n", " ")):
        try:
            make_parser().parse_args(shlex.split(line.partition("...")[0].removesuffix("--help")))
        except UserError as error:
            named = re.search("required|expected (one|at least one) argument", str(error))  # an option without a value
            assert named, f"{page.name}: raynas {line}: {error}"


def test_a_configuration_of_others_is_python() -> None:
    (text,) = [text for _, text in blocks(ROOT / "docs/downstream.md") if text.startswith("custom_imports")]
    compile(text, "configuration", "exec")


def test_the_file_of_an_ablation_is_one(tmp_path: Path) -> None:
    whole, rows = yaml_of(ROOT / "docs/ablation.md")
    written = re.sub(r"^(generate|baseline):.*\n", "", whole, flags=re.MULTILINE) + rows
    for name, text in {"generated": whole, "written": written}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        load_ablation(tmp_path / f"{name}.yaml")


def test_the_teachers_of_the_page_are_settings() -> None:
    (text,) = [text for text in yaml_of(ROOT / "docs/training.md") if "sharpen" in text]
    override(load_preset("digits"), yaml.safe_load(text))

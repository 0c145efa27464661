"""The public interface: names, types and the functions behind the commands, as a program would call them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.commands.main import COMMANDS
from raynas.errors import UserError
from raynas.runs.run import Run
from raynas.space import Arch
from tests.data.pictures import write_classes
from tests.small_run import small_run

FUNCTIONS = [name for name, module in raynas._PUBLIC.items() if module.startswith("raynas.api.")]


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    assert dir(raynas) == raynas.__all__
    for name in raynas.__all__:
        assert getattr(raynas, name).__name__ == name


def test_type_checkers_know_every_public_name() -> None:
    tree = ast.parse(Path(str(raynas.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == raynas._PUBLIC


def test_every_command_has_a_public_function() -> None:
    others = {"search": "search_run", "import": "import_model", "evolve-space": "evolve_space", "watch": "status"}
    others["runs"] = "list_runs"
    for command in COMMANDS.keys() - {"bench", "demo"}:  # the demo is a pipeline with an introduction
        assert callable(getattr(raynas, others.get(command, command)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_documents_its_arguments_and_errors(name: str) -> None:
    function = getattr(raynas, name)
    text = inspect.getdoc(function) or ""
    assert "Raises:\n" in text
    if len(inspect.signature(function).parameters) > 2:
        assert "Args:\n" in text
        for parameter in inspect.signature(function).parameters.values():
            stars = "**" * (parameter.kind is parameter.VAR_KEYWORD)
            assert f"    {stars}{parameter.name}: " in text, parameter


def test_a_missing_run_is_reported_before_torch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys, raynas\n"
        "try: raynas.retrain(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print({'torch', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    message, loaded = done.stdout.splitlines()
    assert "not a run directory" in message and loaded == "set()"
    assert not (tmp_path / "run").exists()


def test_a_run_from_search_to_report_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "run")
    lines: list[str] = []
    winner = raynas.search_run(run, resources=raynas.Resources(replicas=0), progress=lines.append)
    assert isinstance(winner, Arch) and (tmp_path / "run/best/arch.yaml").exists() and lines
    (row,) = raynas.retrain(tmp_path / "run", [winner], {"retrain.recipe.epochs": 1}, seeds=[3], parallel=1)
    assert (row["arch"], row["seed"]) == (winner.id, 3)
    measured = raynas.evaluate(tmp_path / "run")
    assert [row["how"] for row in measured] == ["inherited", "scratch"]
    with pytest.raises(UserError, match="no network of arch"):
        raynas.export(run, seed=4)
    folder = raynas.export(run, winner, tmp_path / "network", onnx=False)
    assert (Path(folder) / "arch.yaml").exists()
    assert Path(raynas.report(run)).read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == ""  # silent unless asked


@pytest.mark.slow
def test_the_functions_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "search_run" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "my_network/model.safetensors").exists() and (tmp_path / "runs/second/report.html").exists()


def test_a_new_run_does_not_lie_in_another(tmp_path: Path) -> None:
    Run(tmp_path / "run", create=True)
    for make in (raynas.train, raynas.pipeline, raynas.evolve_space):
        with pytest.raises(UserError, match="lies in the run directory"):
            make("digits", tmp_path / "run/tables")


def test_a_new_run_overwrites_no_files_and_does_not_lie_among_the_images(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/preset.yaml").write_text("# mine")
    write_classes(tmp_path / "images", {"a": 20, "b": 20}, size=(8, 8))
    for make in (raynas.train, raynas.pipeline, raynas.evolve_space, raynas.tune):
        with pytest.raises(UserError, match=r"is no run directory, and holds other files \(preset.yaml\)"):
            make("digits", tmp_path / "mine")
        with pytest.raises(UserError, match="is a file: give a folder"):
            make("digits", tmp_path / "mine/preset.yaml")
        for place in ("images", "images/run"):
            with pytest.raises(UserError, match="lies in the folder of the images"):
                make("digits", tmp_path / place, data={"name": str(tmp_path / "images"), "channels": 1, "size": 8})
    assert (tmp_path / "mine/preset.yaml").read_text() == "# mine" and len(list(tmp_path.rglob("*.yaml"))) == 1


def test_a_link_to_itself_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop"):
        raynas.train("digits", tmp_path / "loop", resources=raynas.Resources(workers=0))


@pytest.mark.parametrize("command", ["train", "pipeline", "evolve_space"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"calibration": {"images": 5000, "batch_size": 5000}}, "calibration.batch_size 5000 is more than"),
        ({"search.constraints.macs": [1, 2]}, "search: no arch has macs in"),
        ({"recipe.amp": "fp16"}, "fp16 needs GPUs"),
    ],
)
def test_what_is_wrong_with_any_phase_is_refused_before_anything_is_written(
    command: str, wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        getattr(raynas, command)("digits/preset_nasvit", tmp_path / "run", overrides=wrong)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()

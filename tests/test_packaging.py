"""The wheel in an environment of its own, and what must not be in the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import raynas
from raynas.presets.ablation import load_ablation

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked() -> list[Path]:
    """The files of the repository; those of the checkout where git does not know it (an unpacked archive)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # The development extra brings the build backend: nothing is fetched.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new environment that holds the wheel, and sees this one's packages but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched after the environment's own, and .pth files in it (an editable install's) are
    # not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_the_package_and_the_spaces(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    wanted = {
        (Path("raynas") if path.is_relative_to(ROOT / "spaces") else Path()) / path.relative_to(ROOT)
        for path in tracked()
        if path.is_relative_to(ROOT / "raynas") or path.is_relative_to(ROOT / "spaces")
    }
    assert len(wanted) > 50
    assert {str(path) for path in wanted} <= inside
    assert not [name for name in inside if name.startswith(("tests", "jobs", "docs"))]
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_an_installed_package_loads_its_spaces(installed: Path, tmp_path: Path) -> None:
    script = """
import raynas
space = raynas.load_space("digits/vit")
arch = raynas.load_arch("autoformer/published/small")
print(raynas.__file__)
print(space.cardinality())
print(arch.id, int(raynas.cost(arch.space, [arch])["params"][0]))
"""
    where, count, arch = run(installed, "-c", script, cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(installed.parents[1])
    # patch size x widths x, for each depth, heads and ratio of every block
    assert int(count) == 1 * 3 * sum((3 * 3) ** depth for depth in (3, 4, 5))
    assert re.fullmatch(r"[0-9a-f]{12} \d+", arch)


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    assert "search" in run(installed.parent / "raynas", "--help", cwd=tmp_path)


SHIPPED = sorted(str(path.relative_to(ROOT / "spaces").with_suffix("")) for path in (ROOT / "spaces").rglob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_loads(name: str) -> None:
    content = yaml.safe_load((ROOT / "spaces" / f"{name}.yaml").read_text())
    if "arch" in content:
        arch = raynas.load_arch(name)
        assert arch in arch.space
    elif "measure" in content:
        assert load_ablation(name).rows()
    elif "recipe" in content:
        preset = raynas.load_preset(name)
        if preset.space is None:
            assert preset.adapt is not None  # it follows from a model
        else:
            assert raynas.load_space(preset.space).cardinality() > 0
    else:
        space = raynas.load_space(name)
        archs = [space.smallest(), space.largest(), space.sample(np.random.default_rng(0))]
        assert space.decode(space.encode(archs)) == archs
        assert space.name == name


def test_nothing_names_a_machine() -> None:
    home = r"(?:/root/|/home/(?!ubuntu\b)\w+|/Users/\w+|[A-Z]:\\\\Users)"
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path.relative_to(ROOT)}: {line}" for line in text.splitlines() if re.search(home, line)]
    assert found == [] or all("test_packaging.py" in line for line in found), found


def test_documentation_points_at_files_that_exist() -> None:
    missing = []
    for path in tracked():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
                if "://" not in target and not (path.parent / target).exists():
                    missing.append(f"{path.relative_to(ROOT)}: {target}")
    assert missing == []


def test_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^\s*make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    assert {"demo", "test"} <= named <= targets

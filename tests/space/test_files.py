"""A space or an arch is a YAML file; adding one takes no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raynas.errors import ConfigError
from raynas.space import load_arch, load_space
from raynas.space.load import SPACES

SPACE: dict[str, Any] = {
    "family": "vit",
    "input": {"size": [8, 12], "channels": 1},
    "classes": 4,
    "dimensions": {
        "patch_size": [4],
        "width": [8, 16],
        "depth": [1, 2],
        "blocks": {"heads": [1], "mlp_ratio": [2.0, 3.0]},
    },
}
ARCH: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 1, "blocks": {"heads": [1], "mlp_ratio": [3.0]}}


def write(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_space_of_ones_own(tmp_path: Path) -> None:
    space = load_space(write(tmp_path / "mine.yaml", SPACE))
    assert space.name == "mine" and space.input_size == (8, 12) and space.cardinality() == 2 * (2 + 4)


def test_an_arch_names_a_space_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine.yaml", SPACE)
    path = write(tmp_path / "arch.yaml", {"space": "mine.yaml", "arch": ARCH})
    monkeypatch.chdir("/")
    arch = load_arch(path)
    assert arch.space == load_space(tmp_path / "mine.yaml") and arch["width"] == 16


def test_an_arch_names_a_shipped_space(tmp_path: Path) -> None:
    values = load_space("digits/vit").largest().to_dict()
    arch = load_arch(write(tmp_path / "arch.yaml", {"space": "digits/vit", "arch": values}))
    assert arch == load_space("digits/vit").largest() and arch.space.name == "digits/vit"


def test_an_arch_with_its_space_in_place(tmp_path: Path) -> None:
    arch = load_arch(write(tmp_path / "arch.yaml", {"space": SPACE, "arch": ARCH}))
    assert arch.space.cardinality() == 12
    broken = {"space": {**SPACE, "clases": 3}, "arch": ARCH}
    with pytest.raises(ConfigError, match=r"arch.yaml:\d+: space.clases: unknown key"):
        load_arch(write(tmp_path / "arch.yaml", broken))


def test_an_arch_off_the_grid(tmp_path: Path) -> None:
    values = {**ARCH, "width": 12}
    with pytest.raises(ConfigError, match=r"arch.yaml:1: arch: .* width = 12 is not among its choices \[8, 16\]"):
        load_arch(write(tmp_path / "arch.yaml", {"arch": values, "space": SPACE}))
    arch = load_arch(write(tmp_path / "arch.yaml", {"arch": values, "space": SPACE, "off_grid": True}))
    assert arch["width"] == 12 and arch.space.cardinality() == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"space": SPACE, "arch": {**ARCH, "blocks": {"heads": [1, 1], "mlp_ratio": [3.0]}}},
            "1.heads' does not act",
        ),
        ({"space": SPACE, "arch": {**ARCH, "depth": 2}}, "has no value for 'blocks.1.heads'"),
        ({"space": SPACE, "arch": 3}, r"arch: expected a mapping \({} for an empty one\), found 3"),
        ({"space": 3, "arch": ARCH}, "space: Input should be a valid string, found 3"),
        ({"space": "nowhere", "arch": ARCH}, "no space 'nowhere': not a file, and not shipped"),
        ({"space": "/nowhere/s.yaml", "arch": ARCH}, "no space '/nowhere/s.yaml': no such file or folder$"),
        ({"arch": ARCH}, "space: is missing"),
        (SPACE, "describes a space of 12 archs, not an arch"),
        ([1], "expected a mapping, found a list"),
        (None, "expected a mapping, found nothing"),
    ],
)
def test_wrong_arch_files(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_arch(write(tmp_path / "arch.yaml", content))


def test_a_space_of_one_arch_is_an_arch(tmp_path: Path) -> None:
    deit = load_arch("autoformer/published/deit_small")
    assert (
        deit["width"] == 384 and deit.space.cardinality() == 1 and deit.space.name == "autoformer/published/deit_small"
    )
    assert load_space("autoformer/published/deit_small") == deit.space


def test_a_name_that_is_not_shipped() -> None:
    with pytest.raises(ConfigError, match=r"no space 'autoformer/tiney': .* \(did you mean 'autoformer/tiny"):
        load_space("autoformer/tiney")
    with pytest.raises(ConfigError, match=r"no arch"):
        load_arch("x" * 5000)
    with pytest.raises(ConfigError, match="describes an arch, not a space"):
        load_space("autoformer/published/small")


def test_who_names_a_folder_is_told_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "spaces").mkdir()
    for inside in ("spaces/0.yaml", "space.yaml"):
        write(tmp_path / inside, SPACE)
        with pytest.raises(ConfigError, match=f"is a folder: give a file in it, such as {tmp_path / inside}$"):
            load_space(tmp_path)
    (tmp_path / "best").mkdir()
    write(tmp_path / "best/arch.yaml", {"space": SPACE, "arch": ARCH})
    with pytest.raises(ConfigError, match=f"such as {tmp_path}/best/arch.yaml$"):
        load_arch(tmp_path)


def test_names_do_not_depend_on_where_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SPACES.parent)
    assert load_space("spaces/digits/vit.yaml").name == load_space("digits/vit").name == "digits/vit"


def test_published_subnets() -> None:
    """The lists that AutoFormer released."""
    tiny, small, base = (load_arch(f"autoformer/published/{size}") for size in ("tiny", "small", "base"))
    assert [arch["depth"] for arch in (tiny, small, base)] == [13, 13, 14]
    assert [arch["width"] for arch in (tiny, small, base)] == [192, 384, 576]
    heads = [[arch[f"blocks.{i}.heads"] for i in range(arch["depth"])] for arch in (tiny, small, base)]
    assert heads[0] == [3] * 10 + [4, 3, 3]
    assert heads[1] == [6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7]
    assert heads[2] == [9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10]
    assert (
        tiny.space.cardinality() == 1
        and small in load_space("autoformer/small")
        and base in load_space("autoformer/base")
    )


def test_the_digits_reference_has_deits_proportions() -> None:
    arch = load_arch("digits/deit")
    constants = load_space("digits/vit").constants
    assert arch.space.constants == constants
    for i in range(arch["depth"]):
        assert arch["width"] == arch[f"blocks.{i}.heads"] * constants.head_dim and arch[f"blocks.{i}.mlp_ratio"] == 4

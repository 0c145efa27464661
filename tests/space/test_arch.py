"""An arch is a canonical value."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml

from raynas.errors import ConfigError
from raynas.space import Arch, Space, load_arch, load_space, save_arch
from tests.space.space_parts import toy, vit


def test_genes_that_do_not_act_are_dropped() -> None:
    space = vit()
    values = {name: dimension.choices[0] for name, dimension in ((d.name, d) for d in space.dimensions)}
    one, other = space.arch({**values, "depth": 1}), space.arch({**values, "depth": 1, "blocks.2.heads": 2})
    assert one == other and hash(one) == hash(other) and one.id == other.id
    assert "blocks.2.heads" not in one and "blocks.0.heads" in one
    assert one != space.arch({**values, "depth": 2})


def test_values_are_the_spaces_own() -> None:
    """What means the same is the same arch, with the same id."""
    space = vit()
    arch = space.smallest()
    same = space.arch({**arch, "width": 8.0, "depth": np.int64(1), "blocks.0.mlp_ratio": 1})
    assert same == arch and same.id == arch.id
    assert type(same["width"]) is int and type(same["depth"]) is int and type(same["blocks.0.mlp_ratio"]) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 9}, r"width = 9 is not among its choices \[8, 12\]"),
        ({"depth": True}, r"depth = True is not among its choices"),
        ({"width": "8"}, r"width = '8' is not among"),
        ({"width": [8]}, r"width = \[8\] is not among"),
        ({"width": float("nan")}, r"width = nan is not among"),
        ({"widht": 8}, r"unknown dimension 'widht' \(did you mean 'width'\?\)"),
        ({"blocks.7.heads": 1}, r"has no 'blocks.7.heads': fewer blocks"),
        ({"blocks.0.headz": 1}, r"unknown dimension 'blocks.\*.headz' \(did you mean 'blocks.\*.heads'\?\)"),
        ({"blocks": {"heads": 2}}, r"unknown dimension 'blocks.heads'"),
        ({"depth": 3}, r"the arch has no value for 'blocks.1.heads'"),
    ],
)
def test_wrong_values_are_refused(change: dict[str, Any], message: str) -> None:
    space = vit()
    with pytest.raises(ConfigError, match=message):
        space.arch({**space.smallest(), **change})


def test_an_arch_cannot_be_changed() -> None:
    arch = vit().smallest()
    with pytest.raises(TypeError):
        arch["width"] = 12  # type: ignore[index]
    for value in (arch, arch.space, arch.space["width"]):
        for name in ("depht", "space", "id", "name"):
            with pytest.raises(AttributeError):
                setattr(value, name, 3)
    assert pickle.loads(pickle.dumps(arch)) == arch


@pytest.mark.usefixtures("toy_families")
def test_round_trips() -> None:
    anywhere = toy("anywhere", {"blocks": {"repeat": 4, "kept": [False, True], "op": [0, 1]}})
    for space in (vit(), anywhere, load_space("autoformer/base")):
        rng = np.random.default_rng(1)
        for arch in [space.smallest(), space.largest(), *space.decode(space.sample_codes(rng, 20))]:
            assert space.arch(json.loads(json.dumps(arch.to_dict()))) == arch
            assert space.arch(yaml.safe_load(yaml.safe_dump(arch.to_dict()))) == arch
            assert space.arch(dict(arch)) == arch
            assert space.decode(space.encode([arch])) == [arch]
            again = pickle.loads(pickle.dumps(arch))
            assert again == arch and again.id == arch.id and again.space == space


def test_ids_are_the_same_in_every_process() -> None:
    """Python's own hashes are not; ids name rows for ever, so this one is written down."""
    code = "import raynas; print(raynas.load_space('autoformer/tiny').smallest().id)"
    ids = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert ids == {load_space("autoformer/tiny").smallest().id} == {"4aab0251aa89"}


@pytest.mark.usefixtures("toy_families")
def test_archs_that_keep_the_same_blocks_are_one_network() -> None:
    anywhere = toy("anywhere", {"blocks": {"repeat": 3, "kept": [False, True], "op": [0, 1]}})
    shifting = toy("shifting", {"depth": [0, 1, 2, 3], "blocks": {"op": [0, 1]}})

    def blocks(*ops: int | None) -> Arch:
        kept = [op is not None for op in ops]
        return anywhere.arch({"blocks": {"kept": kept, "op": list(ops)}})

    first, second = blocks(1, None, 0), blocks(None, 1, 0)
    assert first != second and first.id != second.id
    assert first.network_id == second.network_id != blocks(0, None, 1).network_id
    assert blocks(None, None, 1).network_id != blocks(None, 1, 1).network_id
    # The networks are those of the space with depth as a prefix, where one arch is one network.
    networks = {arch.network_id for arch in anywhere.enumerate()}
    assert networks == {arch.network_id for arch in shifting.enumerate()} == {arch.id for arch in shifting.enumerate()}
    assert len(networks) == 2**4 - 1 and anywhere.cardinality() == 3**3


def test_a_message_with_many_archs_is_small() -> None:
    space = load_space("autoformer/base")
    archs = space.decode(space.sample_codes(np.random.default_rng(0), 1000))
    for arch in archs:
        _ = arch.id, hash(arch), space.cardinality()  # what is cached is not sent
    message = pickle.dumps(archs)
    assert len(message) < 110 * len(archs)
    assert message.count(b"relative_position") == 1  # the space is in there once
    again = pickle.loads(message)
    assert again == archs and all(arch.space is again[0].space for arch in again)


def test_membership() -> None:
    tiny, small = load_space("autoformer/tiny"), load_space("autoformer/small")
    assert tiny.largest() in tiny and tiny.largest() not in small
    assert dict(tiny.largest()) in tiny and tiny.largest().to_dict() in tiny
    assert load_arch("autoformer/published/tiny") not in tiny
    assert load_arch("autoformer/published/tiny") in load_space("autoformer/tiny_ratio3")
    assert 3 not in tiny and "width" not in tiny


def test_a_one_point_space() -> None:
    space = vit()
    arch = space.sample(np.random.default_rng(3))
    point = space.fix(arch)
    assert (
        point.cardinality() == 1 and list(point.enumerate()) == [arch] and point.smallest() == point.largest() == arch
    )
    assert point.constants == space.constants and Space.from_dict(point.to_dict()) == point
    assert pickle.loads(pickle.dumps(point)) == point


def test_an_arch_off_the_grid_keeps_the_constants() -> None:
    space = load_space("autoformer/tiny")
    arch = space.off_grid({**space.smallest(), "width": 200})
    assert arch["width"] == 200 and arch.space.cardinality() == 1
    assert arch.space.constants == space.constants and arch.space.constants.drop_path_depth == 14
    with pytest.raises(ConfigError, match="unknown dimension 'widht'"):
        space.off_grid({**space.smallest(), "widht": 3})
    with pytest.raises(ConfigError, match=r"blocks.11.heads"):
        space.off_grid({**space.smallest(), "depth": 11})


def test_saved_archs_are_read_back_anywhere(tmp_path: Any) -> None:
    arch = load_space("digits/vit").sample(np.random.default_rng(2))
    save_arch(arch, tmp_path / "arch.yaml", top1=95.5)
    again = load_arch(tmp_path / "arch.yaml")
    assert again == arch and again.space == arch.space and again.space.name == "digits/vit"

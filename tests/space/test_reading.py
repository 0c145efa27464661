"""Space files: what is refused, with file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from raynas.documents import Document, parse_yaml
from raynas.errors import ConfigError, UserError
from raynas.space import Space, load_arch, load_space
from raynas.space.load import SPACES
from tests.space.space_parts import toy, vit

TEXT = """\
family: vit
input: {size: 224, channels: 3}
classes: 1000
constants:
  head_dim: 64
  pool: mean
dimensions:
  patch_size: [16]
  width: [192, 216]
  depth: [12, 13]
  blocks:
    heads: [3, 4]
    mlp_ratio: [3.5, 4.0]
"""


def read(text: str) -> Space:
    return Space.from_document(parse_yaml(text, "my.yaml"), "my")


def test_the_text_that_the_others_break_is_right() -> None:
    space = read(TEXT)
    assert space.cardinality() == 2 * (4**12 + 4**13)
    assert space["blocks.12.heads"].choices == (3, 4) and space["blocks.12.heads"].when == {13}
    assert space["blocks.11.mlp_ratio"].when == {12, 13} and space["width"].parent is None
    assert space.constants.attention_scale == 64**-0.5 and space.constants.drop_path_depth == 13


STAGE_BLOCK = {"heads": [1], "mlp_width": [8]}
KEPT_BLOCK = {"kept": [True], **STAGE_BLOCK}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[192, 216]", "[]", "my.yaml:9: dimensions.width: the choice list is empty"),
        ("[192, 216]", "[216, 192]", r"my.yaml:9: dimensions.width: choices \[216, 192\] must be in ascending order"),
        ("[192, 216]", "[192, 192]", r"my.yaml:9: dimensions.width: choices \[192, 192\] are not all different"),
        ("[192, 216]", "[192, '216']", "my.yaml:9: dimensions.width.1: choice '216' is not a whole number"),
        ("[192, 216]", "[true]", "my.yaml:9: dimensions.width.0: choice True is not a whole number"),
        ("[192, 216]", "[192.5]", "my.yaml:9: dimensions.width.0: choice 192.5 is not a whole number"),
        ("[192, 216]", "\n  - 192\n  - null", "my.yaml:11: dimensions.width.1: choice None is not a whole number"),
        ("[192, 216]", "[0]", "my.yaml:9: dimensions.width.0: choice 0 is too small"),
        ("[192, 216]", "[1000000000000000000]", "my.yaml:9: dimensions.width.0: choice 10+ is too large"),
        ("[192, 216]", "192", r"my.yaml:9: dimensions.width: must be a list of choices, found 192; write \[192\]"),
        ("[192, 216]", "", "my.yaml:9: dimensions.width: must be a list of choices, found None$"),
        ("[192, 216]", "{a: [1]}", r"unknown dimension 'width.a' \(did you mean 'width'\?\)"),
        ("width:", "widht:", r"my.yaml:9: dimensions.widht: unknown dimension 'widht' \(did you mean 'width'\?\)"),
        ("  width: [192, 216]\n", "", "my.yaml:7: dimensions: dimension 'width' is missing"),
        ("[16]", "[14, 16]", "my.yaml:8: dimensions.patch_size: .* must be in descending order"),
        ("[16]", "[225]", "my.yaml:8: dimensions.patch_size: 225 is larger than the 224 x 224 image"),
        ("[12, 13]", "[12, 300]", "my.yaml:10: dimensions.depth.1: choice 300 is too large"),
        ("[12, 13]", "[-1, 1]", "my.yaml:10: dimensions.depth.0: choice -1 is too small"),
        ("[3.5, 4.0]", "[.nan]", "my.yaml:13: .*is not a finite number"),
        ("[3.5, 4.0]", "[.inf]", "my.yaml:13: .*is not a finite number"),
        ("[3.5, 4.0]", "[0]", "my.yaml:13: dimensions.blocks.mlp_ratio.0: choice 0 is too small"),
        ("[3.5, 4.0]", "[0.001]", "my.yaml:11: dimensions.blocks: .* leaves no hidden channel"),
        ("    mlp_ratio: [3.5, 4.0]\n", "", r"dimension 'blocks.\*.mlp_ratio' is missing"),
        ("vit", "vti", r"my.yaml:1: family: unknown family 'vti' \(did you mean 'vit'\?\)"),
        ("classes", "clases", r"my.yaml:3: clases: unknown key 'clases' \(did you mean 'classes'\?\)"),
        ("classes: 1000\n", "", "my.yaml:1: classes: is missing"),
        ("1000", "true", "my.yaml:3: classes: true and false are not numbers"),
        ("1000", "many", "my.yaml:3: classes: .* found 'many'"),
        ("pool", "pol", r"my.yaml:6: constants.pol: unknown key 'pol' \(did you mean 'pool'\?\)"),
        ("mean", "median", "my.yaml:6: constants.pool: Input should be 'token' or 'mean', found 'median'"),
        ("pool: mean", "max_depth: 3", "my.yaml:6: constants.max_depth: needs the constant depth_macs beside it"),
        ("pool: mean", "depth_macs: 3", "my.yaml:6: constants.depth_macs: needs the constant max_depth beside it"),
        ("pool: mean", "class_token: false", "my.yaml:4: constants.pool: 'token' needs class_token: true"),
        ("size: 224", "size: [224]", "my.yaml:2: input.size.1: is missing"),
        ("size: 224", "size: big", r"my.yaml:2: input.size: must be a whole number of pixels, or \[height, width\]"),
        ("size: 224", "sice: 224", r"my.yaml:2: input.sice: unknown key 'sice' \(did you mean 'size'\?\)"),
        ("classes", "family", "my.yaml:3: 'family' is given twice"),
        ("  width: [192, 216]", "  width: [192, 216]\n  width: [192]", "my.yaml:10: 'width' is given twice"),
        ("  blocks:", "\tblocks:", "my.yaml:11: not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=message) as raised:
        read(TEXT.replace(old, new, 1))
    assert "\n" not in str(raised.value)


def test_blocks_one_by_one() -> None:
    text = TEXT[: TEXT.index("  depth")] + "  depth: [1, 2]\n  blocks:\n"
    space = read(text + "  - {heads: [3], mlp_ratio: [4]}\n  - {heads: [3, 4], mlp_ratio: [2, 4]}\n")
    assert space["blocks.0.heads"].choices == (3,) and space["blocks.1.heads"].choices == (3, 4)
    assert space.cardinality() == 2 * (1 + 4) and Space.from_dict(space.to_dict()) == space
    with pytest.raises(ConfigError, match=r"my.yaml:11: dimensions.blocks: lists 1 blocks, but the largest depth is 2"):
        read(text + "  - {heads: [3], mlp_ratio: [4]}\n")
    with pytest.raises(ConfigError, match=r"'blocks.1.mlp_ratio' is missing"):
        read(text + "  - {heads: [3], mlp_ratio: [4]}\n  - {heads: [3]}\n")
    with pytest.raises(ConfigError, match=r"my.yaml:13: dimensions.blocks.1.heads.0: choice 0 is too small"):
        read(text + "  - {heads: [3], mlp_ratio: [4]}\n  - {heads: [0], mlp_ratio: [4]}\n")


@pytest.mark.usefixtures("toy_families")
def test_blocks_without_a_depth() -> None:
    space = toy("anywhere", {"blocks": {"repeat": 2, "kept": [False, True], "op": [0]}})
    assert [d.name for d in space.dimensions] == ["blocks.0.kept", "blocks.0.op", "blocks.1.kept", "blocks.1.op"]
    assert Space.from_dict(space.to_dict()) == space
    assert Space.from_dict(space.fix(space.smallest()).to_dict()).cardinality() == 1  # all dropped: nothing else to say
    with pytest.raises(ConfigError, match="how many blocks, 1 to 256"):
        toy("anywhere", {"blocks": {"kept": [False, True], "op": [0]}})
    with pytest.raises(ConfigError, match="how many blocks, 1 to 256"):
        toy("anywhere", {"blocks": {"repeat": 10**9, "kept": [False, True], "op": [0]}})
    with pytest.raises(ConfigError, match="choice 1 is not true or false"):
        toy("anywhere", {"blocks": {"repeat": 2, "kept": [1], "op": [0]}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": []}, "dimensions.stages: is an empty list: give one mapping for each"),
        ({"stages": [{"width": [8], "blocks": []}]}, "stages.0.blocks: is an empty list: .* or depth: .0. for none"),
        (
            {"stages": [{"width": [8], "depth": [1], "blocks": STAGE_BLOCK}, {"width": [8], "blocks": [KEPT_BLOCK]}]},
            "'stages.0.depth': blocks run by depth or by kept, in all stages alike",
        ),
    ],
)
def test_a_mistake_in_stages_is_named(changes: dict[str, Any], message: str) -> None:
    definition = load_space("digits/vit_resnas").to_dict()
    with pytest.raises(ConfigError, match=message):
        Space.from_dict({**definition, "dimensions": changes})


def test_a_depth_without_blocks_has_none() -> None:
    deep = load_space("digits/twins").to_dict()
    stages = deep["dimensions"]["stages"]
    flat = {**deep, "dimensions": {"stages": [*stages[:-1], {"width": stages[-1]["width"], "depth": [0]}]}}
    flat["constants"] = {name: value for name, value in deep["constants"].items() if name != "drop_path_depths"}
    space = Space.from_dict(flat)
    assert not [d for d in space.dimensions if d.name.startswith(f"stages.{len(stages) - 1}.blocks")]
    assert Space.from_dict(space.to_dict()) == space
    block = {"global_attention": [False], "heads": [1], "query_width": [8], "mlp_width": [16]}
    for blocks in (block, [block], {"repeat": 1, **block}):
        flat["dimensions"]["stages"][-1]["blocks"] = blocks
        with pytest.raises(ConfigError, match=r"blocks: depth \[0\] has no blocks: leave `blocks` out, or give"):
            Space.from_dict(flat)


def test_every_shipped_space_round_trips(tmp_path: Path) -> None:
    files = [path for path in SPACES.rglob("*.yaml") if not {"preset", "ablation"} & {*path.stem.split("_")}]
    assert len(files) >= 13
    for path in files:
        document = yaml.safe_load(path.read_text())
        space = load_space(path) if "family" in document else load_arch(path).space
        assert Space.from_dict(space.to_dict()) == space
        space.save(tmp_path / "space.yaml")
        again = load_space(tmp_path / "space.yaml")
        assert again == space and again.fingerprint == space.fingerprint and again.name == space.name


def test_the_fingerprint_is_of_everything_but_the_name() -> None:
    space = vit()
    definition = space.to_dict()
    assert Space.from_dict({**definition, "name": "other"}).fingerprint == space.fingerprint
    changed = [
        space.with_input(size=24),
        space.with_input(channels=3),
        space.with_input(classes=9),
        Space.from_dict({**definition, "constants": {**definition["constants"], "norm_eps": 1e-5}}),
        vit(width=[8, 16]),
        space.fix(space.largest()),
    ]
    assert len({space.fingerprint, *(other.fingerprint for other in changed)}) == len(changed) + 1


@pytest.mark.parametrize("change", [{"size": 0}, {"size": True}, {"size": (3,)}, {"classes": 0}, {"channels": -1}])
def test_other_images_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        vit().with_input(**change)
    with pytest.raises(ConfigError, match="16 is larger than the 8 x 8 image"):
        load_space("autoformer/tiny").with_input(size=8)


NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -1, [], {}, [[1]], {"kept": 3}, {"repeat": None}, [None], [{}], {"blocks": [3]}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["family", "input", "classes", "constants", "dimensions", "name", "published"]
DIMENSIONS = ["patch_size", "width", "depth", "blocks", "kept", "stages"]
PLACES = [None, *DIMENSIONS, "size", "head_dim", "pool"]


@settings(max_examples=150, deadline=None)
@given(value=NONSENSE, key=st.sampled_from(KEYS), inner=st.sampled_from(PLACES))
def test_nonsense_is_one_line(value: Any, key: str, inner: str | None) -> None:
    definition = yaml.safe_load(TEXT)
    if inner is None or not isinstance(definition.get(key), dict):
        definition[key] = value
    else:
        definition[key] = {**definition[key], inner: value}
    try:
        space = Space.from_document(Document(definition, "my.yaml"), "my")
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
    else:
        assert Space.from_dict(space.to_dict()) == space


@settings(max_examples=200, deadline=None)
@given(value=NONSENSE, name=st.sampled_from([*DIMENSIONS, "blocks.0.heads", "blocks.x.heads", "other"]))
def test_nonsense_as_an_arch_is_one_line(value: Any, name: str) -> None:
    space = vit()
    for make in (space.arch, space.off_grid):
        try:
            arch = make({**space.smallest(), name: value})
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        else:
            assert arch in arch.space

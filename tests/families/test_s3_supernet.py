"""The s3 supernet: what holds beyond the contract of every family."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raynas import build_supernet, load_space
from raynas.errors import ConfigError, UserError
from raynas.families.s3.block import RelativeBias, WindowBlock, resize_bias, windows_of
from raynas.families.s3.model import S3Supernet
from raynas.nets.channels import Channels
from raynas.space import Arch, Space
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs

ONE: dict[str, list[Any]] = {"window": [2], "heads": [1], "mlp_ratio": [1.0]}
GRIDS = [(6, 4), (5, 7), (3, 3), (1, 4), (9, 2)]


def one_stage(**changes: Any) -> Space:
    """A space of one stage on 8 x 8 images, 4 x 4 tokens."""
    definition: dict[str, Any] = {
        "family": "s3",
        "input": {"size": 8, "channels": 1},
        "classes": 3,
        "constants": {"patch_size": 2, "head_dim": 4},
        "dimensions": {"stages": [{"width": [5, 8], "depth": [0, 1, 2], "blocks": ONE}]},
    }
    return Space.from_dict({**definition, **changes})


def supernet_of(space: Space) -> S3Supernet:
    supernet = make_supernet(space)
    assert isinstance(supernet, S3Supernet)
    return supernet


def attended(block: WindowBlock, x: Tensor, grid: tuple[int, int], window: int, shift: int, heads: int) -> Tensor:
    """A block's attention on [tokens, width] the long way: token by token, by where each stands in an endless tiling.

    Tokens attend to one another where the tiling, moved by `shift`, has them in one window; what lies beyond the grid
    is not there.
    """
    state = block.state_dict()
    qkv = x @ state["qkv.weight"].T + state["qkv.bias"]
    q, k, v = qkv.unflatten(1, (heads, 3, -1)).unbind(2)
    table = state["bias.table"]
    middle = table.shape[1] // 2, table.shape[2] // 2
    places = list(product(range(grid[0]), range(grid[1])))

    def tile(at: int, side: int) -> int:
        return 0 if side <= window else (at - shift) // window

    tiles = [(tile(row, grid[0]), tile(column, grid[1])) for row, column in places]
    out = torch.zeros(len(places), heads, q.shape[-1], dtype=x.dtype)
    for i, head in product(range(len(places)), range(heads)):
        near = [j for j in range(len(places)) if tiles[j] == tiles[i]]
        offsets = [tuple(a - b for a, b in zip(places[i], places[j], strict=True)) for j in near]
        bias = torch.stack([table[head, middle[0] + down, middle[1] + right] for down, right in offsets])
        scores = (k[near, head] @ q[i, head]) * block.scale + bias
        out[i, head] = scores.softmax(0) @ v[near, head]
    return out.flatten(1) @ state["proj.weight"].T + state["proj.bias"]


@pytest.mark.parametrize("grid", GRIDS)
def test_attention_in_windows_of_any_size_on_any_grid(grid: tuple[int, int]) -> None:
    """Plain and shifted, where windows divide the grid, overhang it, or are larger: against the long way."""
    block = {"window": [1, 2, 3, 4, 8], "heads": [2], "mlp_ratio": [1.0]}
    stages = [{"width": [6], "depth": [1], "blocks": block}]
    space = one_stage(input={"size": [2 * grid[0], 2 * grid[1]]}, dimensions={"stages": stages})
    supernet = supernet_of(space).double()
    layer = supernet.stages[0].block(0)  # type: ignore[operator]
    x = torch.randn(1, grid[0] * grid[1], 6, dtype=torch.float64)
    for arch, shifted in product(space.enumerate(), (False, True)):
        shape = supernet.acting(arch)[0].blocks[0]
        window = arch["stages.0.blocks.0.window"]
        changed = type(shape)(**{**vars(shape), "windows": windows_of(grid, (window, window), shifted)})
        expected = attended(layer, x[0], grid, window, window // 2 if shifted else 0, heads=2)
        torch.testing.assert_close(layer.attend(x, changed)[0], expected, rtol=0, atol=1e-12)


def test_windows_share_the_biases_of_the_offsets_that_they_have() -> None:
    """An entry is of one distance in tokens, whatever the window."""
    bias = RelativeBias(3, (5, 4))
    table = bias.table.detach()
    for heads, window in (((1,), (5, 4)), ((2, 0), (2, 3)), ((0, 1, 2), (1, 1))):
        found = bias(Channels.listed(heads), window)
        tokens = list(product(range(window[0]), range(window[1])))
        for (i, query), (j, key) in product(enumerate(tokens), enumerate(tokens)):
            entry = table[list(heads), 4 + query[0] - key[0], 3 + query[1] - key[1]]
            assert torch.equal(found[:, i, j], entry)
    with pytest.raises(UserError, match="needs a window of 6 tokens, but the supernet has at most 5"):
        bias.select(Channels.first(1), (6, 4))


def test_every_second_block_that_runs_is_shifted() -> None:
    """By depth the second, the fourth; where blocks are dropped anywhere, the second of those that are kept."""
    deep = one_stage(dimensions={"stages": [{"width": [8], "depth": [1, 2, 3], "blocks": ONE}]})
    for arch in deep.enumerate():
        blocks = supernet_of(deep).acting(arch)[0].blocks
        assert [blocks[i].windows.shift for i in blocks] == [(0, 0), (1, 1), (0, 0)][: len(blocks)]
    anywhere = {"repeat": 3, "kept": [False, True], **ONE}
    space = one_stage(dimensions={"stages": [{"width": [8], "blocks": anywhere}]})
    supernet, images = supernet_of(space), make_images(space, 2)
    state = supernet.state_dict()
    for name in state:
        if ".blocks.1." in name:
            state[name].copy_(state[name.replace(".blocks.1.", ".blocks.2.")])
    first, second = (
        next(a for a in space.enumerate() if [a[f"stages.0.blocks.{i}.kept"] for i in range(3)] == [True, *kept])
        for kept in ([True, False], [False, True])
    )
    assert first != second and first.network_id == second.network_id
    assert [block.windows.shift for block in supernet.acting(second)[0].blocks.values()] == [(0, 0), (1, 1)]
    torch.testing.assert_close(supernet(images, first), supernet(images, second), rtol=0, atol=0)


def test_windows_beyond_the_grid_are_the_grid() -> None:
    """They are one network by another name, which only the id of networks tells."""
    space = one_stage(dimensions={"stages": [{"width": [8], "depth": [2], "blocks": {**ONE, "window": [3, 4, 7]}}]})
    supernet, images = supernet_of(space), make_images(space, 2)
    by_network: dict[str, list[Arch]] = {}
    for arch in space.enumerate():
        by_network.setdefault(arch.network_id, []).append(arch)
    assert sorted(len(archs) for archs in by_network.values()) == [1, 2, 2, 4]
    for first, *others in by_network.values():
        for other in others:
            assert torch.equal(supernet(images, first), supernet(images, other))
            assert {n: t.shape for n, t in supernet.extract(first).state_dict().items()} == {
                n: t.shape for n, t in supernet.extract(other).state_dict().items()
            }


@pytest.mark.parametrize(("before", "after"), [((2, 3), (4, 5)), ((4, 4), (2, 3)), ((1, 2), (3, 2))])
def test_tables_for_other_windows_keep_their_offsets(before: tuple[int, int], after: tuple[int, int]) -> None:
    """New offsets take the nearest that there is."""
    table = torch.randn(2, 2 * before[0] - 1, 2 * before[1] - 1)
    found = resize_bias(table, before, after)
    assert found.shape == (2, 2 * after[0] - 1, 2 * after[1] - 1)
    for down, right in product(range(1 - after[0], after[0]), range(1 - after[1], after[1])):
        nearest = [int(np.clip(d, 1 - side, side - 1)) for d, side in zip((down, right), before, strict=True)]
        entry = table[:, nearest[0] + before[0] - 1, nearest[1] + before[1] - 1]
        assert torch.equal(found[:, down + after[0] - 1, right + after[1] - 1], entry)


def test_masks_are_refused_where_windows_differ() -> None:
    space = make_space("s3")
    supernet, images = supernet_of(space), make_images(space, 6)
    archs = some_archs(space, 3)
    with pytest.raises(UserError, match=r"masks cannot express archs that differ in \['stages.0.blocks.0.window'"):
        supernet(images, archs, execution="masks")
    assert torch.equal(supernet(images, archs), supernet(images, archs, execution="groups"))
    assert not supernet.maskable("stages.0.blocks.1.kept") and supernet.maskable("stages.0.blocks.1.heads")
    free = supernet_of(one_stage(constants={"patch_size": 2, "head_dim": None}, dimensions=FREE))
    assert not free.maskable("stages.0.blocks.0.query_width") and free.maskable("stages.0.blocks.0.mlp_ratio")


FREE = {"stages": [{"width": [8], "depth": [1], "blocks": {**ONE, "heads": [1, 2], "query_width": [4, 6]}}]}


def test_initialisation_is_swins() -> None:
    torch.manual_seed(0)
    supernet = build_supernet(load_space("digits/s3"))
    for name, parameter in supernet.named_parameters():
        if parameter.ndim == 1 and not name.startswith("embedding.conv"):
            ones = "norm" in name and name.endswith("weight")
            assert torch.equal(parameter, torch.ones_like(parameter) * ones), name
        elif parameter.ndim == 4:
            assert parameter.abs().max() <= 1, name  # torch's own: uniform, by the inputs of an output
        elif parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.3), name
    tables = {name for name, parameter in supernet.named_parameters() if parameter.ndim == 3}
    assert supernet.no_weight_decay() == tables and len(tables) == 5


def test_archs_that_the_supernet_does_not_hold() -> None:
    space = make_space("s3")
    supernet, images = supernet_of(space), make_images(space, 1)
    largest = dict(space.largest())

    def refused(changes: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            supernet(images, space.off_grid({**largest, **changes}))

    refused({"stages.1.width": 17}, "needs 17 channels, but the supernet has 9")
    refused({"stages.0.blocks.0.heads": 4}, "channels, but the supernet has 36")
    refused({"stages.0.blocks.0.window": 6}, "needs a window of 6 tokens, but the supernet has at most 5")
    between = space.off_grid({**largest, "stages.0.blocks.0.window": 4})
    torch.testing.assert_close(supernet.extract(between)(images), supernet(images, between), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="the arch has 1 stages, the supernet 3"):
        supernet(images, one_stage().smallest())


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"drop_path_depths": [1]}, "counts 1 blocks in stage 0, which has up to 2"),
        ({"drop_path_depths": [1, 2]}, "constants.drop_path_depths: needs one value for each of the 1 stages"),
        ({"patch_size": 9}, "9 is larger than the 8 x 8 image"),
        ({"window": 7}, "unknown key 'window'"),
        ({"head_dim": None}, "'stages.\\*.blocks.\\*.query_width' is missing"),
    ],
)
def test_wrong_constants(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_stage(constants={"patch_size": 2, **constants})


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({**ONE, "window": [0]}, "choice 0 is too small"),
        ({**ONE, "mlp_ratio": [0.1]}, "the smallest width times the smallest mlp_ratio leaves no hidden channel"),
        ({**ONE, "query_width": [8]}, "query_width' has no use here"),
        ({"heads": [1], "mlp_ratio": [1.0]}, "window' is missing"),
    ],
)
def test_wrong_dimensions(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_stage(dimensions={"stages": [{"width": [8], "depth": [1], "blocks": block}]})


def test_query_widths_are_cut_into_heads() -> None:
    with pytest.raises(ConfigError, match="query_width 6 cannot be cut into 4 heads"):
        block = {**ONE, "heads": [4], "query_width": [6]}
        one_stage(constants={"head_dim": None}, dimensions={"stages": [{"width": [8], "depth": [1], "blocks": block}]})

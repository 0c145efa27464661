"""The hybrid supernet: what holds beyond the contract of every family and the golden data."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from raynas.errors import ConfigError, UserError
from raynas.families.hybrid.attention import RelativeBias
from raynas.families.hybrid.transformer import BlockNorm, Mlp, ScalingTable
from raynas.nets import build_supernet
from raynas.nets.batch_norm import ElasticBatchNorm
from raynas.nets.channels import Channels
from raynas.nets.windows import Windows
from raynas.space import Space
from raynas.training.sorting import sort_channels
from tests.families.hybrid_spaces import HYBRID
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs


def changed(name: str = "hybrid", constants: dict[str, Any] | None = None, **stage: Any) -> Space:
    """One of the small spaces with other constants, or other choices in its last stage."""
    definition = {"classes": 7, **HYBRID[name]}
    *stages, last = definition["dimensions"]["stages"]
    dimensions = {**definition["dimensions"], "stages": [*stages, {**last, **stage}]}
    constants = {**definition["constants"], **(constants or {})}
    return Space.from_dict({**definition, "constants": constants, "dimensions": dimensions}, name)


def test_convolutions_run_channels_last_and_weights_stay_as_they_are() -> None:
    """On CPUs: the same logits from images in either order, and a state that does not tell."""
    space = make_space("hybrid")
    supernet, images = make_supernet(space).train(), make_images(space, 4)
    orders: list[bool] = []
    for module in supernet.modules():
        if isinstance(module, ElasticBatchNorm):
            module.register_forward_hook(
                lambda _, given, out: orders.append(
                    all(each.is_contiguous(memory_format=torch.channels_last) for each in (given[0], out))
                )
            )
    optimiser = torch.optim.AdamW(supernet.parameters())
    supernet(images, space.largest()).sum().backward()
    optimiser.step()
    assert len(orders) > 8 and all(orders)
    state = [*supernet.state_dict().values(), *(each["exp_avg"] for each in optimiser.state.values())]
    assert all(tensor.is_contiguous() for tensor in state)
    supernet.eval()
    moved = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(supernet(moved, space.smallest()), supernet(images, space.smallest()))


# -- batch statistics --------------------------------------------------------------------------------------------------


def test_in_training_each_arch_is_normalised_by_its_own_rows() -> None:
    """With dropped paths, which are drawn for the batch before it is split."""
    space = make_space("hybrid")
    supernet = make_supernet(space).train()
    supernet.drop_path = 0.6
    archs, images = some_archs(space, 3), make_images(space, 12)
    torch.manual_seed(3)
    mixed = supernet(images, archs)
    torch.manual_seed(3)
    paths = supernet.draw_paths(images, archs)
    assert paths is not None and paths.shape == (2 + 2 + 4, 3, 12) and (paths == 0).any()
    for index, arch in enumerate(archs):
        own = supernet.run_one(images[index::3], arch, paths[..., index::3], None, False)
        torch.testing.assert_close(mixed[index::3], own, rtol=0, atol=1e-5)
    supernet.drop_path = 0.0
    assert (mixed - supernet(images, archs)).abs().amax(1).gt(1e-3).any()


@pytest.mark.parametrize("name", ["hybrid", "hybrid cyclic"])
def test_gradients_of_a_mixed_batch_in_training(name: str) -> None:
    """Archs that move the same running averages do not disturb one another's gradients."""
    space = make_space(name)
    archs, images = some_archs(space, 3), make_images(space, 9).double()
    mixed, apart = (make_supernet(space).double().train() for _ in range(2))
    mixed(images, archs).square().sum().backward()
    for index, arch in enumerate(archs):
        apart(images[index::3], arch).square().sum().backward()
    for (key, parameter), other in zip(mixed.named_parameters(), apart.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), key
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-9, atol=1e-9, msg=key)
    assert all(torch.allclose(*pair) for pair in zip(mixed.buffers(), apart.buffers(), strict=True))


@pytest.mark.parametrize("name", ["hybrid", "hybrid cyclic"])
def test_a_pass_in_training_moves_the_averages_of_its_own_channels(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    arch = space.smallest()
    subnet = supernet.extract(arch)
    before = {key: buffer.clone() for key, buffer in supernet.named_buffers()}
    for network in (supernet, subnet):
        network.train()(make_images(space, 4), arch)
    for key, value in supernet.select(arch).items():
        torch.testing.assert_close(value, subnet.state_dict()[key])
    moved = {key: int((buffer != before[key]).sum()) for key, buffer in supernet.named_buffers()}
    acting = {key: buffer.numel() for key, buffer in subnet.named_buffers()}
    assert moved == {key: acting.get(key, 0) for key in before}


def test_one_image_on_a_grid_of_one_says_what_to_do() -> None:
    space = changed(constants={"strides": [2, 2, 2], "stem_stride": 2}).with_input(size=8)
    supernet = build_supernet(space).train()
    arch = space.smallest()
    with pytest.raises(UserError, match="give every arch at least two images of a batch"):
        supernet(make_images(space, 1), arch)
    assert supernet(make_images(space, 2), arch).shape == (2, 7)


# -- parts -------------------------------------------------------------------------------------------------------------


def test_relative_position_by_its_definition() -> None:
    """The bias of query and key is the entry of their offset, rows and columns, counted from the table's middle."""
    torch.manual_seed(0)
    layer = RelativeBias((5, 4), heads=3)
    heads = Channels.listed([2, 0])
    bias = layer(heads, (2, 3))
    table = layer.table.view(9, 7, 3)
    for query in range(6):
        for key in range(6):
            rows, columns = query // 3 - key // 3, query % 3 - key % 3
            assert torch.equal(bias[:, query, key], table[4 + rows, 3 + columns, [2, 0]])


def test_windows_are_squares_of_the_grid() -> None:
    tokens = torch.arange(24.0).view(1, 24, 1)
    windows = Windows((4, 6), (2, 3))
    assert windows.split(tokens)[0, :, :, 0].tolist() == [
        [0, 1, 2, 6, 7, 8],
        [3, 4, 5, 9, 10, 11],
        [12, 13, 14, 18, 19, 20],
        [15, 16, 17, 21, 22, 23],
    ]
    assert torch.equal(windows.join(windows.split(tokens)), tokens)


def test_with_several_windows_tokens_see_their_own_alone() -> None:
    """The values' convolution does look into the next window; a token at the grid's border has none beside it."""
    space = changed("hybrid bilateral", windows=[4, 1])
    supernet = make_supernet(space).double()
    attention: Any = supernet.get_submodule("stages.1.layers.1.attention")
    width, heads = Channels.first(12), Channels.first(3)
    x = torch.randn(1, 24, 12, dtype=torch.float64)
    other = x.clone()
    other[:, 5] += 1  # row 0, column 5: of the window of columns 3 to 5
    for window, reached in (((2, 3), {3, 4, 5, 9, 10, 11}), ((4, 6), set(range(24)))):
        moved = (attention(x, width, heads, (4, 6), window) - attention(other, width, heads, (4, 6), window)).abs()
        assert set(torch.nonzero(moved.amax((0, 2)) > 1e-9).flatten().tolist()) == reached


def test_an_mlp_that_convolves_by_its_definition() -> None:
    """Each hidden channel is convolved on its own, over the tokens' grid, before the swish."""
    torch.manual_seed(0)
    layer = Mlp(3, 5, convolves=True)
    assert layer.conv is not None and not Mlp(3, 5, convolves=False).conv
    x, hidden = torch.randn(1, 6, 3), Channels.listed([4, 1])
    inner = (x @ layer.fc1.weight[[4, 1]].T + layer.fc1.bias[[4, 1]])[0].view(2, 3, 2)
    convolved = torch.zeros(2, 3, 2)
    for row, column, down, right in itertools.product(range(2), range(3), (-1, 0, 1), (-1, 0, 1)):
        if 0 <= row + down < 2 and 0 <= column + right < 3:
            convolved[row, column] += (
                inner[row + down, column + right] * layer.conv.weight[[4, 1], 0, 1 + down, 1 + right]
            )
    expected = (convolved * convolved.sigmoid()).view(1, 6, 2) @ layer.fc2.weight[:, [4, 1]].T + layer.fc2.bias
    torch.testing.assert_close(layer(x, Channels.first(3), hidden, (2, 3)), expected)


def test_the_two_norms() -> None:
    x = torch.randn(2, 5, 4)
    joint, token = (BlockNorm(6, changed(constants={"norm": norm}).constants) for norm in ("image", "token"))
    with torch.no_grad():
        for layer in (joint, token):
            layer.weight.uniform_()
            layer.bias.uniform_()
    normed = joint(x, Channels.first(4))
    mean, variance = x.mean((1, 2), keepdim=True), x.var((1, 2), keepdim=True, correction=0)
    expected = (x - mean) / (variance + 1e-5).sqrt() * joint.weight[:4] + joint.bias[:4]
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(
        token(x, Channels.first(4)), F.layer_norm(x, (4,), token.weight[:4], token.bias[:4], 1e-5)
    )


def test_factors_are_keyed_as_released_or_by_width() -> None:
    space = make_space("hybrid")
    blocks: Any = build_supernet(space).get_submodule("stages.2.layers")
    tables: list[Any] = [block.attention_scaling for block in list(blocks)[1:]]
    # Resolutions 7, 10 and 12 make grids of 2 x 3, 3 x 4 and 3 x 5; the second block runs at depth 3 alone.
    assert [table.keys for table in tables] == [[[2, 3], [4, 6, 7]], [[3], [4, 6, 7]]]
    with torch.no_grad():
        tables[0].weight.copy_(torch.arange(48.0).view(2, 3, 8))
    x = torch.ones(1, 1, 4)
    assert tables[0](x, (3, 6), Channels.first(4)).flatten().tolist() == [2 * 32.0, 2 * 33.0, 2 * 34.0, 2 * 35.0]
    by_width = ScalingTable([[4, 6, 8]], 8, per_width=False)
    assert by_width.weight.shape == (3, 8) and bool((by_width.weight == 1e-4).all())
    assert torch.equal(by_width(x, (6,), Channels.first(4)), by_width.weight[1, :4].view(1, 1, 4))
    with pytest.raises(UserError, match=r"needs the factors of 5, the supernet has those of \[2, 3\]"):
        tables[0].select((5, 6), Channels.first(4))
    plain = build_supernet(changed(constants={"scaling": "none"}))
    assert not any("scaling" in key for key in plain.state_dict())


def test_images_are_resized_to_the_archs_resolution() -> None:
    space = make_space("hybrid")
    supernet = make_supernet(space)
    images = make_images(space, 2)
    arch = space.arch({**space.largest(), "resolution": 7})
    alone = Space.from_dict({**space.fix(arch).to_dict(), "input": {"size": [7, 10], "channels": 2}})
    subnet = build_supernet(alone).eval()
    subnet.load_state_dict(supernet.extract(arch).state_dict())
    resized = F.interpolate(images, (7, 10), mode="bicubic", align_corners=False)
    torch.testing.assert_close(subnet(resized), supernet(images, arch), rtol=0, atol=1e-6)


def test_how_it_starts() -> None:
    """Every inverted residual as its shortcut, factors at 1e-4, linear layers as torch's."""
    torch.manual_seed(0)
    supernet = build_supernet(make_space("hybrid"))
    state = supernet.state_dict()
    assert not any(state[key].any() for key in state if key.endswith("project.norm.weight"))
    assert all(bool((state[key] == 1e-4).all()) for key in state if "_scaling." in key)
    largest = state["stages.2.layers.1.attention.v.weight"].abs().max()
    assert 0.95 * 8**-0.5 < largest <= 8**-0.5 and bool(state["stages.2.layers.1.attention.v.bias"].any())
    undecayed = supernet.no_weight_decay()
    assert "stages.2.layers.1.mlp_scaling.weight" in undecayed and undecayed <= set(state)


@pytest.mark.parametrize("mlp_conv", [False, True])
def test_sorting_leaves_the_largest_network_as_it_was(mlp_conv: bool) -> None:
    space = changed(constants={"mlp_conv": mlp_conv})
    supernet = make_supernet(space).double()
    images, narrow = make_images(space, 2).double(), space.smallest()
    before, small = supernet(images, space.largest()), supernet(images, narrow)
    sort_channels(supernet, torch.optim.SGD(supernet.parameters(), lr=0.1))
    torch.testing.assert_close(supernet(images, space.largest()), before, rtol=0, atol=1e-10)
    assert (supernet(images, narrow) - small).abs().max() > 1e-5


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constants": {"token_head": True}}, "pools its tokens before it classifies"),
        (
            {"constants": {"kinds": ["conv", "conv", "transformer", "conv"]}},
            "kinds: needs one value for each of the 3",
        ),
        ({"constants": {"expands": [False, False, True]}}, "without an expanding convolution the expansion must be 1"),
        ({"constants": {"drop_path_depths": [2, 2]}}, "drop_path_depths: needs one value for each of the 3"),
        ({"constants": {"drop_path_depths": [2, 2, 2]}}, "counts 2 blocks in stage 2, which has up to 3"),
        ({"constants": {"kinds": ["conv"] * 3}}, "'stages.2.mlp_ratio' has no use here"),
        ({"constants": {"divisor": 8}}, r"some of \[1, 2, 3\] give 3 channels as many hidden ones, \[8, 8, 16\]"),
        ({"width": [4, 5]}, "width: 5 is no whole number of heads of 2 channels"),
        ({"kernel": [2]}, "sides of kernels must be odd"),
        ({"mlp_ratio": [1.0, 2.0]}, "at depth 1 there is no block, and mlp_ratio and windows do not act"),
        ({"windows": [2]}, "2 windows do not lie in a square"),
        ({"windows": [4]}, "4 windows do not divide the 2 x 3 grid of 7 x 10 pixels"),
        ({"windows": [1, 4]}, "must be in descending order"),
        ({"mlp_ratio": [0.1]}, "leaves no hidden channel"),
        ({"depth": [0, 1]}, "choice 0 is too small"),
    ],
)
def test_spaces_that_cannot_be_built(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(**change)


def test_archs_that_the_supernet_does_not_hold() -> None:
    space = make_space("hybrid")
    supernet = make_supernet(space)
    images = make_images(space, 2)
    held = space.largest()
    for change, message in (
        ({"stages.0.kernel": 7}, "has a kernel of 7, the supernet one of 5"),
        ({"stages.2.depth": 4}, "has a block 3 in a stage for which the supernet has none"),
        ({"resolution": 16}, "windows of 4 tokens, the supernet's offsets reach 2|needs the factors of"),
    ):
        arch = space.off_grid({**held, **change})
        with pytest.raises(UserError, match=message):
            supernet(images, arch)
    narrow = space.off_grid({**held, "stages.1.width": 4})  # between two choices, or below them: it is held
    torch.testing.assert_close(supernet.extract(narrow)(images), supernet(images, narrow), rtol=0, atol=1e-5)


def test_other_image_sizes_and_heads_that_there_are_not() -> None:
    supernet = make_supernet(make_space("hybrid"))
    with pytest.raises(UserError, match="images are resized to the arch's resolution"):
        supernet.resized(20)
    assert supernet.resized((10, 14)).space == supernet.space
    windows = make_supernet(make_space("hybrid bilateral"))
    with pytest.raises(UserError, match="windows are a choice: resize a subnet"):
        windows.resized((16, 24))
    arch = windows.space.largest()
    assert windows.extract(arch).resized((16, 24))(torch.zeros(1, 1, 16, 24)).shape == (1, 7)
    with pytest.raises(UserError, match="has no token head"):
        _ = supernet.token_grid

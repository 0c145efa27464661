"""The vit_res supernet: what holds beyond the contract of every family and the golden data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import Tensor, nn

from raynas import build_supernet, load_arch, load_space
from raynas.errors import ConfigError, UserError
from raynas.families.vit_res.model import Reduction, VitResSupernet
from raynas.nets.sharing import Side
from raynas.nets.weights import load_supernet, weights_fingerprint
from raynas.scoring.shared_weights import put_together, take_apart
from raynas.space import Space
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs
from tests.families.tagging import channels_of
from tests.families.vit_res_spaces import BLOCK


def two_stages(**changes: Any) -> Space:
    """A space of two stages for images of 8 x 8."""
    definition: dict[str, Any] = {
        "family": "vit_res",
        "input": {"size": changes.pop("size", 8), "channels": 1},
        "classes": 7,
        "constants": {"patch_size": 2, "stem_channels": 4, "head_dims": [4, 4], **changes.pop("constants", {})},
        "dimensions": {"stages": [{"width": [6], "depth": [1], "blocks": BLOCK}] * 2, **changes},
    }
    return Space.from_dict(definition)


def vit_res(space: Space) -> VitResSupernet:
    return cast(VitResSupernet, make_supernet(space))


@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_batch_statistics_are_those_of_the_whole_batch_whoever_runs(execution: str) -> None:
    """In training mode, groups, masks and each arch alone on all images see the same statistics, once each."""
    space = make_space("vit_res")
    archs, images = some_archs(space, 4), make_images(space, 8)
    mixed = make_supernet(space).train()
    logits = mixed(images, archs, execution=execution, patches=True)
    for index, arch in enumerate(archs):
        alone = make_supernet(space).train()
        own = alone(images, arch, patches=True)
        torch.testing.assert_close(logits[index::4], own[index::4], rtol=0, atol=1e-5)
        for name, buffer in alone.named_buffers():
            torch.testing.assert_close(buffer, mixed.get_buffer(name))
    first = mixed.get_submodule("stem.first")
    before = make_supernet(space).get_buffer("stem.first.norm.running_mean")
    seen = cast(nn.Conv2d, first.conv)(images).mean((0, 2, 3))
    torch.testing.assert_close(mixed.get_buffer("stem.first.norm.running_mean"), 0.9 * before + 0.1 * seen)
    assert int(mixed.get_buffer("stem.first.norm.num_batches_tracked")) == 1
    assert not torch.allclose(mixed.eval()(images, archs), logits[:, 0], atol=1e-2)


def test_a_subnet_takes_the_running_statistics_along() -> None:
    space = make_space("vit_res plain")
    supernet = make_supernet(space)
    supernet.train()(make_images(space, 8), space.largest())
    subnet = supernet.eval().extract(space.smallest())
    for name, buffer in supernet.named_buffers():
        assert torch.equal(subnet.get_buffer(name), buffer)
        assert subnet.get_buffer(name).data_ptr() != buffer.data_ptr()
    torch.manual_seed(0)
    fresh = build_supernet(subnet.space)
    fresh.load_state_dict(supernet.select(space.smallest()))
    images = make_images(space, 2)
    assert torch.equal(fresh.eval()(images), subnet(images))


def test_weights_with_buffers_in_files_and_in_replicas(tmp_path: Path) -> None:
    space = make_space("vit_res")
    supernet = make_supernet(space)
    supernet.train()(make_images(space, 4), space.largest())
    supernet.eval()
    images, arch = make_images(space, 2), space.smallest()
    save_model(supernet, str(tmp_path / "weights.safetensors"))
    loaded = load_supernet(space, tmp_path / "weights.safetensors").eval()
    assert torch.equal(loaded(images, arch), supernet(images, arch))
    fingerprint = weights_fingerprint(supernet.state_dict())
    assert weights_fingerprint(loaded.state_dict()) == fingerprint
    replica = put_together(*take_apart(copy.deepcopy(supernet)))
    torch.testing.assert_close(replica(images, arch), supernet(images, arch))
    loaded.get_buffer("stem.second.norm.running_var")[0] += 1  # it changes what the network computes
    assert weights_fingerprint(loaded.state_dict()) != fingerprint
    state = supernet.double().state_dict()  # a count of batches, an integer, may come first
    counts_first = dict(sorted(state.items(), key=lambda item: item[1].is_floating_point()))
    assert load_supernet(space, counts_first).eval()(images.double(), arch).dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "side"), [("vit_res cyclic", None), ("vit_res bilateral", "left"), ("vit_res bilateral", "right")]
)
def test_the_main_branch_adds_the_jth_channel_before_to_the_jth_behind(name: str, side: Side | None) -> None:
    """Read off the extracted tensors, which channels these are: a list per width, whichever the pattern."""
    space = make_space(name)
    supernet = vit_res(space)
    reduction = cast(Reduction, supernet.get_submodule("stages.1.reduction"))
    with torch.no_grad():
        for parameter in reduction.parameters():
            parameter.zero_()  # of the other branch
    rows, columns = reduction.before
    tokens = torch.randn(2, 1 + rows * columns, reduction.norm.weight.shape[0])  # all channels held
    grid = tokens[:, 1:].unflatten(1, (rows // 2, 2, columns // 2, 2)).mean((2, 4)).flatten(1, 2)
    pooled = torch.cat([tokens[:, :1], grid], dim=1)
    for arch in some_archs(space, 6):
        channels = channels_of(supernet, arch, side)
        before, behind = channels["embedding.class_token"][2], channels["stages.1.reduction.position"][2]
        expected = torch.zeros(*pooled.shape[:2], reduction.position.shape[2])
        for j, channel in enumerate(before):
            expected[..., behind[j]] = pooled[..., channel]
        shape = supernet.acting(arch, side)[1]
        assert shape.inputs is not None
        found = reduction(tokens[..., before], shape.inputs, shape.width)
        torch.testing.assert_close(found, expected[..., behind])


def test_a_plain_reduction_is_the_residual_one_without_its_main_branch() -> None:
    space = two_stages()
    supernet = vit_res(space)
    plain = vit_res(two_stages(constants={"reduction": "plain"}))
    plain.load_state_dict(supernet.state_dict())
    x = torch.randn(2, 17, 6)
    shape = supernet.acting(space.smallest())[1]
    assert shape.inputs is not None
    both, one = (
        cast(Reduction, network.get_submodule("stages.1.reduction"))(x, shape.inputs, shape.width)
        for network in (supernet, plain)
    )
    pooled = F.adaptive_avg_pool2d(x[:, 1:].transpose(1, 2).unflatten(2, (4, 4)), 2).flatten(2).transpose(1, 2)
    torch.testing.assert_close(both - one, torch.cat([x[:, :1], pooled], dim=1))


def test_drop_path_rises_over_the_blocks_of_all_stages() -> None:
    """Over 3 + 2 places, of which each stage fills two at most."""
    space = make_space("vit_res plain")
    supernet = make_supernet(space).train()
    supernet.drop_path = 0.8
    torch.manual_seed(0)
    paths = supernet.draw_paths(torch.zeros(4000, 1), [space.largest()])
    assert paths is not None
    assert (paths == 0).float().mean((1, 2)).tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8], abs=0.02)
    seen: list[Tensor] = []
    for place in (0, 1):
        block = supernet.get_submodule(f"stages.1.blocks.{place}")
        block.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    torch.manual_seed(0)
    supernet(make_images(space, 4000), space.largest())
    assert [int((drawn == 0).float().mean() * 10 + 0.5) for drawn in seen] == [6, 8]


def test_drop_path_rises_over_a_networks_own_blocks() -> None:
    """As a network that the release's search found is trained; in a mixed batch each row by its own arch."""
    space = make_space("vit_res plain")
    supernet = make_supernet(space).train()
    supernet.drop_path, supernet.drop_path_over = 0.8, "network"
    archs = {
        tuple(supernet.places(arch)): arch for arch in space.decode(space.sample_codes(np.random.default_rng(0), 100))
    }
    few, all_of_them = archs[0, 3], archs[0, 1, 3, 4]
    torch.manual_seed(0)
    rows = torch.arange(8000) % 2
    paths = supernet.draw_paths(torch.zeros(8000, 1), [few, all_of_them], rows)
    assert paths is not None
    dropped = (paths == 0).float()
    assert dropped[..., 0::2].mean((1, 2)).tolist() == pytest.approx([0, 0, 0, 0.8, 0], abs=0.02)
    assert dropped[..., 1::2].mean((1, 2)).tolist() == pytest.approx([0, 0.8 / 3, 0, 1.6 / 3, 0.8], abs=0.02)


def test_initialisation_is_the_releases() -> None:
    torch.manual_seed(0)
    supernet = build_supernet(load_space("digits/vit_resnas"))
    for name, parameter in supernet.named_parameters():
        if name.endswith(("class_token", "position")) or parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.3), name
        elif parameter.ndim == 4:  # uniform within one over the square root of the fan-in
            bound = parameter[0].numel() ** -0.5
            assert 0.9 * bound < parameter.abs().max() <= bound, name
        elif name.endswith("weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif not name.endswith(("embedding.proj.bias", "conv.bias")):
            assert not parameter.any(), name
    norm = cast(nn.BatchNorm2d, supernet.get_submodule("stem.first.norm"))
    assert (norm.eps, norm.momentum) == (1e-5, 0.1)


def test_only_the_class_token_is_kept_from_decaying() -> None:
    supernet = make_supernet(make_space("vit_res"))
    exempt = supernet.no_weight_decay()
    assert exempt == {"embedding.class_token"} and exempt <= dict(supernet.named_parameters()).keys()


def test_masks_are_chosen_for_small_work_and_never_where_widths_are_not_nested() -> None:
    space = make_space("vit_res")
    supernet = make_supernet(space)
    archs = some_archs(space, 4)
    assert supernet.prefers_masks(make_images(space, 4), archs)
    assert not supernet.prefers_masks(make_images(space, 400), archs)
    cyclic = make_space("vit_res cyclic")
    with pytest.raises(UserError, match="masks cannot express archs that differ in"):
        make_supernet(cyclic)(make_images(cyclic, 4), some_archs(cyclic, 4), execution="masks")


def test_half_precision_masks_do_not_promote() -> None:
    space = make_space("vit_res")
    supernet, archs, images = make_supernet(space), some_archs(space, 4), make_images(space, 8)
    exact = supernet(images, archs, execution="masks").detach()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = supernet(images, archs, execution="masks")
        assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), exact, rtol=0, atol=0.1 * exact.abs().max().item())


def test_other_images_and_classes() -> None:
    space = load_space("vit_resnas/tiny")
    larger = space.with_input(280, classes=5)
    assert make_meta(larger).token_grid == (5, 5)
    for size, found in ((250, "250 x 250"), ((224, 252), "224 x 252")):
        message = rf"multiples of 56 pixels \(patch_size 14, halved 2 times\), found {found}"
        with pytest.raises(ConfigError, match=message):
            space.with_input(size)


def make_meta(space: Space) -> VitResSupernet:
    with torch.device("meta"):
        return VitResSupernet(space)


def test_published_archs_are_of_their_spaces_and_a_token_grid_of_four() -> None:
    for name, space in (("tiny", "tiny"), ("small", "small"), ("medium", "small")):
        arch = load_arch(f"vit_resnas/published/{name}")
        assert arch in load_space(f"vit_resnas/{space}")
        assert make_meta(arch.space.fix(arch)).token_grid == (4, 4)
    assert load_arch("vit_resnas/published/vit_res_tiny") not in load_space("vit_resnas/tiny")


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"head_dims": [4]}, "constants.head_dims: needs one value for each of the 2 stages"),
        ({"attention_scale": [0.1] * 3}, "constants.attention_scale: needs one value"),
        ({"attention_scale": [0.1, 0]}, "constants.attention_scale"),
        ({"drop_path_depths": [1, 0]}, "counts 0 blocks in stage 1, which has up to 1"),
        ({"patch_size": 3}, "constants.patch_size: 3 is no multiple of stem_stride"),
        ({"patch_size": 8}, "sides must be multiples of 16 pixels"),
        ({"reduction": "none"}, "constants.reduction"),
        ({"head_dim": 4}, "unknown key 'head_dim' .did you mean 'head_dims'"),
    ],
)
def test_wrong_constants(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        two_stages(constants=constants)


def test_a_residual_needs_no_fewer_channels_behind_than_before() -> None:
    stages = [{"width": width, "depth": [1], "blocks": BLOCK} for width in ([4, 9], [8, 16])]
    with pytest.raises(ConfigError, match=r"stages.1.width: 8 is less than 9, which the stage before may have"):
        two_stages(stages=stages)
    two_stages(stages=stages, constants={"reduction": "plain"})
    space = two_stages()
    with pytest.raises(ConfigError, match="5 is less than 6"):
        space.off_grid({**space.smallest(), "stages.1.width": 5})


def test_archs_that_a_supernet_does_not_hold() -> None:
    space = two_stages()
    supernet, images = make_supernet(space), make_images(space, 2)
    largest = space.largest()
    for change, message in (
        ({"stages.0.width": 7, "stages.1.width": 7}, "needs 7 channels"),
        ({"stages.0.blocks.0.heads": 4}, "needs 12 channels|needs 48 channels"),
        ({"stages.0.blocks.0.mlp_width": 16}, "needs 16 channels"),
    ):
        with pytest.raises(UserError, match=message):
            supernet(images, space.off_grid({**largest, **change}))
    more = {"width": [6], "depth": [1], "blocks": BLOCK}
    three = two_stages(stages=[more] * 3, constants={"head_dims": [4, 4, 4]})
    one_more = two_stages(stages=[more, {**more, "depth": [2]}])
    for other, message in ((three, "has 3 stages, the supernet 2"), (one_more, "has a block 1 in a stage")):
        with pytest.raises(UserError, match=message):
            supernet(images, other.smallest())

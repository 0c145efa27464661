"""The vit supernet: what holds beyond the contract of every family."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from raynas import build_supernet, load_arch, load_space
from raynas.errors import UserError
from raynas.space import Space
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs


def test_an_extracted_subnet_owns_its_memory_and_holds_what_select_gives() -> None:
    supernet = make_supernet(make_space("autoformer"))
    arch = supernet.space.largest()
    subnet = supernet.extract(arch)
    selected = supernet.select(arch)
    assert list(subnet.state_dict()) != [] and set(subnet.state_dict()) == set(selected)
    supernet_memory = {parameter.untyped_storage().data_ptr() for parameter in supernet.parameters()}
    for parameter_name, parameter in subnet.named_parameters():
        assert (
            torch.equal(parameter, selected[parameter_name]) and parameter.is_contiguous() and parameter.requires_grad
        )
        assert parameter.untyped_storage().data_ptr() not in supernet_memory
        # With every channel acting a layer uses the parameter itself: an extracted network pays for no slicing.
        assert subnet.select(arch)[parameter_name] is parameter


def test_extraction_leaves_the_random_stream_alone() -> None:
    supernet = make_supernet(make_space("deit"))
    before = torch.get_rng_state()
    supernet.extract(supernet.space.smallest())
    assert torch.equal(before, torch.get_rng_state())


def test_a_subnet_of_a_subnet_and_of_another_type() -> None:
    supernet = make_supernet(make_space("autoformer")).double()
    arch = supernet.space.smallest()
    images = make_images(supernet.space, 2).double()
    again = supernet.extract(arch).extract(arch)
    torch.testing.assert_close(again(images), supernet(images, arch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_what_no_arch_of_a_pass_uses_is_untouched(execution: str) -> None:
    space = make_space("autoformer")
    supernet = make_supernet(space)
    shallow = [arch for arch in some_archs(space, 30) if arch["depth"] < 3 and arch["width"] < 25][:3]
    supernet(make_images(space, 3), shallow, execution=execution).sum().backward()
    deepest = max(arch["depth"] for arch in shallow)
    widest = max(arch["width"] for arch in shallow)
    for name, parameter in supernet.named_parameters():
        if name.startswith("blocks.") and int(name.split(".")[1]) >= deepest:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
    grad = supernet.get_parameter("norm.weight").grad
    assert grad is not None and grad[widest:].abs().max() == 0 and grad[:widest].abs().min() > 0


def test_the_other_patch_sizes_parameters_are_untouched() -> None:
    space = make_space("patch sizes")
    supernet = make_supernet(space)
    supernet(make_images(space, 2), space.smallest()).sum().backward()
    touched = {name.split(".")[1] for name, p in supernet.named_parameters() if "stem" in name and p.grad is not None}
    assert touched == {"5"}


def test_drop_path_ramp_is_the_constants() -> None:
    space = make_space("deit")  # a ramp over 2 blocks
    supernet = make_supernet(space).train()
    supernet.drop_path = 0.5
    torch.manual_seed(0)
    paths = supernet.draw_paths(torch.zeros(4000, 3, 16, 16), [space.largest()])
    assert paths is not None
    assert paths[0].unique().tolist() == [1.0]
    for block in (1, 2):  # the third block is beyond the ramp
        assert paths[block].unique().tolist() == [0.0, 2.0]
        assert paths[block].mean().item() == pytest.approx(1, abs=0.05)
    supernet.drop_path = 1.0
    with pytest.raises(UserError, match="drop_path must be in"):
        supernet(make_images(space, 2), space.smallest())


def test_an_arch_off_the_spaces_grid_runs_where_the_parameters_hold_it() -> None:
    space = load_space("autoformer/tiny").with_input(32, 3, 5)
    supernet = make_supernet(space)
    published = load_arch("autoformer/published/tiny")  # it uses ratio 3.0, which the released space does not list
    assert published not in space
    images = make_images(space, 1)
    torch.testing.assert_close(supernet.extract(published)(images), supernet(images, published), rtol=0, atol=1e-5)


def test_mistakes_are_told() -> None:
    space = make_space("autoformer")
    supernet = make_supernet(space)
    images = make_images(space, 2)
    archs = some_archs(space, 3)
    with pytest.raises(UserError, match="say which"):
        supernet(images)
    with pytest.raises(UserError, match="3 archs for a batch of 2"):
        supernet(images, archs)
    with pytest.raises(UserError, match="at least one arch"):
        supernet(images, [])
    for rows in ([0, 3], [0], [-1, 0], [0.0, 1.0], [[0, 1]]):
        with pytest.raises(UserError, match="rows must be"):
            supernet(images, archs, torch.tensor(rows))
    for one in (archs[0], archs[:1]):  # what one arch has no use for is looked at all the same
        with pytest.raises(UserError, match="rows must be"):
            supernet(images, one, torch.tensor([0, 1]))
        with pytest.raises(UserError, match="unknown execution"):
            supernet(images, one, execution="mask")
    for nonsense in ("best", [archs], [None]):
        with pytest.raises(UserError, match="expected an arch, or a mapping of its values by name, found"):
            supernet(images, nonsense)
    assert torch.equal(supernet(images, archs, [1, 2]), supernet(images, archs, torch.tensor([1, 2])))
    with pytest.raises(UserError, match=r"expected images \[batch, 3, 16, 16\], found \[2, 3, 16, 17\]"):
        supernet(torch.zeros(2, 3, 16, 17), archs[0])
    with pytest.raises(UserError, match="unknown execution"):
        supernet(images, archs[:2], execution="mask")
    for change, message in (({"width": 26}, "needs 26 channels"), ({"patch_size": 2}, "no parameters")):
        with pytest.raises(UserError, match=message):
            supernet(images, space.off_grid({**space.smallest(), **change}))
    deep = {"patch_size": 4, "width": 12, "depth": 4, "blocks": {"heads": [1] * 4, "mlp_ratio": [1.5] * 4}}
    with pytest.raises(UserError, match="more than the supernet's 3 blocks"):
        supernet(images, space.off_grid(deep))


def test_a_block_that_no_arch_keeps_is_not_there() -> None:
    space = make_space("kept anywhere")
    arch = next(arch for arch in some_archs(space, 40) if not arch["blocks.1.kept"] and arch["blocks.0.kept"])
    subnet = make_supernet(space).extract(arch)
    more = {**arch, "blocks.1.kept": True, "blocks.1.heads": 1, "blocks.1.mlp_ratio": 2.0}
    with pytest.raises(UserError, match="keeps block 1, which no arch of the supernet keeps"):
        subnet(make_images(space, 1), space.off_grid(more))


def test_an_mlp_without_a_hidden_channel_is_refused() -> None:
    definition = make_space("deit").to_dict()
    definition["dimensions"]["blocks"] = {"heads": [1], "mlp_ratio": [0.05, 1.0]}
    with pytest.raises(UserError, match="no hidden channel"):
        build_supernet(Space.from_dict(definition))


def test_masks_refuse_patch_sizes_and_auto_groups_them() -> None:
    space = make_space("patch sizes")
    supernet = make_supernet(space)
    archs = [space.smallest(), space.largest()]
    images = make_images(space, 2)
    with pytest.raises(UserError, match=r"differ in \['patch_size'\]"):
        supernet(images, archs, execution="masks")
    assert torch.equal(supernet(images, archs), supernet(images, archs, execution="groups"))


def test_training_works_after_inference_mode_copying_and_pickling() -> None:
    space = make_space("autoformer")
    supernet = make_supernet(space)
    images = make_images(space, 4)
    archs = some_archs(space, 4)
    with torch.inference_mode():
        for execution in ("groups", "masks"):
            expected = supernet(images, archs, execution=execution)
        supernet.extract(archs[1])(images)
    for network in (supernet, copy.deepcopy(supernet), pickle.loads(pickle.dumps(supernet))):
        for execution in ("groups", "masks"):
            network.train()(images, archs, execution=execution).sum().backward()
            torch.testing.assert_close(network(images, archs), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_bfloat16_autocast_stays_in_bfloat16(execution: str) -> None:
    space = make_space("autoformer")
    supernet = make_supernet(space)
    images = make_images(space, 4)
    archs = some_archs(space, 4)
    exact = supernet(images, archs)
    products = []
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: products.append(out.dtype)) for layer in supernet.modules()
    ]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = supernet(images, archs, execution=execution)
    for hook in hooks:
        hook.remove()
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).abs().max() < 0.05 * exact.abs().max()
    assert products.count(torch.bfloat16) > len(products) / 2


def test_initialisation_is_autoformers() -> None:
    torch.manual_seed(0)
    supernet = build_supernet(load_space("autoformer/tiny").with_input(64, 3, 100))
    for name, parameter in supernet.named_parameters():
        if "stem" in name and "proj" in name:
            assert parameter.abs().max() <= (3 * 16 * 16) ** -0.5 and parameter.std() > 0  # the framework's convolution
        elif parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter) * ("norm" in name and name.endswith("weight")))
    assert supernet.no_weight_decay() == {"stem.16.class_token", "stem.16.position"}

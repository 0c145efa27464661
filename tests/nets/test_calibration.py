"""Statistics of single subnets: what they are, and that the supernet stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm, NormStatistics
from raynas.nets.calibration import calibrate, wants_calibration
from raynas.nets.supernet import Supernet
from raynas.scoring.shared_weights import changed, checksums, put_together, take_apart
from raynas.space import Arch
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs

every_space = pytest.mark.parametrize("name", ["hybrid", "hybrid cyclic", "hybrid bilateral"])


def by_hand(subnet: Supernet, batches: list[Tensor]) -> dict[str, Tensor]:
    """The mean over batches of what each batch norm is given: means and unbiased variances."""
    found: dict[str, list[Tensor]] = {}
    for name, module in subnet.named_modules():
        if isinstance(module, ElasticBatchNorm):

            def record(module: Any, arguments: tuple[Any, ...], name: str = name) -> None:
                channels = arguments[0].transpose(0, 1).flatten(1)
                found.setdefault(f"{name}.running_mean", []).append(channels.mean(1))
                found.setdefault(f"{name}.running_var", []).append(channels.var(1))

            module.register_forward_pre_hook(record)
    with torch.no_grad():
        for images in batches:
            subnet.train()(images)
    return {name: torch.stack(each).mean(0) for name, each in found.items()}


@every_space
def test_statistics_are_the_means_over_batches(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    batches = [make_images(space, count, seed) * (1 + seed) for seed, count in enumerate((4, 5, 3))]
    for arch in some_archs(space, 3):
        statistics = calibrate(supernet, arch, batches)
        assert statistics.arch == arch and set(statistics.averages) == set(supernet.sides)
        for side, averages in statistics.averages.items():
            subnet = supernet.extract(arch, side)
            expected = by_hand(subnet, batches)
            assert averages.keys() == expected.keys() == dict(subnet.named_buffers()).keys()
            for key, value in averages.items():
                torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5, msg=key)


@every_space
def test_a_pass_and_an_extracted_subnet_go_by_them(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    images = make_images(space, 3)
    for arch in some_archs(space, 3):
        before = supernet(images, arch)
        statistics = calibrate(supernet, arch, iter([images]))
        logits = supernet(images, arch, statistics=statistics)
        alone = [supernet.extract(arch, side, statistics)(images) for side in supernet.sides]
        torch.testing.assert_close(torch.stack(alone).mean(0), logits, rtol=0, atol=1e-5)
        assert torch.equal(supernet(images, arch), before) and not torch.allclose(logits, before)
        # A subnet is a network like any other: its own statistics are the same.
        subnet = supernet.extract(arch, supernet.sides[0])
        again = subnet(images, arch, statistics=calibrate(subnet, arch, [images]))
        torch.testing.assert_close(again, alone[0], rtol=0, atol=1e-5)


def state_of(network: Supernet) -> tuple[list[Any], list[Tensor]]:
    modes = [(module.training, getattr(module, "momentum", None)) for module in network.modules()]
    return modes, [tensor.clone() for tensor in network.state_dict().values()]


@every_space
def test_a_frozen_supernet_is_not_written_to(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    batches = [make_images(space, 4)]
    skeleton, arrays = take_apart(supernet)
    for array in arrays.values():
        array.setflags(write=False)
    before = checksums(arrays)
    frozen: Any = put_together(skeleton, arrays)
    for arch in some_archs(space, 3):
        ours, theirs = (calibrate(network, arch, batches) for network in (supernet, frozen))
        with torch.inference_mode():
            logits = frozen(batches[0], arch, statistics=theirs)
        torch.testing.assert_close(logits, supernet(batches[0], arch, statistics=ours), rtol=0, atol=0)
    assert changed(arrays, before) == []


@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_left_behind(training: bool) -> None:
    space = make_space("hybrid cyclic")
    supernet = make_supernet(space).train(training)
    modes, tensors = state_of(supernet)
    buffers = dict(supernet.named_buffers())
    calibrate(supernet, space.smallest(), [make_images(space, 4)])
    with pytest.raises(UserError, match="expected images"):
        calibrate(supernet, space.smallest(), [make_images(space, 4), torch.zeros(1, 2, 3, 4)])
    after = state_of(supernet)
    assert after[0] == modes and all(map(torch.equal, after[1], tensors))
    assert all(buffer is buffers[name] for name, buffer in supernet.named_buffers())


def test_what_is_wrong_is_said() -> None:
    space = make_space("hybrid")
    supernet = make_supernet(space)
    images, arch = make_images(space, 4), space.smallest()
    with pytest.raises(UserError, match="needs at least one batch"):
        calibrate(supernet, arch, [])
    statistics = calibrate(supernet, arch, [images])
    for other in (space.largest(), [arch, space.largest()]):
        with pytest.raises(UserError, match=f"the statistics are of arch {arch.id}"):
            supernet(images, other, statistics=statistics)
    with pytest.raises(UserError, match="run that arch alone, or calibrate again"):
        supernet.extract(space.largest(), statistics=statistics)


def test_networks_without_such_norms_have_none() -> None:
    space = make_space("vit_res")
    supernet = make_supernet(space)
    arch: Arch = space.smallest()
    images = make_images(space, 2)
    assert not wants_calibration(supernet) and wants_calibration(make_supernet(make_space("hybrid")))
    statistics = calibrate(supernet, arch, [images])
    assert statistics == NormStatistics(arch, {None: {}})
    assert torch.equal(supernet(images, arch, statistics=statistics), supernet(images, arch))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch"),
        ([torch.zeros(0, 1, 8, 8)], "one image at least"),
        ([torch.zeros(2, 1, 8, 8, dtype=torch.uint8)], "normalised images alone"),
        ([(torch.zeros(2, 1, 8, 8), torch.zeros(2))], "normalised images alone"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(batches: list[Any], message: str) -> None:
    space = make_space("hybrid")
    supernet = make_supernet(space)
    with pytest.raises(UserError, match=message):
        calibrate(supernet, space.smallest(), batches)
    with pytest.raises(UserError, match="calibration is of one arch"):
        calibrate(supernet, [space.smallest()], batches)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="statistics are those of one arch"):
        supernet(make_images(space, 2), space.smallest(), statistics={})  # type: ignore[arg-type]

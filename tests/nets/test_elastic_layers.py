"""Channels and the layers built on them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.layers import Bank, ElasticLinear, ElasticNorm, PatchStem
from raynas.nets.masked_norm import masked_norm


def test_whole_axes_give_the_parameter_itself_prefixes_a_view_and_lists_a_copy() -> None:
    parameter = torch.nn.Parameter(torch.arange(24.0).view(12, 2))
    assert Channels.first(12).select(parameter, 0) is parameter
    assert Channels.first(4).select(parameter, 0, unit=3) is parameter
    assert Channels.listed(range(12)).select(parameter, 0) is parameter
    prefix = Channels.first(2).select(parameter, 0, unit=3)
    assert torch.equal(prefix, parameter[:6]) and prefix.data_ptr() == parameter.data_ptr()
    wrapping = Channels.listed([3, 0, 1])
    assert wrapping.count == 3 and wrapping.runs == ((3, 4), (0, 2))
    assert torch.equal(wrapping.select(parameter, 0, unit=3), parameter[[9, 10, 11, 0, 1, 2, 3, 4, 5]])


@pytest.mark.parametrize("channels", [Channels.first(5), Channels.listed([0, 4])])
def test_more_channels_than_there_are_is_an_error(channels: Channels) -> None:
    with pytest.raises(UserError, match="the supernet has 4"):
        channels.select(torch.zeros(4), 0)


def test_listed_channels_make_the_layer_of_those_rows_and_columns() -> None:
    torch.manual_seed(0)
    layer = ElasticLinear(6, 5)
    inputs, outputs = [4, 5, 0], [3, 1]
    x = torch.randn(2, 3)
    assert layer.bias is not None
    expected = F.linear(x, layer.weight[outputs][:, inputs], layer.bias[outputs])
    torch.testing.assert_close(layer(x, Channels.listed(inputs), Channels.listed(outputs)), expected)


def test_rows_with_equal_counts_need_no_mask() -> None:
    rows = torch.tensor([0, 1, 1])
    assert Channels.first_of_each([4, 4], rows).rows is None
    channels = Channels.first_of_each([2, 3], rows)
    assert channels.count == 3
    x = torch.ones(3, 1, 6)
    assert channels.mask(x, unit=2).sum((1, 2)).tolist() == [4, 6, 6]
    assert channels.mask(x.bfloat16(), unit=2).dtype == torch.bfloat16


def test_the_masked_norm_errs_no_more_than_the_native_norm_where_the_mean_is_large() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = [64, 48, 33, 5]
    rows = torch.arange(4).repeat_interleave(50)
    width = Channels.first_of_each(counts, rows)
    x = width.mask(100 + 0.1 * torch.randn(200, 3, 64, generator=generator))
    weight, bias = torch.randn(64, generator=generator), torch.randn(64, generator=generator)
    ours = masked_norm(x, width, 1e-5, weight, bias)
    errors = {"ours": 0.0, "native": 0.0}
    for index, count in enumerate(counts):
        mine = rows == index
        part, own = x[mine][..., :count], (weight[:count], bias[:count])
        exact = F.layer_norm(part.double(), (count,), own[0].double(), own[1].double(), 1e-5)
        native = F.layer_norm(part, (count,), *own, 1e-5)
        errors["ours"] = max(errors["ours"], (ours[mine][..., :count] - exact).abs().max().item())
        errors["native"] = max(errors["native"], (native - exact).abs().max().item())
        assert ours[mine][..., count:].count_nonzero() == 0
    assert errors["ours"] <= 1.5 * errors["native"] and errors["ours"] < 2e-3, errors


def test_the_masked_norm_has_the_native_norms_gradients() -> None:
    torch.manual_seed(0)
    norm = ElasticNorm(6, eps=0.5).double()  # an epsilon that shows
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    width = Channels.first_of_each([4, 6], torch.tensor([0, 1]))
    unmasked = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    x = width.mask(unmasked)
    weights = torch.randn(2, 3, 6, dtype=torch.float64)
    inputs = (unmasked, norm.weight, norm.bias)
    found = torch.autograd.grad((norm(x, width) * weights).sum(), inputs, retain_graph=True)
    own = [norm(x[i : i + 1, :, :k], Channels.first(k)) * weights[i : i + 1, :, :k] for i, k in enumerate((4, 6))]
    expected = torch.autograd.grad(own[0].sum() + own[1].sum(), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_an_image_that_the_patch_does_not_divide_is_padded_at_the_bottom_and_right() -> None:
    torch.manual_seed(0)
    stem = PatchStem(2, (7, 9), 4, 8, class_tokens=0)
    images = torch.randn(3, 2, 7, 9)
    padded = torch.zeros(3, 2, 8, 12)
    padded[:, :, :7, :9] = images
    expected = stem.proj(padded).flatten(2).transpose(1, 2) + stem.position
    assert stem.grid == (2, 3)
    torch.testing.assert_close(stem(images, Channels.first(8)), expected)


def test_a_bank_holds_a_module_for_each_choice() -> None:
    bank = Bank([(2, 3.5), (2, 4.0)], lambda choice: ElasticNorm(choice[0], choice[1]))
    assert bank.of((2, 3.5)) is not bank.of((2, 4.0))
    assert list(bank.select((2, 3.5), Channels.first(1))) == ["2_3p5.weight", "2_3p5.bias"]
    with pytest.raises(UserError, match="no parameters"):
        bank.of((3, 4.0))

"""Attention maps of every family: which token attends to which, compared with timm's and with plain loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import timm
import torch

import raynas
from raynas.errors import UserError
from raynas.nets.attention_maps import Attending, AttentionMaps
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.nets.windows import Windows
from raynas.space.families import family_module
from tests.families.nets_spaces import DEFINITIONS, features, make_images, make_space, make_supernet, some_archs


@pytest.mark.parametrize("name", features())
def test_every_query_shares_out_its_attention(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    images = make_images(space, 2)
    for arch in some_archs(space, 3):
        network = supernet.extract(arch, side=supernet.sides[0])
        before = network(images)
        for maps, one in zip(raynas.attention_maps(network, images), network.attending(), strict=True):
            assert maps.weights.min() >= 0
            torch.testing.assert_close(maps.weights.sum(-1), torch.ones(maps.weights.shape[:-1]))
            # Every token of the grid is a query once.
            known = maps.queries[maps.queries.isfinite().all(-1)]
            rows, columns = one.windows.grid
            centres = itertools.product(range(rows), range(columns))
            expected = sorted(((row + 0.5) * one.pixels, (column + 0.5) * one.pixels) for row, column in centres)
            assert sorted(map(tuple, known.tolist())) == expected
            heads = maps.weights.shape[2]
            distance, similarity = maps.distance(), maps.similarity()
            assert distance.shape == (heads,) and similarity.shape == (heads, heads)
            assert distance.min() >= 0 and distance.max() <= one.pixels * math.hypot(rows, columns)
            torch.testing.assert_close(similarity.diagonal(), torch.ones(heads))
        torch.testing.assert_close(network(images), before)


@pytest.mark.parametrize("shift", [0, 1])
def test_distances_are_those_of_plain_loops(shift: int) -> None:
    """Windows of 2 x 3 on a grid of 3 x 5, with padding, shifted or not."""
    windows = Windows((3, 5), (2, 3), (shift, shift))
    one = Attending("block", windows, pixels=4)
    queries, keys = one.places()
    torch.manual_seed(0)
    weights = torch.rand(2, len(queries), 2, 6, 6).softmax(-1)
    found = AttentionMaps("block", weights, queries, keys).distance()
    tokens = torch.arange(1.0, 16.0)[None, :, None]  # their numbers, from 1; 0 for padding
    numbers = windows.split(tokens)[0, :, :, 0].int().tolist()
    for head in range(2):
        means = []
        for image, window, query in itertools.product(range(2), range(len(numbers)), range(6)):
            if not (at := numbers[window][query]):
                continue
            pairs = [(key, to) for key, to in enumerate(numbers[window]) if to]
            row = [float(weights[image, window, head, query, key]) for key, _ in pairs]
            far = [4 * math.dist(divmod(at - 1, 5), divmod(to - 1, 5)) for _, to in pairs]
            means.append(sum(w * d for w, d in zip(row, far, strict=True)) / sum(row))
        assert float(found[head]) == pytest.approx(sum(means) / len(means), rel=1e-5)


def test_a_key_of_several_tokens_is_at_their_centre() -> None:
    queries, keys = Attending("block", Windows((3, 4), (3, 4)), pixels=2, reduction=2, class_tokens=1).places()
    assert queries.shape == (1, 13, 2) and queries[0, 0].isnan().all()
    expected = torch.tensor([[2.0, 2.0], [2.0, 6.0], [5.0, 2.0], [5.0, 6.0]])  # the last row of squares is cut off
    torch.testing.assert_close(keys[0, 1:], expected)


def of_timm(model: Any, name: str) -> Supernet:
    space, weights = family_module({"vit": "vit", "swin": "s3"}[name.split("_")[0]], "checkpoint").read_timm(
        model, name
    )
    return load_supernet(space, weights).eval()


@pytest.mark.parametrize(
    ("name", "options", "softmax"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}, "blocks.{}.attn.attn_drop"),
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "depths": (2, 2), "num_heads": (3, 6)}, "{}.attn.softmax"),
    ],
)
def test_weights_are_those_of_timm(name: str, options: dict[str, Any], softmax: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs: list[torch.Tensor] = []
    for part, module in model.named_modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
        if part.endswith(softmax.rpartition(".")[2]):
            module.register_forward_hook(lambda module, inputs, output: theirs.append(output))
    images = torch.randn(2, 3, options["img_size"], options["img_size"])
    with torch.no_grad():
        model(images)
    found = raynas.attention_maps(of_timm(model, name), images)
    assert len(found) == len(theirs) > 1
    for maps, expected in zip(found, theirs, strict=True):
        torch.testing.assert_close(maps.weights.flatten(0, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_supernet_of_many_archs_has_no_maps() -> None:
    supernet = make_supernet(make_space(next(iter(DEFINITIONS))))
    with pytest.raises(UserError, match="extract one"):
        raynas.attention_maps(supernet, make_images(supernet.space, 1))
    with pytest.raises(UserError, match=r"takes a network of raynas: .* not an? .*Linear"):
        raynas.attention_maps(torch.nn.Linear(2, 2), make_images(supernet.space, 1))

"""Relative position against the pairwise embeddings that it never makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raynas.families.vit.attention import RelativeIndex, RelativePosition


def pairs(rows: Tensor, columns: Tensor, grid: tuple[int, int], distance: int, class_tokens: int) -> Tensor:
    """[tokens, tokens, head_dim]: an embedding for each query and key, one pair at a time."""
    places = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    tokens: list[tuple[int, int] | None] = [*[None] * class_tokens, *places]

    def entry(query: tuple[int, int] | None, key: tuple[int, int] | None) -> Tensor:
        if query is None or key is None:
            return rows[0] + columns[0]
        y, x = (max(-distance, min(distance, key[axis] - query[axis])) + distance + 1 for axis in (0, 1))
        return rows[y] + columns[x]

    return torch.stack([torch.stack([entry(query, key) for key in tokens]) for query in tokens])


@pytest.mark.parametrize(
    ("grid", "distance", "class_tokens", "head_dim"),
    [
        ((4, 4), 14, 1, 64),
        ((5, 3), 2, 1, 8),
        ((3, 6), 2, 0, 5),
        ((1, 1), 1, 1, 4),
        ((7, 7), 3, 0, 16),
        ((2, 3), 2, 2, 5),
    ],
)
def test_outputs_and_gradients_equal_the_long_way(
    grid: tuple[int, int], distance: int, class_tokens: int, head_dim: int
) -> None:
    torch.manual_seed(0)
    relative = RelativePosition(distance, head_dim).double()
    with torch.no_grad():
        for parameter in relative.parameters():
            parameter.normal_()
    index = RelativeIndex(grid, distance, class_tokens, head_dim)
    shape = (2, grid[0] * grid[1] + class_tokens, 3, head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weights = torch.randn(shape, dtype=torch.float64)
    inputs = (q, k, v, *relative.parameters())

    out = relative(q, k, v, 0.3, index)
    found = torch.autograd.grad((out * weights).sum(), inputs)

    key_pairs = pairs(relative.key_rows, relative.key_columns, grid, distance, class_tokens)
    value_pairs = pairs(relative.value_rows, relative.value_columns, grid, distance, class_tokens)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) + torch.einsum("bihd,ijd->bhij", q, key_pairs)
    attention = (0.3 * scores).softmax(-1)
    expected = torch.einsum("bhij,bjhd->bihd", attention, v) + torch.einsum("bhij,ijd->bihd", attention, value_pairs)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(found, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_no_pairwise_tensor_is_made() -> None:
    """The largest tensor that a forward and backward pass makes is far below [tokens, tokens, head_dim]."""
    sizes: list[int] = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            tensors = out if isinstance(out, tuple | list) else (out,)
            sizes.extend(t.untyped_storage().nbytes() for t in tensors if isinstance(t, Tensor))
            return out

    relative, index = RelativePosition(14, 64), RelativeIndex((14, 14), 14, 1, 64)
    q, k, v = (torch.randn(1, 197, 1, 64, requires_grad=True) for _ in range(3))
    with Largest():
        relative(q, k, v, 0.125, index).sum().backward()
    assert max(sizes) < 197 * 197 * 64 * 4 / 8

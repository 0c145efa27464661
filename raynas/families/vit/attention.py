"""Attention with AutoFormer's relative position on keys and values, without a [tokens, tokens, head_dim] tensor."""

from __future__ import annotations

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.vit.space import relative_groups
from raynas.nets.layers import new_parameter


class RelativeIndex(nn.Module):
    """Indices of the table entries for all pairs on a patch grid (constant buffers, not saved).

    Keys belong to groups: one for each grid row, one for each grid column, one for each class token. Relative position
    adds to the score of a query and a key the sum, over the key's groups (its row and column, or itself as a class
    token), of the query's product with the entry for query and group.

    Entries are numbered over the rows' table, then the columns' table, then the sum of both tables' first entries.

    Args:
        grid: rows and columns of patches.
        distance: largest distance R; tables have 2 R + 2 entries, the first for pairs with a class token.
        class_tokens: number of class tokens, which are first.
        head_dim: channels of a head, for the number of empty groups (see `relative_groups`).
    """

    entry: Tensor
    member: Tensor

    def __init__(self, grid: tuple[int, int], distance: int, class_tokens: int, head_dim: int):
        super().__init__()
        cpu = torch.device("cpu")  # even if parameters are built on the meta device
        size = 2 * distance + 2
        rows, columns = torch.arange(grid[0], device=cpu), torch.arange(grid[1], device=cpu)
        by_row = (rows[None] - rows[:, None]).clamp(-distance, distance) + distance + 1
        by_column = (columns[None] - columns[:, None]).clamp(-distance, distance) + distance + 1 + size
        y, x = (part.flatten() for part in torch.meshgrid(rows, columns, indexing="ij"))
        entry = torch.cat([by_row[y], by_column[x]], dim=1)
        member = torch.cat([y[:, None] == rows, x[:, None] == columns], dim=1)
        if class_tokens:
            first = torch.tensor([0] * grid[0] + [size] * grid[1], device=cpu)
            entry = torch.cat([first.expand(class_tokens, -1), entry])
            entry = torch.cat([entry, torch.full((len(entry), class_tokens), 2 * size, device=cpu)], dim=1)
            member = F.pad(member, (0, class_tokens, class_tokens, 0))
            member[:class_tokens, -class_tokens:] = torch.eye(class_tokens, device=cpu)
        empty = relative_groups(*grid, class_tokens, head_dim) - member.shape[1]
        entry, member = F.pad(entry, (0, empty)), F.pad(member, (0, empty))
        self.register_buffer("entry", entry, persistent=False)
        self.register_buffer("member", member.float(), persistent=False)


def for_each(constants: Tensor, like: Tensor) -> Tensor:
    """Expand constants [tokens, groups] to [batch, tokens, heads, groups], with the sizes of a tensor."""
    return constants[:, None].expand(*like.shape[:3], -1)


torch.fx.wrap("for_each")  # opaque to torch.fx: constants are not proxies, and the batch size is unknown


class RelativePosition(nn.Module):
    """One block's tables [2 R + 2, head_dim], shared by its heads (AutoFormer section 3, after Shaw et al. 2018)."""

    def __init__(self, distance: int, head_dim: int):
        super().__init__()
        self.key_rows = new_parameter(2 * distance + 2, head_dim)
        self.key_columns = new_parameter(2 * distance + 2, head_dim)
        self.value_rows = new_parameter(2 * distance + 2, head_dim)
        self.value_columns = new_parameter(2 * distance + 2, head_dim)

    def select(self) -> dict[str, Tensor]:
        """Return all parameters, which do not depend on choices."""
        return dict(self.named_parameters())

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, index: RelativeIndex) -> Tensor:
        """Return the attention of queries, keys and values [batch, tokens, heads, head_dim], in that shape.

        The scores are [q, q's products with its entry for each group] . [k, the key's membership in groups], a single
        product for a fused kernel. v is extended by the key's membership too, so its weighted sum also gives each
        group's total weight, which is scattered to the entries and multiplied with the value tables.
        """
        batch, tokens, heads, head_dim = q.shape
        keys = torch.cat([self.key_rows, self.key_columns, self.key_rows[:1] + self.key_columns[:1]])
        values = torch.cat([self.value_rows, self.value_columns, self.value_rows[:1] + self.value_columns[:1]])
        entry = for_each(index.entry, q)
        member = for_each(index.member, k).to(k.dtype)
        by_entry = q.reshape(-1, head_dim) @ keys.T
        by_group = by_entry.view(batch, tokens, heads, -1).gather(-1, entry)
        q, k, v = (torch.cat(pair, -1).transpose(1, 2) for pair in ((q, by_group), (k, member), (v, member)))
        out = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)
        out, weights = out.split([head_dim, entry.shape[-1]], dim=-1)
        spread = weights.new_zeros(batch, tokens, heads, values.shape[0]).scatter_add(-1, entry, weights)
        out = torch.addmm(out.reshape(-1, head_dim), spread.view(-1, values.shape[0]), values)
        return out.view(batch, tokens, heads, head_dim)

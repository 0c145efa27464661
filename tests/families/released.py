"""AutoFormer's supernet as the reference notes describe the released code, the long way: an oracle in released names.

It has the [tokens, tokens, head_dim] embeddings and rebuilds every slice; nothing of raynas is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def released_state(
    width: int, depth: int, heads: int, head_dim: int, hidden: int, patch: int, grid: int, classes: int, distance: int
) -> dict[str, Tensor]:
    """A random state under the released names."""
    query = heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embed": (1, grid * grid + 1, width),
        "cls_token": (1, 1, width),
        "patch_embed_super.proj.weight": (width, 3, patch, patch),
        "patch_embed_super.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (classes, width),
        "head.bias": (classes,),
    }
    for i in range(depth):
        block = {
            "attn.qkv.weight": (3 * query, width),
            "attn.qkv.bias": (3 * query,),
            "attn.proj.weight": (width, query),
            "attn.proj.bias": (width,),
            "fc1.weight": (hidden, width),
            "fc1.bias": (hidden,),
            "fc2.weight": (width, hidden),
            "fc2.bias": (width,),
        }
        for norm in ("attn_layer_norm", "ffn_layer_norm"):
            block.update({f"{norm}.weight": (width,), f"{norm}.bias": (width,)})
        for side in "kv":
            for axis in "vh":
                block[f"attn.rel_pos_embed_{side}.embeddings_table_{axis}"] = (2 * distance + 2, head_dim)
        shapes.update({f"blocks.{i}.{name}": shape for name, shape in block.items()})
    generator = torch.Generator().manual_seed(5)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def pair_embedding(vertical: Tensor, horizontal: Tensor, grid: int, distance: int) -> Tensor:
    """[tokens, tokens, head_dim] for a square grid with a class token."""
    y, x = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    tables = []
    for table, place in ((vertical, y.flatten()), (horizontal, x.flatten())):
        offset = (place[None] - place[:, None]).clamp(-distance, distance) + distance + 1
        tables.append(table[F.pad(offset, (1, 0, 1, 0))])
    return tables[0] + tables[1]


def released_forward(
    state: dict[str, Tensor],
    images: Tensor,
    width: int,
    heads: list[int],
    hidden: list[int],
    head_dim: int,
    distance: int,
) -> Tensor:
    """Logits of one subnet, mean-pooled over the patch tokens."""
    patch = state["patch_embed_super.proj.weight"].shape[-1]
    grid = images.shape[-1] // patch
    x = F.conv2d(
        images,
        state["patch_embed_super.proj.weight"][:width],
        state["patch_embed_super.proj.bias"][:width],
        stride=patch,
    )
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([state["cls_token"][..., :width].expand(len(x), -1, -1), x], 1) + state["pos_embed"][..., :width]
    for i, (count, inner) in enumerate(zip(heads, hidden, strict=True)):
        block = {name.removeprefix(f"blocks.{i}."): t for name, t in state.items() if name.startswith(f"blocks.{i}.")}

        def norm(x: Tensor, name: str, block: dict[str, Tensor] = block) -> Tensor:
            return F.layer_norm(x, (width,), block[f"{name}.weight"][:width], block[f"{name}.bias"][:width], 1e-5)

        query = count * head_dim
        dealt = block["attn.qkv.weight"][: 3 * query, :width]
        weight = torch.cat([dealt[part::3] for part in range(3)])
        qkv = F.linear(norm(x, "attn_layer_norm"), weight, block["attn.qkv.bias"][: 3 * query])
        q, k, v = qkv.unflatten(-1, (3, count, head_dim)).permute(2, 0, 3, 1, 4)
        embedding = {
            side: pair_embedding(
                block[f"attn.rel_pos_embed_{side}.embeddings_table_v"],
                block[f"attn.rel_pos_embed_{side}.embeddings_table_h"],
                grid,
                distance,
            )
            for side in "kv"
        }
        scores = q @ k.transpose(-1, -2) + torch.einsum("bhid,ijd->bhij", q, embedding["k"])
        weights = (scores * head_dim**-0.5).softmax(-1)
        out = weights @ v + torch.einsum("bhij,ijd->bhid", weights, embedding["v"])
        out = out.transpose(1, 2).flatten(2)
        x = x + F.linear(out, block["attn.proj.weight"][:width, :query], block["attn.proj.bias"][:width])
        y = F.gelu(F.linear(norm(x, "ffn_layer_norm"), block["fc1.weight"][:inner, :width], block["fc1.bias"][:inner]))
        x = x + F.linear(y, block["fc2.weight"][:width, :inner], block["fc2.bias"][:width])
    x = F.layer_norm(x, (width,), state["norm.weight"][:width], state["norm.bias"][:width], 1e-5)
    return F.linear(x[:, 1:].mean(1), state["head.weight"][:, :width], state["head.bias"])

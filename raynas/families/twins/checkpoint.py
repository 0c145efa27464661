"""Import of weights from timm's Twins-SVT."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.twins.model import TwinsSupernet
from raynas.nets.timm_weights import with_classifier
from raynas.space import Space

# timm's names by our names inside a stage or a block, with `{}` for the stage.
_STAGE = {"embedding": "patch_embeds.{}.proj", "norm": "patch_embeds.{}.norm", "position": "pos_block.{}.proj.0"}
_BLOCK = {
    "norm1": "norm1",
    "attention.proj": "attn.proj",
    "attention.reduction": "attn.sr",
    "attention.norm": "attn.norm",
    "norm2": "norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}


def read_timm(model: nn.Module, name: str) -> tuple[Space, dict[str, Tensor]]:
    """Read one of timm's Twins-SVT models as the one-point space of its network; see `raynas.space.families`."""
    state = {key: value.detach().float() for key, value in model.state_dict().items()}
    if "norm.weight" in state:
        with_classifier(state, "head", len(state["norm.weight"]))
    space = _space(model, state, name)
    with torch.device("meta"):
        ours = TwinsSupernet(space).state_dict()
    read = {}
    for key, tensor in ours.items():
        parts = []
        for source in _sources(key):
            if source not in state:
                raise UserError(f"{name} has no {source}: no twins space can express it")
            parts.append(state.pop(source))
        value = parts[0] if len(parts) == 1 else torch.cat(parts)
        # timm's query, key and value are concatenated along the outputs; ours have a separate axis.
        value = value.unflatten(0, (3, -1)) if ".qkv." in key else value
        if value.shape != tensor.shape:
            raise UserError(
                f"{name} has {key} of shape {list(value.shape)}, where a twins space has {list(tensor.shape)}"
            )
        read[key] = value.clone(memory_format=torch.contiguous_format)
    if state:
        raise UserError(f"{name} has {next(iter(state))!r}, which no twins space can express")
    return space, read


def _sources(key: str) -> list[str]:
    """Return timm's names of one of our parameters, whose tensors are concatenated if there are several."""
    stage = re.fullmatch(r"stages\.(\d+)\.(\w+)\.(weight|bias)", key)
    if stage:
        return [f"{_STAGE[stage[2]].format(stage[1])}.{stage[3]}"]
    block = re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)\.(weight|bias)", key)
    if not block:
        return [key]
    prefix, layer, leaf = f"blocks.{block[1]}.{block[2]}", block[3], block[4]
    kind = re.match(r"attention\.(lsa|gsa)\.", layer)
    layer = re.sub(r"^attention\.(lsa|gsa)\.", "attention.", layer)
    if layer == "attention.qkv.shared":
        joined = ["qkv"] if kind and kind[1] == "lsa" else ["q", "kv"]
        return [f"{prefix}.attn.{part}.{leaf}" for part in joined]
    return [f"{prefix}.{_BLOCK[layer]}.{leaf}"]


def _space(model: Any, state: dict[str, Tensor], name: str) -> Space:
    """Return the one-point space of a model's network."""
    try:
        if model.global_pool != "avg":
            raise UserError(f"{name} pools by {model.global_pool!r}: no twins space can express it")
        embeddings = [embedding.proj for embedding in model.patch_embeds]
        attentions = [[block.attn for block in blocks] for blocks in model.blocks]
        windows = {each.ws for stage in attentions for each in stage if hasattr(each, "ws")}
        reductions = [max((getattr(each, "sr_ratio", 1) for each in stage), default=1) for stage in attentions]
        definition: dict[str, Any] = {
            "family": "twins",
            "input": {"size": list(model.patch_embeds[0].img_size), "channels": embeddings[0].in_channels},
            "classes": state["head.weight"].shape[0],
            "constants": {
                "patch_sizes": [embedding.kernel_size[0] for embedding in embeddings],
                "reductions": reductions,
                "norm_eps": model.norm.eps,
                "embedding_norm_eps": model.patch_embeds[0].norm.eps,
            },
            "dimensions": {
                "stages": [
                    {
                        "width": [embedding.out_channels],
                        "depth": [len(stage)],
                        "blocks": [_block(block) for block in blocks],
                    }
                    for embedding, stage, blocks in zip(embeddings, attentions, model.blocks, strict=True)
                ]
            },
        }
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{name} is not a Twins-SVT that a twins space can express ({error})") from error
    if len(windows) > 1:
        raise UserError(f"{name} has windows of {sorted(windows)} tokens: a twins space has one size")
    if windows:
        definition["constants"]["window"] = windows.pop()
    return Space.from_dict(definition, name)


def _block(block: Any) -> dict[str, list[Any]]:
    """Return the choices of a block of the one arch."""
    return {
        "global_attention": [hasattr(block.attn, "sr_ratio")],
        "heads": [block.attn.num_heads],
        "query_width": [block.attn.dim],
        "mlp_width": [block.mlp.fc1.out_features],
    }

"""timm's `create_model` builds our networks after `import raynas.timm`.

    import raynas.timm, timm
    timm.create_model("raynas_vit", pretrained=True, arch="DIR")
    timm.create_model("local-dir:DIR", pretrained=True)

timm has no plug-in mechanism: a model exists for it once its function has been passed to `register_model`. An explicit
import is one line for the user, and changes nothing about the imports of those who do not write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models import build_model_with_cfg, register_model
from torch import nn

from raynas.errors import UserError
from raynas.runs.network_folder import load_network_folder, load_network_of_config
from raynas.text import shown


@register_model
def raynas_vit(
    pretrained: bool = False,
    arch: str | Path | Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    global_pool: str | None = None,
    drop_rate: float = 0.0,
    drop_path_rate: float = 0.0,
    features_only: bool = False,
    out_indices: int | tuple[int, ...] | None = None,
    feature_cls: str | None = None,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
    pretrained_model_args: Any = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Build a network found by raynas, for `timm.create_model("raynas_vit", arch=...)`.

    Args:
        pretrained: True to load the weights that lie beside the arch file (`model.safetensors`).
        arch: a directory written by `raynas export` or `raynas retrain`, an arch file, or a shipped arch's name; or an
            arch file's content, if timm read it from the `config.json` of a folder or of a hub.
        num_classes: number of classes; by default the arch's own. Another number makes a new head, with a message; 0
            leaves the head out.
        in_chans: number of channels; by default the arch's own. Weights are adapted to another, with a message.
        img_size: height and width of the images; by default the arch's own.
        global_pool: the network's own pooling, or empty for none.
        drop_rate: dropout of the classifier's input, in training.
        drop_path_rate: largest rate of stochastic depth, in training; it rises from 0 over the network's blocks.
        features_only: return feature maps in place of logits.
        out_indices: levels of the feature maps; by default the last three blocks (vit) or the last four stages.
        feature_cls: `getter` for feature maps [batch, channels, rows, columns]. By default those of family s3 are
            [batch, rows, columns, channels], as timm's Swin gives them; attribute `output_fmt` says which.
        pretrained_cfg: given by timm if it read a `config.json`: preprocessing, and the place of the weights.
        pretrained_cfg_overlay, pretrained_model_args: not used; timm passes them to every model.
        cache_dir: folder of downloads from a hub.
        device, dtype: where the network is, and the type of its weights; by default the CPU and fp32.

    Raises:
        UserError: no arch is given, it cannot be read or has no weights, or an option does not fit it.
    """
    if arch is None:
        raise UserError(
            'raynas_vit needs arch=...: the directory of `raynas export`, or an arch file such as "arch.yaml"'
        )
    if pretrained_cfg_overlay or (pretrained_cfg and not isinstance(arch, Mapping)):
        raise UserError("raynas_vit reads its weights and preprocessing from `arch`; it takes no pretrained_cfg")
    if feature_cls not in (None, "getter"):
        raise UserError(f"feature_cls={feature_cls!r}: networks of raynas give their features by 'getter'")
    for name, rate in (("drop_rate", drop_rate), ("drop_path_rate", drop_path_rate)):
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"{name} must be a number from 0 to below 1, not {shown(rate)}")
    if isinstance(arch, Mapping):
        model = load_network_of_config(arch, pretrained_cfg, pretrained, num_classes, in_chans, cache_dir)
    else:
        model = load_network_folder(arch, pretrained, num_classes, in_chans)
    model.remove_token_head()  # its parameters would be without gradients
    model.register_load_state_dict_pre_hook(_without_token_head)
    model.set_input_size(img_size)
    model.set_pooling(global_pool)
    model.dropout, model.drop_path, model.drop_path_over = drop_rate, drop_path_rate, "network"
    most = min(3 if model.space.family == "vit" else 4, len(model.levels()))
    features: dict[str, Any] = {"features_only": True, "out_indices": most if out_indices is None else out_indices}
    layout = getattr(model, "output_fmt", "NCHW") if feature_cls is None else "NCHW"
    built = build_model_with_cfg(
        lambda **_: model,
        "raynas_vit",
        pretrained=False,
        pretrained_cfg=model.pretrained_cfg,
        feature_cfg={"feature_cls": "getter", "output_fmt": layout},
        **(features if features_only else {}),
    )
    return built.to(device=device, dtype=dtype)


def _without_token_head(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Drop the weights of a token head, with which networks are exported, before they are loaded."""
    for name in [name for name in state if name.startswith("token_head.")]:
        del state[name]

"""timm's `create_model` builds our networks after `import raynas.timm`.

    import raynas.timm, timm
    timm.create_model("raynas_vit", pretrained=True, arch="DIR")

timm has no plug-in mechanism: a model exists for it once its function has been passed to `register_model`. An explicit
import is one line for the user, and changes nothing about the imports of those who do not write it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timm.models import register_model
from torch import nn

from raynas.errors import UserError
from raynas.runs.network_folder import load_network_folder


@register_model
def raynas_vit(
    pretrained: bool = False,
    arch: str | Path | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
) -> nn.Module:
    """Build a network found by raynas, for `timm.create_model("raynas_vit", arch=...)`.

    Args:
        pretrained: True to load the weights that lie beside the arch file (`model.safetensors`).
        arch: a directory written by `raynas export` or `raynas retrain`, an arch file, or a shipped arch's name.
        num_classes: number of classes; by default the arch's own. Another number makes a new head, with a message.
        in_chans: number of channels; by default the arch's own. Weights are adapted to another, with a message.
        pretrained_cfg: not used; timm passes it to every model. So are `pretrained_cfg_overlay` and `cache_dir`.

    Raises:
        UserError: no arch is given, it cannot be read, or it has no weights beside it.
    """
    if pretrained_cfg or pretrained_cfg_overlay:
        raise UserError("raynas_vit reads its weights and preprocessing from `arch`; it takes no pretrained_cfg")
    if arch is None:
        raise UserError(
            'raynas_vit needs arch=...: the directory of `raynas export`, or an arch file such as "arch.yaml"'
        )
    return load_network_folder(arch, weights=pretrained, classes=num_classes, channels=in_chans)

"""timm's `create_model` builds our networks: `timm.create_model("raynas_vit", pretrained=True, arch="DIR")`.

timm has no plug-in mechanism: a model exists for it once its function has been passed to `register_model`. `import
raynas` must stay light, though, and timm brings torch. So the registration waits for timm: if it is already there, it
happens at once; if not, an import hook lets it happen as the last step of whoever's `import timm`. The hook changes
nothing else about that import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["raynas_vit", "register", "register_when_imported"]

ARCH_FILE = "arch.yaml"
WEIGHTS_FILE = "model.safetensors"


def raynas_vit(
    pretrained: bool = False,
    arch: str | Path | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
) -> nn.Module:
    """A network found by raynas, for `timm.create_model("raynas_vit", arch=...)`.

    Args:
        pretrained: whether to load the weights that lie beside the arch file (`model.safetensors`).
        arch: a directory written by `raynas export` or `raynas retrain`, an arch file, or a shipped arch's name.
        num_classes: number of classes; by default the arch's own. Another number makes a new head, with a message.
        in_chans: number of channels; by default the arch's own. Weights are adapted to another, with a message.
        pretrained_cfg: not used; timm passes it to every model. So are `pretrained_cfg_overlay` and `cache_dir`.

    Raises:
        UserError: no arch is given, it cannot be read, or it has no weights beside it.
    """
    from raynas.errors import UserError
    from raynas.networks import load_network

    if pretrained_cfg or pretrained_cfg_overlay:
        raise UserError("raynas_vit reads its weights and preprocessing from `arch`; it takes no pretrained_cfg")
    if arch is None:
        raise UserError(
            'raynas_vit needs arch=...: the directory of `raynas export`, or an arch file such as "arch.yaml"'
        )
    return load_network(arch, weights=pretrained, classes=num_classes, channels=in_chans)


def register() -> None:
    """Make `raynas_vit` known to timm, which this imports. A second call does nothing."""
    from timm.models import is_model, register_model

    if not is_model("raynas_vit"):
        register_model(raynas_vit)


def register_when_imported() -> None:
    """Register now if timm is imported already, else at the end of its import."""
    if "timm" in sys.modules:
        register()
    elif not any(isinstance(finder, _TimmHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TimmHook())


class _TimmHook(MetaPathFinder):
    """Finds `timm` as the other finders do, and has its loader call `register` after the module's own code."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "timm":
            return None
        # The hook stays in place: many libraries only look for timm's spec without importing it.
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            _register_after(spec.loader)
        return spec


def _register_after(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        register()

    loader.exec_module = exec_module  # type: ignore[method-assign]

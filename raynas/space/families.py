"""The supernet families, each imported when one of its spaces is first read.

A family is a folder in `raynas/families`: `space.py` (its constants and dimensions, `FAMILY`), `cost.py` (`terms`),
`elastic.py` (`whole`), `model.py` (`SUPERNET`) and `checkpoint.py` (`read_released`, `read_timm`). The first three do
not import torch.

`read_released(checkpoint, space)` reads a released checkpoint, and `read_timm(model, name)` a model from
`timm.create_model` as a one-point space of that name. Both return the space and the parameters of its supernet by our
names, in float32, and raise UserError with the first part that such a space cannot express.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from raynas.space.rules import Family

FAMILIES: dict[str, str] = {name: f"raynas.families.{name}" for name in ("vit", "twins", "vit_res", "hybrid", "s3")}
"""The package of each family, by the name that a space file gives."""


def family_module(name: str, part: str) -> ModuleType:
    """Import one module of a family: `space`, `cost`, `elastic`, `model` or `checkpoint`."""
    return importlib.import_module(f"{FAMILIES[name]}.{part}")


def family_of(name: str) -> Family:
    """Return a family's constants and dimensions."""
    family: Family = family_module(name, "space").FAMILY
    return family

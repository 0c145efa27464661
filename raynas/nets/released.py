"""Reading checkpoint files of others: tensors by name, and nothing that could run code."""

from __future__ import annotations

import argparse
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raynas.errors import UserError

Checkpoint = str | Path | Mapping[str, Any]
"""A file, or its content: the parameters, or a mapping that holds them under a name."""


_PLAIN: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]
"""What released checkpoints hold beside tensors: AutoFormer's arguments, and NASViT's settings, read as a mapping."""


def read_parameters(checkpoint: Checkpoint, names: Sequence[str], what: str) -> Mapping[str, Tensor]:
    """The parameters of a checkpoint.

    Args:
        names: under which a mapping may hold them, the preferred first.
        what: kind of checkpoint, for messages: `an AutoFormer checkpoint`.

    Raises:
        UserError: the file cannot be read, holds more than tensors and plain values, or no parameters, or some are not
            finite.
    """
    content: Any = checkpoint
    if not isinstance(checkpoint, Mapping):
        try:
            with torch.serialization.safe_globals(_PLAIN):
                content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise UserError(f"{checkpoint}: there is no such file") from error
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{checkpoint}: not a checkpoint of tensors alone, as torch.save writes it") from error
    state = content
    if isinstance(content, Mapping):
        state = next((content[name] for name in names if content.get(name) is not None), content)
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        listed = " or ".join(f"'{name}'" for name in names)
        raise UserError(f"not {what}: expected a mapping of parameter names to tensors, or one as {listed}")
    check_finite(state, "the checkpoint" if isinstance(checkpoint, Mapping) else str(checkpoint))
    return state


def check_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that no network could compute with.

    Args:
        state: tensors by name.
        source: of the tensors, for messages.

    Raises:
        UserError: a tensor has values that are not finite in float32; the message names the first.
    """
    valued = {name: tensor for name, tensor in state.items() if not tensor.is_meta}
    broken = [name for name, tensor in valued.items() if not tensor.float().isfinite().all()]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        held = f"{broken[0]}{more} holds NaN or infinite values"
        raise UserError(f"{source}: {held}: train it again, or give other weights")

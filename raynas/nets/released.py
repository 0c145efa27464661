"""Reading checkpoint files of others: tensors by name, and nothing that could run code."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raynas.errors import UserError

Checkpoint = str | Path | Mapping[str, Any]
"""A file, or its content: the parameters, or a mapping that holds them under a name."""


def read_parameters(checkpoint: Checkpoint, names: Sequence[str], what: str) -> Mapping[str, Tensor]:
    """The parameters of a checkpoint.

    Args:
        names: under which a mapping may hold them, the preferred first.
        what: kind of checkpoint, for messages: `an AutoFormer checkpoint`.

    Raises:
        UserError: the file cannot be read, holds more than tensors and plain values, or no parameters.
    """
    content: Any = checkpoint
    if not isinstance(checkpoint, Mapping):
        try:
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise UserError(f"{checkpoint}: there is no such file") from error
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
            first = str(error).strip().splitlines()[:1]
            raise UserError(f"{checkpoint}: not a checkpoint of tensors alone: {' '.join(first)}") from error
    state = content
    if isinstance(content, Mapping):
        state = next((content[name] for name in names if content.get(name) is not None), content)
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        listed = " or ".join(f"'{name}'" for name in names)
        raise UserError(f"not {what}: expected a mapping of parameter names to tensors, or one as {listed}")
    return state

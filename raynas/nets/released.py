"""Safe reading of released checkpoints: tensors by name, without running code from the file."""

from __future__ import annotations

import argparse
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raynas.errors import UserError

PREFIX = "module."
"""Prefix of every name if the network was saved inside torch's DataParallel."""

Checkpoint = str | Path | Mapping[str, Any]
"""A file, or its content: the parameters, or a mapping that holds them under a name."""


_PLAIN: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]
"""Other types in released checkpoints: AutoFormer's arguments, and NASViT's settings, read as a mapping."""


def read_parameters(checkpoint: Checkpoint, names: Sequence[str], what: str) -> Mapping[str, Tensor]:
    """Return the parameters of a checkpoint.

    Args:
        names: keys that may hold the parameters, the preferred first.
        what: kind of checkpoint, for messages: `an AutoFormer checkpoint`.

    Raises:
        UserError: the file cannot be read, holds other than tensors and plain values, or no parameters; or weights are
            not finite, are integers, or are negative variances.
    """
    content: Any = checkpoint
    if not isinstance(checkpoint, Mapping):
        check_file(checkpoint)
        try:
            with torch.serialization.safe_globals(_PLAIN), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch about tensors that are refused below
                content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # torch's unpickler may raise anything for a foreign file
            raise UserError(f"{checkpoint}: not a checkpoint of tensors alone, as torch.save writes it") from error
    state = content
    if isinstance(content, Mapping):
        # An empty mapping holds averaged weights if averaging never started.
        held = [content[name] for name in names if isinstance(content.get(name), Mapping) and content[name]]
        state = held[0] if held else content
    source = "the checkpoint" if isinstance(checkpoint, Mapping) else str(checkpoint)
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())
    ):
        listed = " or ".join(f"'{name}'" for name in names)
        raise UserError(f"{source} is not {what}: expected a mapping of parameter names to tensors, or one as {listed}")
    if all(name.startswith(PREFIX) for name in state):
        state = {name.removeprefix(PREFIX): value for name, value in state.items()}
    check_weights(state, source)
    return state


def check_file(path: str | Path) -> None:
    """Refuse what is not a regular file, because reading a pipe would wait for ever."""
    try:
        found = Path(path).is_file()
        exists = found or Path(path).exists()
    except (OSError, ValueError) as error:  # not a legal file name
        raise UserError(f"{str(path)!r}: no file can have this name") from error
    if not found:
        raise UserError(f"{path}: not a file" if exists else f"{path}: there is no such file")


def check_weights(state: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors that no weights can be: not dense, not finite, whole (except counters), variances below 0."""
    for name, value in state.items():
        if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_nested:
            raise UserError(f"{source}: {name} is no dense tensor of real numbers ({value.dtype}, {value.layout})")
        counts = name.endswith(("num_batches_tracked", "index"))  # a counter, or a table of indices
        if not (value.is_floating_point() or counts):
            raise UserError(f"{source}: {name} holds whole numbers, where weights are fractions")
    check_finite(state, source)
    variances = {name: value for name, value in state.items() if name.endswith("running_var") and not value.is_meta}
    negative = [name for name, value in variances.items() if bool((value < 0).any())]
    if negative:
        raise UserError(f"{source}: {negative[0]} holds variances below 0")


def check_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors with values that are not finite in float32; `source` is their origin, for the message."""
    valued = {name: tensor for name, tensor in state.items() if not tensor.is_meta}
    broken = [name for name, tensor in valued.items() if not tensor.float().isfinite().all()]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        held = f"{broken[0]}{more} holds NaN or infinite values"
        raise UserError(f"{source}: {held}: train it again, or give other weights")

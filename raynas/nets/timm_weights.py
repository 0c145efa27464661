"""Loading of timm's models with trained weights, from a file or by timm's own download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raynas.errors import UserError, reason
from raynas.nets.released import check_file, check_finite, check_weights
from raynas.nets.weights import mismatch
from raynas.text import nearest, shown

_WANTED = "not a file of weights: give a .safetensors file, or a state dict that torch.save wrote (tensors alone)"


def load_timm(
    name: str, weights_file: str | Path | None, options: Mapping[str, Any] | None = None, *, instead: str
) -> Any:
    """Load one of timm's models with trained weights.

    Args:
        name: name of the model, such as `twins_svt_small`.
        weights_file: its weights (safetensors, or a file of torch's that holds tensors alone); None to let timm
            download them, or find an earlier download.
        options: further arguments of `timm.create_model`.
        instead: option to give a file in place of the download, for messages.

    Raises:
        UserError: there is no such model, or its weights cannot be fetched, are of another model, or are not finite.
    """
    import timm

    if not timm.is_model(name):
        hint = nearest(name, timm.list_models(), "timm.list_models() lists them")
        raise UserError(f"timm has no model {name!r}{hint}")
    if weights_file is None:
        model = _fetch_timm(name, options or {}, instead)
    else:
        state = _read_timm_file(weights_file)
        bias = state.get("head.bias", state.get("head.fc.bias"))
        classes: dict[str, Any] = {} if bias is None or bias.ndim != 1 else {"num_classes": len(bias)}
        model = _create(name, classes | dict(options or {}))
        if problem := mismatch(state, model.state_dict()):
            raise UserError(f"{weights_file} holds weights of another model than {name}: {problem}")
        model.load_state_dict(state)
    check_finite(model.state_dict(), str(weights_file or f"timm's weights of {name}"))
    return model


def with_classifier(state: dict[str, Tensor], head: str, width: int) -> None:
    """Add a classifier of one class, all zeros, to a state dict of timm's if it has none, as DINOv2's.

    No data have one class, so a classifier for their classes takes its place.

    Args:
        head: timm's name of the classifier.
        width: number of features.
    """
    if f"{head}.weight" not in state:
        state |= {f"{head}.weight": torch.zeros(1, width), f"{head}.bias": torch.zeros(1)}


def _create(name: str, options: Mapping[str, Any]) -> Any:
    """Create a model with random weights.

    Raises:
        UserError: it does not take such options.
    """
    import timm

    try:
        return timm.create_model(name, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(f"timm cannot make {name} with {shown(dict(options))}: {reason(error)}") from error


def _fetch_timm(name: str, options: Mapping[str, Any], instead: str) -> Any:
    """Create a model with the weights that timm downloads, or has downloaded before."""
    import timm
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import logging

    about = timm.get_pretrained_cfg(name)
    source = f"{ENDPOINT}/{about.hf_hub_id}" if about and about.hf_hub_id else about and about.url
    print(
        f"fetching the weights of {name}{f' from {source}' if source else ''}, unless timm has them already; "
        f"without a network it tries for minutes; give a file of them with {instead}",
        flush=True,
    )
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # without a network: two warnings for each of its many retries
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # of whichever library talks to the network
        why = " ".join(str(error).split()[:40]) or type(error).__name__
        raise UserError(f"timm cannot download the weights of {name} (give a file: {instead}): {why}") from error
    finally:
        logging.set_verbosity(before)


def _read_timm_file(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights, of any kind that timm reads."""
    from timm.models import load_state_dict

    check_file(path)
    try:
        state = load_state_dict(str(path), weights_only=True)
    except Exception as error:  # of whichever library reads the file; few say what a user could mend
        raise UserError(f"{path}: {_WANTED}") from error
    named = isinstance(state, Mapping) and all(isinstance(name, str) for name in state)
    if not named or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path}: {_WANTED}")
    check_weights(state, str(path))
    return dict(state)

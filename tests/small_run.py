"""A run directory with a supernet, made in a second: fresh weights, the embedded digits, and a tiny space."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.presets.preset import Preset
from raynas.runs.run import Run
from raynas.space import Space, load_space

SPACE: Space = load_space("digits/vit")

PRESET = Preset.model_validate(
    {
        "space": "digits/vit",
        "data": {"name": "digits"},
        "recipe": {"epochs": 1, "batch_size": 128, "lr": 2e-3, "lr_base_batch": None, "warmup_epochs": 0},
        "search": {
            "constraints": {"macs": [None, 900_000]},
            "evaluations": 14,
            "options": {"population": 6, "parents": 3, "mutations": 3, "crossovers": 3},
            "batch": 5,
        },
        "retrain": {"train_on": "train"},
        "reference": "digits/deit",
    }
)


def small_run(path: Path | str) -> Run:
    """The files that training leaves, with the weights that it would start from."""
    run = Run(path, create=True)
    torch.manual_seed(0)
    state = build_supernet(SPACE).state_dict()
    run.write_yaml("space.yaml", SPACE.to_dict())
    run.write_yaml("preset.yaml", PRESET)
    run.write_bytes("supernet.safetensors", save(state))
    run.write_json("supernet.json", {"fingerprint": weights_fingerprint(state), "seed": 0})
    return run

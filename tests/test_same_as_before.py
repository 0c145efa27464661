"""The same seed gives the same archs, scores and weights as in the recorded version."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raynas

RECORDED = Path(__file__).parent / "golden" / "same_as_before.json"
SPACES = ("digits/vit", "digits/vitas_v1", "digits/twins", "digits/s3", "digits/vit_resnas", "digits/nasvit")
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("RandomSearch", {}),
    "evolution": ("Evolution", {"population": 10, "parents": 4, "mutations": 5, "crossovers": 5}),
    "nsga2": ("NSGA2", {"population": 10, "objectives": {"accuracy": "max", "macs": "min"}}),
    "pareto": ("ParetoEvolution", {"initial": 20, "objectives": {"accuracy": "max", "macs": "min"}}),
    "predictor": ("PredictorEvolution", {"samples": 20, "held_out": 8, "verify": 8}),
}


def digest(values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def sampled(space: str) -> str:
    """Ids of 50 sampled archs, their MACs and the space's fingerprint."""
    loaded = raynas.load_space(space)
    rng = np.random.default_rng(3)
    archs = [loaded.sample(rng) for _ in range(50)]
    costs = raynas.cost(loaded, archs)
    return digest([loaded.fingerprint, [arch.id for arch in archs], costs["macs"].tolist(), costs["params"].tolist()])


def searched(space: str, name: str) -> str:
    """Ids of the archs that a search asks for when it is told a fixed function of them."""
    loaded = raynas.load_space(space)
    kind, options = SEARCHES[name]
    low, high = (float(raynas.cost(loaded, [arch])["macs"][0]) for arch in (loaded.smallest(), loaded.largest()))
    limit = low + 0.7 * (high - low)
    search = getattr(raynas, kind)(loaded, constraints={"macs": (None, limit)}, seed=5, evaluations=60, **options)
    asked = []
    while archs := search.ask(7):
        asked += [arch.id for arch in archs]
        macs = raynas.cost(loaded, archs)["macs"]
        noise = [int(arch.id, 16) % 997 / 9970 for arch in archs]
        search.tell(archs, [0.3 + 0.5 * (m - low) / (high - low) + n for m, n in zip(macs, noise, strict=True)])
    return digest(asked)


def scored(space: str) -> list[list[float]]:
    """Accuracy and loss of three subnets of a fresh supernet on fixed images."""
    loaded = raynas.load_space(space)
    torch.manual_seed(7)
    supernet = raynas.build_supernet(loaded).eval()
    generator = torch.Generator().manual_seed(11)
    images = torch.randint(0, 256, (48, loaded.channels, *loaded.input_size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, loaded.classes, (48,), generator=generator)
    rng = np.random.default_rng(2)
    archs = [loaded.smallest(), loaded.largest(), loaded.sample(rng)]
    with raynas.LocalScorer.from_parts(loaded, supernet, images, labels) as scorer:
        return [[row["accuracy"], round(row["loss"], 4)] for row in scorer.score(archs)]


def everything() -> dict[str, Any]:
    """All that is compared."""
    return {
        "sampled": {space: sampled(space) for space in SPACES},
        "searched": {f"{space} {name}": searched(space, name) for space in SPACES[::2] for name in SEARCHES},
        "scored": {space: scored(space) for space in SPACES},
    }


def test_sampled_archs() -> None:
    recorded = json.loads(RECORDED.read_text())["sampled"]
    assert {space: sampled(space) for space in SPACES} == recorded


@pytest.mark.parametrize(
    ("space", "name"),
    [
        # Forests take a minute each.
        pytest.param(space, name, marks=[pytest.mark.slow] if name == "predictor" else [])
        for space in SPACES[::2]
        for name in SEARCHES
    ],
)
def test_searched_archs(space: str, name: str) -> None:
    assert searched(space, name) == json.loads(RECORDED.read_text())["searched"][f"{space} {name}"]


@pytest.mark.parametrize("space", SPACES)
def test_scores(space: str) -> None:
    for found, before in zip(scored(space), json.loads(RECORDED.read_text())["scored"][space], strict=True):
        assert found[0] == before[0]
        assert found[1] == pytest.approx(before[1], rel=1e-3)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(everything(), indent=1) + "\n")

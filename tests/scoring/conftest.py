from __future__ import annotations

import numpy as np
import pytest
import ray
from torch import Tensor

from raynas.data.images import decode
from raynas.data.load import load_data
from raynas.data.pixels import Normalisation
from raynas.space import Arch, Space, load_space
from tests.scoring import scoring_parts

ray.cloudpickle.register_pickle_by_value(scoring_parts)  # replicas do not see this folder


@pytest.fixture(scope="session")
def space() -> Space:
    return load_space("digits/vit")


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor, Normalisation]:
    """Some of the search images, uint8 [40, 1, 8, 8], their labels, and what they are normalised with."""
    data = load_data("digits")
    pixels, labels = decode(data.search)
    return pixels[:40], labels[:40], data.normalisation


@pytest.fixture
def archs(space: Space) -> list[Arch]:
    """Twelve different archs, cheap ones first."""
    drawn = space.decode(space.sample_codes(np.random.default_rng(5), 40))
    return list(dict.fromkeys([space.smallest(), *drawn]))[:12]

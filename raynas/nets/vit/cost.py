"""What a vit subnet costs, from its encoded choices alone (numpy, no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np


def hidden_width(width: Any, ratio: Any) -> Any:
    """Hidden channels of an MLP: floor(width x ratio), for numbers (an int) or arrays (int64) alike."""
    product = np.floor(np.multiply(width, ratio))
    return int(product) if np.ndim(product) == 0 else product.astype(np.int64)

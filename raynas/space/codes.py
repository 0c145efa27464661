"""Archs encoded as one array."""

from __future__ import annotations

import numpy as np

Codes = np.ndarray
"""Encoded archs, int16 [n, dimensions]: the index of each choice, or INACTIVE."""

INACTIVE = -1
"""The code of an inactive gene."""

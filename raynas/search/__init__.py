"""Ask/tell search algorithms: numpy, no torch."""

from raynas.search.config import SearchConfig

__all__ = ["SearchConfig"]

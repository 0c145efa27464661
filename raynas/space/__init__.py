"""Search spaces and architectures: everything about them that needs no network."""

from raynas.space.codes import INACTIVE, Codes
from raynas.space.dimension import Choice, Dimension
from raynas.space.distribution import Distribution
from raynas.space.load import load_arch, load_space, save_arch
from raynas.space.space import Arch, Space, check_space

__all__ = [
    "INACTIVE",
    "Arch",
    "Choice",
    "Codes",
    "Dimension",
    "Distribution",
    "Space",
    "check_space",
    "load_arch",
    "load_space",
    "save_arch",
]

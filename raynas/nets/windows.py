"""Windows on a grid of tokens: splitting tokens into windows and joining them again, plain or shifted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """A division of a grid into windows, with padding at the bottom and right if they do not divide it.

    Shifted windows begin `shift` tokens further down and right. The partial windows at both ends of an axis are
    computed together (Liu et al., 2021, section 3.2), so there are as many windows as without a shift.

    Attributes:
        grid: rows and columns of tokens.
        window: rows and columns of a window.
        shift: rows and columns by which windows are shifted.
    """

    grid: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int] = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of windows."""
        return (-(-self.grid[0] // self.window[0]), -(-self.grid[1] // self.window[1]))

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of padding."""
        below, right = (n * side - length for n, side, length in zip(self.counts, self.window, self.grid, strict=True))
        return below, right

    @property
    def mixed(self) -> bool:
        """True if a window holds tokens that are not neighbours, or padding."""
        return any(self.shift) or any(self.padding)

    def split(self, x: Tensor) -> Tensor:
        """Split tokens [batch, tokens, channels] to [batch, windows, tokens of a window, channels], zero-padded."""
        x = x.unflatten(1, self.grid)
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), (1, 2))
        x = x.unflatten(2, (self.counts[1], self.window[1])).unflatten(1, (self.counts[0], self.window[0]))
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Join windows to tokens; the inverse of `split`."""
        x = x.unflatten(2, self.window).unflatten(1, self.counts).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if any(self.shift):
            x = x.roll(self.shift, (1, 2))
        if any(self.padding):
            x = x[:, : self.grid[0], : self.grid[1]]
        return x.flatten(1, 2)

    def strangers(self, device: torch.device) -> Tensor | None:
        """Return the pairs of tokens in a computed window that must not attend to each other.

        These are tokens from opposite ends of a shifted axis, and tokens with padding. Padding may attend to padding,
        so that every token has something to attend to.

        Returns:
            [windows, tokens of a window, tokens of a window] bool; None if there are no such pairs.
        """
        if not self.mixed:
            return None
        rows, columns = (self._kinds(axis, device) for axis in (0, 1))
        kinds = rows[:, None, :, None] * 3 + columns[None, :, None, :]  # [window rows, window columns, rows, columns]
        kinds = kinds.flatten(2).flatten(0, 1)
        return kinds[:, :, None] != kinds[:, None, :]

    def _kinds(self, axis: int, device: torch.device) -> Tensor:
        """Return [windows along an axis, window]: 1 for tokens that a shift moves to the end, 2 for padding, else 0."""
        length = self.counts[axis] * self.window[axis]
        computed = torch.arange(length, device=device)
        place = (computed + self.shift[axis]) % length
        kinds = (computed >= length - self.shift[axis]).long()
        return kinds.masked_fill(place >= self.grid[axis], 2).view(-1, self.window[axis])

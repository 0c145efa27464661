"""Channels: which channels of an axis act, the one idea inside every elastic layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torch import Tensor

from raynas.errors import UserError


@dataclass(frozen=True, eq=False)
class RowCounts:
    """How many of the selected channels act in each row of a batch (the first so many; of each tile, where tiled).

    Attributes:
        counts: the different counts.
        which: [batch] int64, which of `counts` each row has.
        mask: [batch, 1, channels] bool, True where a channel acts.
    """

    counts: tuple[int, ...]
    which: Tensor
    mask: Tensor


@dataclass(frozen=True, eq=False)
class Channels:
    """What acts on one axis: runs of channels taken from the parameters and, in a masked batch, how many in each row.

    An axis is counted in units (a head, say): where a tensor holds several channels for each unit, the layer tells
    `unit`, so that one `Channels` serves every tensor that the axis touches.

    Attributes:
        runs: (start, stop) pairs, in the order in which the channels are laid side by side. One run from 0 is a
            prefix (ordinal sharing), a wrapping pattern is two runs, any list is runs.
        rows: None where all rows are alike.
    """

    runs: tuple[tuple[int, int], ...]
    rows: RowCounts | None = None

    @classmethod
    def first(cls, count: int) -> Channels:
        """The first `count` channels."""
        return cls(((0, count),))

    @classmethod
    def listed(cls, index: Iterable[int]) -> Channels:
        """Exactly these channels, in this order."""
        return cls(_joined((channel, channel + 1) for channel in index))

    @classmethod
    def first_of_each(cls, counts: Sequence[int], rows: Tensor) -> Channels:
        """Row i has the first `counts[rows[i]]` channels; where all counts are equal no mask is made.

        Args:
            counts: one count for each arch.
            rows: [batch] int64, each row's arch.
        """
        different = tuple(sorted(set(counts)))
        widest = different[-1]
        if len(different) == 1:
            return cls.first(widest)
        which = torch.tensor([different.index(count) for count in counts], device=rows.device)[rows]
        prefix = torch.arange(widest, device=rows.device) < torch.tensor(different, device=rows.device)[:, None]
        return cls(((0, widest),), RowCounts(different, which, prefix[which][:, None, :]))

    def tiled(self, copies: int, total: int) -> Channels:
        """These channels of each of several axes that lie behind one another, `total` channels each."""
        offsets = range(0, copies * total, total)
        runs = _joined((offset + start, offset + stop) for offset in offsets for start, stop in self.runs)
        if self.rows is None:
            return Channels(runs)
        counts = tuple(copies * count for count in self.rows.counts)
        return Channels(runs, RowCounts(counts, self.rows.which, self.rows.mask.tile(copies)))

    @property
    def count(self) -> int:
        """Number of channels selected (the widest row's)."""
        return sum(stop - start for start, stop in self.runs)

    def select(self, tensor: Tensor, dim: int, unit: int = 1) -> Tensor:
        """The acting channels of a parameter's axis: the tensor itself when all of it acts, else a view or a copy.

        Args:
            tensor: a parameter whose axis `dim` has `unit` channels for each channel here.

        Raises:
            UserError: the tensor does not have that many channels.
        """
        if isinstance(tensor, torch.fx.Proxy):
            return tensor  # fx traces networks of one arch, in which all of every axis acts
        size = tensor.shape[dim]
        # A pattern that wraps around, or takes the last channels, never points beyond the end: it asks for too many.
        if max(self.count, *(stop for _, stop in self.runs)) * unit > size:
            raise UserError(f"the arch needs {self.count * unit} channels, but the supernet has {size}")
        if self.runs == ((0, size // unit),) and size % unit == 0:
            return tensor
        pieces = [tensor.narrow(dim, start * unit, (stop - start) * unit) for start, stop in self.runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write values [count] to the acting channels of a tensor [channels], in place."""
        for (start, stop), piece in zip(
            self.runs, values.split([stop - start for start, stop in self.runs]), strict=True
        ):
            tensor[start:stop] = piece

    def mask(self, x: Tensor, unit: int = 1, inplace: bool = False) -> Tensor:
        """Activations [batch, tokens, count * unit] with what does not act in a row set to zero.

        Args:
            inplace: overwrite x, which nothing else may need.
        """
        if self.rows is None:
            return x
        mask = self.rows.mask
        if unit > 1:
            mask = mask.repeat_interleave(unit, dim=-1)
        mask = mask.to(x.dtype)  # a float32 mask would silently promote bfloat16
        return x.mul_(mask) if inplace else x * mask


def _joined(pieces: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Runs of channels, those that follow one another as one."""
    runs: list[tuple[int, int]] = []
    for start, stop in pieces:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return tuple(runs)

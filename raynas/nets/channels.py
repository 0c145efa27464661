"""Active channels of an axis: the basis of every elastic layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torch import Tensor

from raynas.errors import UserError


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Numbers of active channels in each row of a batch: the first of the selected ones (of each tile, if tiled).

    Attributes:
        counts: the different counts.
        which: [batch] int64, each row's index into `counts`.
        mask: [batch, 1, channels] bool, True for active channels.
    """

    counts: tuple[int, ...]
    which: Tensor
    mask: Tensor


@dataclass(frozen=True, eq=False)
class Channels:
    """Active channels of one axis: runs of the parameters' channels and, in a masked batch, each row's count.

    An axis is counted in units (such as heads). A layer whose tensor has several channels for each unit passes `unit`,
    so that one `Channels` fits all tensors with this axis.

    Attributes:
        runs: (start, stop) pairs in the order of the selected channels. One run from 0 is a prefix (ordinal sharing);
            a pattern that wraps around has two runs.
        rows: the rows' counts; None if all rows are equal.
    """

    runs: tuple[tuple[int, int], ...]
    rows: RowCounts | None = None

    @classmethod
    def first(cls, count: int) -> Channels:
        """Select the first `count` channels."""
        return cls(((0, count),))

    @classmethod
    def listed(cls, index: Iterable[int]) -> Channels:
        """Select exactly these channels, in this order."""
        return cls(_joined((channel, channel + 1) for channel in index))

    @classmethod
    def first_of_each(cls, counts: Sequence[int], rows: Tensor) -> Channels:
        """Select the first `counts[rows[i]]` channels of row i, without a mask if all counts are equal.

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
        """Select these channels in each of several concatenated axes of `total` channels."""
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
        """Return the active channels of a parameter's axis: the tensor itself if all are active, else a view or copy.

        Args:
            tensor: a parameter whose axis `dim` has `unit` channels for each channel here.

        Raises:
            UserError: the tensor does not have that many channels.
        """
        if isinstance(tensor, torch.fx.Proxy):
            return tensor  # fx only traces networks of one arch, whose axes are whole
        size = tensor.shape[dim]
        # Patterns that wrap around or take the last channels stay within the end, so the count is checked as well.
        if max(self.count, *(stop for _, stop in self.runs)) * unit > size:
            raise UserError(f"the arch needs {self.count * unit} channels, but the supernet has {size}")
        if self.runs == ((0, size // unit),) and size % unit == 0:
            return tensor
        pieces = [tensor.narrow(dim, start * unit, (stop - start) * unit) for start, stop in self.runs]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)

    def put(self, tensor: Tensor, values: Tensor) -> None:
        """Write values [count] to the active channels of a tensor [channels], in place."""
        for (start, stop), piece in zip(
            self.runs, values.split([stop - start for start, stop in self.runs]), strict=True
        ):
            tensor[start:stop] = piece

    def mask(self, x: Tensor, unit: int = 1, inplace: bool = False) -> Tensor:
        """Set each row's inactive channels in activations [batch, tokens, count * unit] to zero.

        Args:
            inplace: overwrite x, which must not be needed elsewhere.
        """
        if self.rows is None:
            return x
        mask = self.rows.mask
        if unit > 1:
            mask = mask.repeat_interleave(unit, dim=-1)
        mask = mask.to(x.dtype)  # a float32 mask would silently promote bfloat16
        return x.mul_(mask) if inplace else x * mask


def _joined(pieces: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent runs of channels."""
    runs: list[tuple[int, int]] = []
    for start, stop in pieces:
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return tuple(runs)

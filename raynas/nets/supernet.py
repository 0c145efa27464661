"""What every supernet family shares: one arch or many, selection, extraction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.config import shown
from raynas.errors import UserError
from raynas.nets.batch_norm import Statistics, using
from raynas.nets.sharing import SIDES, Side, sides_of
from raynas.space import Arch, Space

Execution = Literal["auto", "groups", "masks"]
EXECUTIONS: tuple[Execution, ...] = get_args(Execution)
Ramp = Literal["supernet", "network"]
SupernetT = TypeVar("SupernetT", bound="Supernet")

MASKS_BELOW = 256
"""Tokens of one arch's rows, at the mean of a network's grids, below which a masked batch beats a grouped one.

Measured on one CPU thread, forward and backward, groups' time over masks'.

vit: widths up to 64: 1.4 at 136 tokens, 0.7 at 544. Widths up to 240: 1.7 at 68, 1.3 at 130, 0.9 at 272, 1.0 at 394.

vit_res: the digits' space with 4 to 16 archs: 2.8 at 116 tokens, 1.5 at 232, 1.2 at 464, 0.8 at 928. ViT-ResNAS's Tiny
space: 1.6 at 58 and 1.3 at 116 with 4 archs of images of 112 pixels, 1.1 at 113 and at 226 with 2 archs of 224 pixels.

s3: widths up to 64: 2.1 at 160 tokens and 1.6 at 320 with 8 archs, 1.2 at 640 and 0.9 at 1280 with 4. S3's first space
at 56 pixels: 1.7 at 66 and 1.3 at 132 tokens with 4 archs, 0.9 at 265 with 2.
"""


def check_token_head(space: Space) -> None:
    """Raises: UserError: networks of the space have no head for patches."""
    if not space.constants.token_head:
        raise UserError(f"space {space.name} has no token head: set its constant token_head: true")


def adopt(supernet: SupernetT, state: Mapping[str, Tensor]) -> SupernetT:
    """Give a supernet built on the meta device its parameters and its saved buffers, without a copy."""
    supernet.load_state_dict(state, assign=True)
    like = next(supernet.parameters())
    return supernet.to(device=like.device, dtype=like.dtype)  # the constants, which are never on the meta device


def resize_positions(table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """A table of position embeddings for another grid, bicubically, as ViT-ResNAS's and DeiT's releases do it.

    Args:
        table: [1, others + rows * columns, width]; the rows in front, such as a class token's, stay as they are.
        before: rows and columns of the table's grid.
        after: those of the other.

    Returns:
        [1, others + rows * columns, width].
    """
    if before == after:
        return table
    others, grid = table.split([table.shape[1] - math.prod(before), math.prod(before)], dim=1)
    image = grid.transpose(1, 2).unflatten(2, before)
    image = F.interpolate(image, size=after, mode="bicubic", align_corners=False)
    return torch.cat([others, image.flatten(2).transpose(1, 2)], dim=1)


class Supernet(nn.Module):
    """A weight-sharing network over a space; a subnet is the same class over a one-point space.

    A forward pass is told its arch; there is no current subnet. A family implements `select` and `run_one` (and what
    masks need, where it has them), and never reads a maximum of the space in a forward pass: a one-point space would
    then compute something else.

    Attributes:
        space: the search space.
        sides: the paths that the weight-sharing pattern trains: (None,) where there is one, else left and right.
        drop_path: the largest rate of stochastic depth, in [0, 1); set by training, used in training mode only.
        drop_path_over: what the rate rises over; likewise, see `draw_paths`.
        dropout: the rate at which features are dropped before the classifier; likewise.
        branches: of each block that stochastic depth may drop.
    """

    branches: ClassVar[int] = 2

    def __init__(self, space: Space):
        super().__init__()
        self.space = space
        self.drop_path = self.dropout = 0.0
        self.drop_path_over: Ramp = "supernet"
        self._only = space.smallest() if all(len(d.choices) == 1 for d in space.dimensions) else None
        self.sides = sides_of(space)

    def forward(
        self,
        x: Tensor,
        archs: Arch | Mapping[str, Any] | Sequence[Arch] | None = None,
        rows: Tensor | None = None,
        execution: Execution = "auto",
        side: Side | None = None,
        patches: bool = False,
        statistics: Statistics | None = None,
    ) -> Tensor:
        """Images to logits.

        Args:
            x: [batch, channels, height, width] as the space says.
            archs: one arch for all rows; or several for a mixed batch; or None where the space has only one.
            rows: [batch] int64, each row's index into `archs`; by default row i has `archs[i % len(archs)]`.
            execution: how a mixed batch runs: `groups` (rows of one arch together, sliced: every family and choice),
                `masks` (one pass at the batch's largest widths) or `auto` (see `prefers_masks`). The results are the
                same to rounding.
            side: the path to run where the pattern has two (see `sides`); left out, the mean of both paths' logits.
            patches: also return what the token head says of each patch token (training on token labels wants it).
            statistics: what the arch's batch norms go by, instead of the network's running averages; of one arch.

        Returns:
            Logits [batch, classes]; with `patches` [batch, 1 + patch tokens, classes], the image's first, then its
            patches' in row-major order of `token_grid`.

        Raises:
            UserError: the images are not of the space's size, an arch does not fit, there are more archs than rows,
                masks cannot express what the archs differ in, there is no such side, no token head, or the statistics
                are of another arch.
        """
        if side is None and len(self.sides) > 1:
            each = [self(x, archs, rows, execution, side, patches, statistics) for side in self.sides]
            return torch.stack(each).mean(0)
        self._check_side(side)
        if statistics is not None:
            with using(self, self._averages(statistics, archs, side)):
                return self(x, archs, rows, execution, side, patches)
        expected = (self.space.channels, *self.space.input_size)
        if x.ndim != 4 or tuple(x.shape[1:]) != expected:
            raise UserError(f"expected images [batch, {', '.join(map(str, expected))}], found {list(x.shape)}")
        if archs is None:
            if self._only is None:
                raise UserError(f"space {self.space.name} has many archs: say which, supernet(x, arch)")
            archs = self._only
        if patches:
            check_token_head(self.space)
        if execution not in EXECUTIONS:
            raise UserError(f"unknown execution {execution!r}: {', '.join(EXECUTIONS)}")
        if isinstance(archs, Mapping) and rows is None:
            arch = self._arch(archs)
            return self.run_one(self.stem_of_all(x), arch, self.draw_paths(x, [arch]), side, patches)
        given = [archs] if isinstance(archs, Mapping | str) else archs
        archs, rows = self._assign([self._arch(arch) for arch in given], rows, x)
        paths = self.draw_paths(x, archs, rows)
        x = self.stem_of_all(x)
        if len(archs) == 1:
            return self.run_one(x, archs[0], paths, side, patches)
        if execution == "groups":
            return self._run_groups(x, archs, rows, paths, side, patches)
        unmaskable = self.unmaskable(archs)
        if execution == "masks":
            if unmaskable:
                raise UserError(f"masks cannot express archs that differ in {unmaskable}; use execution='groups'")
            return self.run_masked(x, archs, rows, paths, patches)
        if not unmaskable and self.prefers_masks(x, archs):
            return self.run_masked(x, archs, rows, paths, patches)
        return self._run_groups(x, archs, rows, paths, side, patches)

    def _check_side(self, side: Side | None) -> None:
        if side is not None and side not in SIDES[self.space.constants.sharing]:
            sharing = self.space.constants.sharing
            why = "give left or right" if len(SIDES[sharing]) > 1 else f"sharing: {sharing} has one path, leave it out"
            raise UserError(f"no side {side!r} in space {self.space.name}: {why}")

    def _averages(self, statistics: Statistics, archs: Any, side: Side | None) -> Mapping[str, Tensor]:
        """Those of one path, if they are of this arch."""
        archs = self._only if archs is None else archs
        if not isinstance(statistics, Statistics):
            raise UserError("statistics are those of one arch, as raynas.nets.calibration.calibrate makes them")
        if not isinstance(archs, Mapping) or self._arch(archs) != statistics.arch:
            raise UserError(f"the statistics are of arch {statistics.arch.id}: run that arch alone, or calibrate again")
        return statistics.averages[side]

    def _arch(self, arch: Mapping[str, Any]) -> Arch:
        if not isinstance(arch, Mapping):
            raise UserError(f"expected an arch, or a mapping of its values by name, found {shown(arch)}")
        if not isinstance(arch, Arch):
            return self.space.arch(arch)
        self.space.check_own(arch, resized=True)
        return arch

    def _assign(self, archs: list[Arch], rows: Tensor | None, x: Tensor) -> tuple[list[Arch], Tensor]:
        """The different archs that some row uses, and each row's index into them."""
        if not archs:
            raise UserError("a mixed batch needs at least one arch")
        if rows is None:
            if len(archs) > len(x):
                raise UserError(f"{len(archs)} archs for a batch of {len(x)} rows: some would get no row")
            rows = torch.arange(len(x)) % len(archs)
        rows = torch.as_tensor(rows)
        listed = rows.tolist()
        whole = rows.ndim == 1 and not rows.is_floating_point()
        if not whole or len(listed) != len(x) or not all(0 <= row < len(archs) for row in listed):
            raise UserError(f"rows must be [{len(x)}] indices into the {len(archs)} archs, found {listed}")
        different = list(dict.fromkeys(archs[row] for row in listed))
        place = {arch: index for index, arch in enumerate(different)}
        return different, torch.tensor([place[archs[row]] for row in listed], device=x.device)

    def _run_groups(
        self, x: Tensor, archs: list[Arch], rows: Tensor, paths: Tensor | None, side: Side | None, patches: bool
    ) -> Tensor:
        order = torch.argsort(rows, stable=True)
        sizes = torch.bincount(rows, minlength=len(archs)).tolist()
        images = x[order].split(sizes)
        drawn = [None] * len(archs) if paths is None else paths[..., order].split(sizes, dim=-1)
        logits = [self.run_one(*group, side, patches) for group in zip(images, archs, drawn, strict=True)]
        return torch.cat(logits)[torch.argsort(order)]

    def unmaskable(self, archs: Sequence[Arch]) -> list[str]:
        """The dimensions in which these archs differ and which masks cannot express."""
        names = {name for arch in archs for name in arch}
        differ = {name for name in names if len({arch[name] for arch in archs if name in arch}) > 1}
        return sorted(name for name in differ if not self.maskable(name))

    def prefers_masks(self, x: Tensor, archs: Sequence[Arch]) -> bool:
        """Whether masks are the faster execution of archs that they can express: for small work (see `MASKS_BELOW`)."""
        return len(x) / len(archs) * self.tokens(archs) < MASKS_BELOW

    def extract(
        self: SupernetT, arch: Mapping[str, Any], side: Side | None = None, statistics: Statistics | None = None
    ) -> SupernetT:
        """The subnet of an arch: the same family over a one-point space, with its own memory; `subnet(x)` is enough.

        An arch whose values are not choices of the space is taken too, as long as the parameters hold it.

        Args:
            side: whose channels to take where the weight-sharing pattern has two paths; left where left out.
            statistics: what its batch norms go by, instead of the network's running averages.
        """
        self._check_side(side)
        arch = self._arch(arch)
        space = self.space.fix(arch) if arch in self.space else self.space.off_grid(arch).space
        with torch.device("meta"):
            subnet = type(self)(space)
        state = self.select(arch, side)
        if statistics is not None:
            state |= self._averages(statistics, arch, side or self.sides[0])
        return self._give(subnet, state)

    def resized(self: SupernetT, size: int | tuple[int, int]) -> SupernetT:
        """The same network for images of another size, with its own memory, as fine-tuning on larger images starts.

        Position embeddings are resized to the new grids of tokens (see `resize_table`); all else is copied.

        Args:
            size: height and width in pixels, or one number for both.

        Raises:
            UserError: the family cannot take such images.
        """
        space = self.space_at(size)
        with torch.device("meta"):
            other = type(self)(space)
        state, grids = self.state_dict(), other.position_grids()
        for name, before in self.position_grids().items():
            state[name] = self.resize_table(state[name], before, grids[name])
        return self._give(other, state)

    def space_at(self, size: int | tuple[int, int]) -> Space:
        """The space of the same networks for images of another size.

        Raises:
            UserError: the family cannot take such images.
        """
        return self.space.with_input(size=size)

    def _give(self, other: SupernetT, state: Mapping[str, Tensor]) -> SupernetT:
        """A network of this family, built on the meta device, with a copy of these tensors, and as this one is used."""
        copied = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        adopt(other, copied)
        for name, parameter in other.named_parameters():
            parameter.requires_grad_(self.get_parameter(name).requires_grad)
        other.drop_path, other.dropout, other.drop_path_over = self.drop_path, self.dropout, self.drop_path_over
        return other.train(self.training)

    def draw_paths(self, x: Tensor, archs: Sequence[Arch], rows: Tensor | None = None) -> Tensor | None:
        """What stochastic depth multiplies the branches of each block with, for every row of a batch.

        The rate rises linearly from 0: over the places of the supernet, whatever the arch and the same beyond them, or
        (`drop_path_over` = network) over the blocks that the row's arch runs. What is drawn depends on the batch size
        alone (unless an arch is deeper than the ramp), so that groups, masks and passes of one arch agree under the
        same random state.

        Args:
            x: the batch; only its number of rows and its device matter.
            archs: those of the batch.
            rows: [batch] int64, each row's arch, where there are several.

        Returns:
            [places, branches, batch]: 0 for a dropped branch, else 1 / (1 - rate); None where nothing is dropped.

        Raises:
            UserError: the rate is not in [0, 1).
        """
        if not self.training or self.drop_path == 0:
            return None
        if not 0 < self.drop_path < 1:
            raise UserError(f"drop_path must be in [0, 1), found {self.drop_path}")
        run, ramp = [self.places(arch) for arch in archs], self.ramp_length()
        count = max([ramp, *(1 + max(each, default=0) for each in run)])
        if self.drop_path_over == "supernet":
            steps = (torch.arange(count).clamp(max=ramp - 1) / max(ramp - 1, 1))[None]
        else:
            steps = torch.zeros(len(archs), count)
            for row, each in zip(steps, run, strict=True):
                row[each] = torch.linspace(0, 1, len(each))
        keep = (1 - self.drop_path * steps.to(x.device)).T[:, None]  # [places, 1, 1 or archs]
        if rows is not None and keep.shape[-1] > 1:
            keep = keep[..., rows]
        return (torch.rand(count, self.branches, len(x), device=x.device) < keep) / keep

    def drop_features(self, pooled: Tensor) -> Tensor:
        """What the classifier gets of images' features [batch, width]; every family calls it."""
        return F.dropout(pooled, self.dropout) if self.training and self.dropout else pooled

    def exchangeable(self) -> list[dict[str, tuple[int, int]]]:
        """Units that can change places without changing the largest network: heads, hidden channels.

        Returns:
            For each set of units the parameters and saved buffers that hold them: `{name: (dim, entries for each unit
            along it)}`.
        """
        return [
            {f"{name}.{parameter}": axis for parameter, axis in group.items()}
            for name, module in self.named_modules()
            if hasattr(module, "unit_axes")
            for group in module.unit_axes()
        ]

    # -- what a family implements ----------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        """The acting part of all that an arch uses (parameters, saved buffers), by name: its state dict, as views."""
        raise NotImplementedError

    def run_one(self, x: Tensor, arch: Arch, paths: Tensor | None, side: Side | None, patches: bool) -> Tensor:
        """Logits of a batch that is all one arch's, as `forward` returns them."""
        raise NotImplementedError

    def stem_of_all(self, x: Tensor) -> Tensor:
        """What is not searched and runs once on the whole batch, before it is dealt to archs: a stem with BatchNorm."""
        return x

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of the patch tokens that the token head reads.

        Raises:
            UserError: they depend on the arch.
        """
        raise NotImplementedError

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Every table of position embeddings, by parameter name, with the rows and columns of tokens that it is for."""
        raise NotImplementedError

    def resize_table(self, table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
        """One of the tables of `position_grids` for another grid; see `resize_positions`."""
        return resize_positions(table, before, after)

    def places(self, arch: Arch) -> list[int]:
        """Where the blocks that an arch runs are, counted as the drop-path ramp counts."""
        raise NotImplementedError

    def ramp_length(self) -> int:
        """The number of places over which a supernet's drop-path rate rises, as the space's constants have it."""
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters (not counting 1-D ones, which are the trainer's to exempt) that should not decay."""
        raise NotImplementedError

    # -- what a family with masks implements -----------------------------------------------------------------------

    def maskable(self, dimension: str) -> bool:
        """Whether masks can express different values of a dimension within one batch."""
        return False

    def tokens(self, archs: Sequence[Arch]) -> float:
        """Tokens of one image, of archs that masks can express."""
        raise NotImplementedError

    def run_masked(self, x: Tensor, archs: list[Arch], rows: Tensor, paths: Tensor | None, patches: bool) -> Tensor:
        """Logits of a mixed batch in one pass, as `forward` returns them."""
        raise NotImplementedError

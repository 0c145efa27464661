"""Base of all supernets: passes of one or many archs, selection and extraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor

from raynas.errors import UserError
from raynas.nets.attention_maps import Attending
from raynas.nets.batch_norm import NormStatistics, using
from raynas.nets.classifier import check_distillation_token, check_token_head
from raynas.nets.layers import resize_positions
from raynas.nets.sharing import SIDES, Side, pattern, sides_of
from raynas.nets.timm_conventions import Removed, TimmConventions
from raynas.nets.units import UnitGroup, noted_units
from raynas.space import Arch, Space
from raynas.user_code import kind

Execution = Literal["auto", "groups", "masks"]
EXECUTIONS: tuple[Execution, ...] = get_args(Execution)
Ramp = Literal["supernet", "network"]
SupernetT = TypeVar("SupernetT", bound="Supernet")

MASKS_BELOW = 256
"""Number of tokens of one arch's rows, averaged over a network's grids, below which masks are faster than groups.

Measured ratios of groups' time to masks' time, forward and backward on one CPU thread:

vit: widths up to 64: 1.4 at 136 tokens, 0.7 at 544. Widths up to 240: 1.7 at 68, 1.3 at 130, 0.9 at 272, 1.0 at 394.

vit_res: the digits' space with 4 to 16 archs: 2.8 at 116 tokens, 1.5 at 232, 1.2 at 464, 0.8 at 928. ViT-ResNAS's Tiny
space: 1.6 at 58 and 1.3 at 116 with 4 archs of images of 112 pixels, 1.1 at 113 and at 226 with 2 archs of 224 pixels.

s3: widths up to 64: 2.1 at 160 tokens and 1.6 at 320 with 8 archs, 1.2 at 640 and 0.9 at 1280 with 4. S3's first space
at 56 pixels: 1.7 at 66 and 1.3 at 132 tokens with 4 archs, 0.9 at 265 with 2.
"""


def adopt(supernet: SupernetT, state: Mapping[str, Tensor]) -> SupernetT:
    """Assign parameters and saved buffers to a supernet built on the meta device, without a copy."""
    supernet.load_state_dict(state, assign=True)
    like = next(supernet.parameters())
    return supernet.to(device=like.device, dtype=like.dtype)  # moves constants, which are never on the meta device


def checked(images: Tensor, expected: tuple[int, ...]) -> Tensor:
    """Return images after checking that they are [batch, *expected].

    Raises:
        UserError: they have another size, or are no tensor of floating-point numbers.
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise UserError(f"expected images as a tensor of floating-point numbers, found {kind(images)}")
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise UserError(f"expected images [batch, {', '.join(map(str, expected))}], found {list(images.shape)}")
    return images


def drawn(images: Tensor, keep: Tensor, branches: int) -> Tensor:
    """Draw the factors of stochastic depth [places, branches, batch]: each is 0, or 1 / the probability of keeping.

    Args:
        keep: probabilities of keeping [places, 1, 1 or batch].
    """
    keep = keep.to(images.device)
    return (torch.rand(len(keep), branches, len(images), device=images.device) < keep) / keep


torch.fx.wrap("checked")  # opaque to torch.fx, because sizes are unknown in a trace
torch.fx.wrap("drawn")


class Supernet(TimmConventions):
    """A weight-sharing network over a space; a subnet is the same class over a one-point space.

    The arch is an argument of each forward pass; there is no current subnet. A family implements `select`, `acting` and
    `run` (and the methods for masks, if it has them). Its forward pass must not depend on a maximum of the space,
    because a one-point space would then compute something else. The shape of a one-point space's network is computed
    once, by `settle`, so that torch can compile and trace it.

    Attributes:
        distils: True if there is a distillation token.
        sides: the paths that the weight-sharing pattern trains: (None,) for one, else left and right.
        pattern: the weight-sharing pattern of widths, by side.
        drop_path: the largest rate of stochastic depth, in [0, 1); set by training, used in training mode only.
        drop_path_over: the range over which the rate rises, see `draw_paths`; set by training.
        dropout: dropout rate of the classifier's input; used in training mode only.
        branches: number of branches of each block that stochastic depth may drop.
    """

    branches: ClassVar[int] = 2

    def __init__(self, space: Space):
        super().__init__()
        self.space = space
        self.global_pool, self._removed = self.pooling, Removed()
        self.num_prefix_tokens = getattr(space.constants, "class_tokens", 0)
        self.drop_path = self.dropout = 0.0
        self.drop_path_over: Ramp = "supernet"
        self._only = space.smallest() if all(len(d.choices) == 1 for d in space.dimensions) else None
        self._settled: tuple[Any, list[int]] | None = None
        self.sides = sides_of(space)
        self.pattern = {side: pattern(space.constants, side) for side in (None, "left", "right")}
        self.distils = bool(space.constants.distillation_token)

    def settle(self) -> None:
        """Compute the shape of a one-point space's network once; called last in every family's constructor."""
        if self._only is not None:
            self._settled = self.acting(self._only), self.places(self._only)

    def forward(
        self,
        x: Tensor,
        archs: Arch | Mapping[str, Any] | Sequence[Arch] | None = None,
        rows: Tensor | None = None,
        execution: Execution = "auto",
        side: Side | None = None,
        patches: bool = False,
        statistics: NormStatistics | None = None,
        distilled: bool = False,
    ) -> Tensor:
        """Map images to logits.

        Args:
            x: [batch, channels, height, width] of the space's sizes.
            archs: one arch for all rows, several for a mixed batch, or None if the space has only one.
            rows: [batch] int64, each row's index into `archs`; by default row i has `archs[i % len(archs)]`.
            execution: execution of a mixed batch: `groups` (rows of one arch together, sliced; for every family and
                choice), `masks` (one pass at the batch's largest widths) or `auto` (see `prefers_masks`). The results
                are equal up to rounding.
            side: the path to run if the pattern has two (see `sides`); None for the mean of both paths' logits.
            patches: also return the token head's logits of each patch token (for training on token labels).
            statistics: batch-norm statistics of the arch, instead of the running averages; for a single arch.
            distilled: return the logits of the class token and of the distillation token apart (for training), instead
                of their mean.

        Returns:
            Logits [batch, classes]; with `patches`, [batch, 1 + patch tokens, classes], the image first, then its
            patches in row-major order of `token_grid`. With `distilled` the image has two rows.

        Raises:
            UserError: the images do not have the space's size, an arch does not fit, there are more archs than rows,
                the archs differ in dimensions that cannot be masked, the side, the token head or the distillation token
                does not exist, or the statistics are of another arch.
        """
        if isinstance(x, torch.fx.Proxy):  # fx passes proxies for all arguments, even for omitted ones
            return self._image(self._alone(x, patches is True), patches is True, distilled is True)
        if distilled:
            check_distillation_token(self.space)
        if side is None and len(self.sides) > 1:
            each = [self(x, archs, rows, execution, side, patches, statistics, distilled) for side in self.sides]
            return torch.stack(each).mean(0)
        if execution not in EXECUTIONS:
            raise UserError(f"unknown execution {execution!r}: {', '.join(EXECUTIONS)}")
        self._check_side(side)
        if archs is None and rows is None and statistics is None:
            return self._image(self._alone(x, patches), patches, distilled)
        if statistics is not None:
            with using(self, self._averages(statistics, archs, side)):
                return self(x, archs, rows, execution, side, patches, distilled=distilled)
        x = checked(x, (self.space.channels, *self.space.input_size))
        if archs is None:
            if self._only is None:
                raise UserError(f"space {self.space.name} has many archs: say which, supernet(x, arch)")
            archs = self._only
        if patches:
            check_token_head(self.space)
        return self._image(self._logits(x, archs, rows, execution, side, patches), patches, distilled)

    def _logits(
        self,
        x: Tensor,
        archs: Arch | Mapping[str, Any] | Sequence[Arch],
        rows: Tensor | None,
        execution: Execution,
        side: Side | None,
        patches: bool,
    ) -> Tensor:
        """Return the logits of all classifiers for checked images, by the execution that was chosen."""
        if isinstance(archs, Mapping) and rows is None:
            arch = self._arch(archs)
            return self.run_one(self.stem_of_all(x), arch, self.draw_paths(x, [arch]), side, patches)
        given = archs if isinstance(archs, Sequence) and not isinstance(archs, str) else [archs]
        archs, rows = self._assign([self._arch(arch) for arch in given], rows, x)
        paths = self.draw_paths(x, archs, rows)
        x = self.stem_of_all(x)
        if len(archs) == 1:
            return self.run_one(x, archs[0], paths, side, patches)
        unmaskable = self.unmaskable(archs)
        if execution == "masks" and unmaskable:
            raise UserError(f"masks cannot express archs that differ in {unmaskable}; use execution='groups'")
        if execution == "masks" or (execution == "auto" and not unmaskable and self.prefers_masks(x, archs)):
            return self.run(x, self.shape_of_rows(archs, rows), paths, patches)
        return self._run_groups(x, archs, rows, paths, side, patches)

    def _image(self, logits: Tensor, patches: bool, distilled: bool) -> Tensor:
        """Return logits in which an image has the mean of the class token's and the distillation token's (DeiT)."""
        if distilled or not self.distils or not self.global_pool:
            return logits
        image = logits[:, :2].mean(1)
        return torch.cat([image[:, None], logits[:, 2:]], dim=1) if patches else image

    def _alone(self, x: Tensor, patches: bool) -> Tensor:
        """Map images to logits of a one-point space's arch, with the shape from `settle`."""
        if patches:
            check_token_head(self.space)
        if not self.global_pool:
            return self.forward_head(self.forward_features(x))
        return self.run(*self._begin(x), patches)

    def _begin(self, x: Tensor) -> tuple[Tensor, Any, Tensor | None]:
        """Return the stem's output for checked images, the shape, and the factors of stochastic depth."""
        if self._only is None:
            raise UserError(f"space {self.space.name} has many archs: say which, supernet(x, arch)")
        x = checked(x, (self.space.channels, *self.space.input_size))
        shape, places = self._settled or (self.acting(self._only), self.places(self._only))
        return self.stem_of_all(x), shape, self._draw(x, [places])

    def _check_side(self, side: Side | None) -> None:
        if side is not None and side not in SIDES[self.space.constants.sharing]:
            sharing = self.space.constants.sharing
            why = "give left or right" if len(SIDES[sharing]) > 1 else f"sharing: {sharing} has one path, leave it out"
            raise UserError(f"no side {side!r} in space {self.space.name}: {why}")

    def _averages(self, statistics: NormStatistics, archs: Any, side: Side | None) -> Mapping[str, Tensor]:
        """Return one path's statistics, after checking that they are of this arch."""
        archs = self._only if archs is None else archs
        if not isinstance(statistics, NormStatistics):
            raise UserError("statistics are those of one arch, as raynas.nets.calibration.calibrate makes them")
        if not isinstance(archs, Mapping) or self._arch(archs) != statistics.arch:
            raise UserError(f"the statistics are of arch {statistics.arch.id}: run that arch alone, or calibrate again")
        return statistics.averages[side]

    def _arch(self, arch: Mapping[str, Any]) -> Arch:
        return arch if isinstance(arch, Arch) else self.space.arch(arch)

    def _assign(self, archs: list[Arch], rows: Tensor | None, x: Tensor) -> tuple[list[Arch], Tensor]:
        """Return the different archs used by rows, and each row's index into them."""
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

    def run_one(self, x: Tensor, arch: Arch, paths: Tensor | None, side: Side | None, patches: bool) -> Tensor:
        """Return the logits of a batch that runs one arch, as `forward` does."""
        return self.run(x, self.acting(arch, side), paths, patches)

    def unmaskable(self, archs: Sequence[Arch]) -> list[str]:
        """Return the dimensions in which these archs differ and that cannot be masked."""
        names = {name for arch in archs for name in arch}
        differ = {name for name in names if len({arch[name] for arch in archs if name in arch}) > 1}
        return sorted(name for name in differ if not self.maskable(name))

    def prefers_masks(self, x: Tensor, archs: Sequence[Arch]) -> bool:
        """Return True if a masked pass is faster than groups for this batch size (see `MASKS_BELOW`)."""
        return len(x) / len(archs) * self.tokens(archs) < MASKS_BELOW

    def extract(
        self: SupernetT, arch: Mapping[str, Any], side: Side | None = None, statistics: NormStatistics | None = None
    ) -> SupernetT:
        """Extract an arch's subnet: the same family over a one-point space, with its own memory, run by `subnet(x)`.

        The arch's values need not be choices of the space, as long as the parameters are large enough.

        Args:
            side: the path to extract if the weight-sharing pattern has two; left by default.
            statistics: its batch-norm statistics, instead of the network's running averages.
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

    def resized(self: SupernetT, size: int | tuple[int, int], scaled: bool = False) -> SupernetT:
        """Return the same network for images of another size, with its own memory, as for fine-tuning on larger images.

        Position embeddings are resized to the new grids of tokens (see `resize_table`); the rest is copied.

        Args:
            size: height and width in pixels, or one number for both.
            scaled: windows scale with the images (family s3), in place of keeping their number of tokens.

        Raises:
            UserError: the family cannot take such images, or has no windows that scale.
        """
        return self.fitted_to(self.space_at(size, scaled))

    @torch.no_grad()
    def fitted_to(self: SupernetT, space: Space, copy: bool = True) -> SupernetT:
        """Return the same network in a space that `space_at` gives.

        Args:
            copy: True for a network with its own memory; False for one that shares all but the resized tables.
        """
        with torch.device("meta"):
            other = type(self)(space)
        state, grids = self.state_dict(keep_vars=not copy), other.position_grids()
        for name, before in self.position_grids().items():
            if grids[name] != before:
                state[name] = other.resize_table(state[name].detach(), before, grids[name])
        return self._give(other, state, copy)

    def space_at(self, size: int | tuple[int, int], scaled: bool = False) -> Space:
        """Return the space of the same networks for images of another size.

        Args:
            scaled: windows scale with the images.

        Raises:
            UserError: the family cannot take such images, or has no windows that scale.
        """
        if scaled and not self.windows_scale:
            raise UserError(f"family {self.space.family} has no windows that scale with the images: leave it out")
        return self.space.with_input(size=size)

    def unscaled(self) -> Supernet:
        """Return the network of one arch without a resolution that it resizes images to, if it has one (hybrids).

        It shares its parameters with this one.
        """
        return self

    def _give(self, other: SupernetT, state: Mapping[str, Tensor], copy: bool = True) -> SupernetT:
        """Fill a network built on the meta device with tensors or copies of them; copy this one's mode and settings."""
        other._remove(self._removed)
        if copy:
            state = {name: each.detach().clone(memory_format=torch.contiguous_format) for name, each in state.items()}
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        adopt(other, state)
        for name, parameter in other.named_parameters():
            parameter.requires_grad_(trained[name])
        for name in ("drop_path", "dropout", "drop_path_over", "global_pool", "_described"):
            setattr(other, name, getattr(self, name))
        other.set_grad_checkpointing(any(getattr(module, "grad_checkpointing", False) for module in self.modules()))
        return other.train(self.training)

    def draw_paths(self, x: Tensor, archs: Sequence[Arch], rows: Tensor | None = None) -> Tensor | None:
        """Draw the factors of stochastic depth on the branches of each block, for every row of a batch.

        The rate rises linearly from 0: over the places of the supernet, whatever the arch, and constant beyond them; or
        (`drop_path_over` = network) over the blocks that the row's arch runs. The random numbers depend only on the
        batch size (unless an arch is deeper than the ramp), so that groups, masks and passes of one arch agree for the
        same random state.

        Args:
            x: the batch; only its number of rows and its device matter.
            rows: [batch] int64, each row's arch, if there are several.

        Returns:
            [places, branches, batch]: 0 for a dropped branch, else 1 / (1 - rate); None if nothing is dropped.

        Raises:
            UserError: the rate is not in [0, 1).
        """
        return self._draw(x, [self.places(arch) for arch in archs] if self.training else [], rows)

    def _draw(self, x: Tensor, run: Sequence[Sequence[int]], rows: Tensor | None = None) -> Tensor | None:
        """Draw the factors of stochastic depth, see `draw_paths`; `run` holds the places of each arch."""
        if not self.training or self.drop_path == 0:
            return None
        if not 0 < self.drop_path < 1:
            raise UserError(f"drop_path must be in [0, 1), found {self.drop_path}")
        ramp = self.ramp_length()
        count = max([ramp, *(1 + max(each, default=0) for each in run)])
        if self.drop_path_over == "supernet":
            steps = (torch.arange(count).clamp(max=ramp - 1) / max(ramp - 1, 1))[None]
        else:
            steps = torch.zeros(len(run), count)
            for row, each in zip(steps, run, strict=True):
                row[each] = torch.linspace(0, 1, len(each))
        keep = (1 - self.drop_path * steps).T[:, None]  # [places, 1, 1 or archs]
        if rows is not None and keep.shape[-1] > 1:
            keep = keep.to(rows.device)[..., rows]
        return drawn(x, keep, self.branches)

    def drop_features(self, pooled: Tensor) -> Tensor:
        """Apply dropout to the classifier's input [batch, width]; called by every family."""
        return F.dropout(pooled, self.dropout) if self.training and self.dropout else pooled

    def exchangeable(self) -> list[UnitGroup]:
        """Return the units that can be permuted without changing the largest network: channels, heads, hidden channels.

        They are found by `select`; a family adds what follows from sums of tensors alone, such as shortcuts.
        """
        return noted_units(self, [self.space.largest(), self.space.smallest()])

    # -- implemented by a family -----------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        """Return the active part of an arch's parameters and saved buffers by name: its state dict, as views."""
        raise NotImplementedError

    def acting(self, arch: Arch, side: Side | None = None) -> Any:
        """Return the shape of an arch: everything that a forward pass needs of it.

        Raises:
            UserError: the arch does not fit the supernet.
        """
        raise NotImplementedError

    def run(self, x: Tensor, acting: Any, paths: Tensor | None, patches: bool) -> Tensor:
        """Map the output of `stem_of_all` to logits, as `forward` returns them; used by every execution.

        With a distillation token these are as with `distilled`.
        """
        x = self.normed(self.trunk(x, acting, paths), acting, whole=patches)
        return self.logits(self.pool(x, acting), x, self.head_width(acting), patches)

    def stem_of_all(self, x: Tensor) -> Tensor:
        """Run layers that are not searched once on the whole batch, before archs: a stem with BatchNorm."""
        return x

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of the patch tokens that the token head reads.

        Raises:
            UserError: they depend on the arch.
        """
        raise NotImplementedError

    def attending(self) -> list[Attending]:
        """Return the blocks with self-attention of a one-point space's network, none unless a family says so.

        Raises:
            UserError: the space has many archs.
        """
        self._settled_shape()
        return []

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return the token grid (rows, columns) of every table of position embeddings, by parameter name."""
        raise NotImplementedError

    def resize_table(self, table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
        """Resize one of the tables of `position_grids`; see `resize_positions`."""
        return resize_positions(table, before, after)

    def places(self, arch: Arch) -> list[int]:
        """Return the steps of the drop-path ramp of the blocks that an arch runs."""
        raise NotImplementedError

    def ramp_length(self) -> int:
        """Return the number of steps of the drop-path ramp, from the space's constants."""
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay, except 1-D ones, which the trainer exempts itself."""
        raise NotImplementedError

    # -- implemented by a family with masks ------------------------------------------------------------------------

    def maskable(self, dimension: str) -> bool:
        """Return True if different values of a dimension can be masked within one batch."""
        return False

    def tokens(self, archs: Sequence[Arch]) -> float:
        """Return the number of tokens of one image, for archs that can share a masked pass."""
        raise NotImplementedError

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> Any:
        """Return the shape for the rows of a mixed batch, as `acting` does for one arch.

        Args:
            archs: archs that differ only in maskable dimensions (see `unmaskable`).
            rows: [batch] int64, each row's arch.
        """
        raise NotImplementedError

"""Feature maps of a network, from fine to coarse, for images of any height and width."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from timm.models._features import FeatureGetterNet  # timm.models does not pass it on
from torch import Tensor, nn
from torch.func import functional_call

from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.nets.timm_conventions import Level

LEVELS = 4
"""Number of maps, if nobody says which."""

FINEST = 4
"""Pixels on the side of the finest map's tokens, if the network has tokens of one size alone."""

COARSEST = 32
"""Pixels on the side of the coarsest map's tokens, if the network has enough finer ones."""

KEPT = 8
"""Most image sizes that a network is kept ready for."""


class AnySize(nn.Module):
    """A network of one arch whose levels are computed for images of any height and width.

    Windows, squares and patches at the border are padded, and tables of positions are resized in each pass, by the
    family's rule (see `Supernet.resized`), so that they are trained whatever the size. Images of the network's own size
    give what the network itself gives.
    """

    def __init__(self, network: Supernet):
        super().__init__()
        self.network = network
        self._others: OrderedDict[Any, list[_Levels]] = OrderedDict()

    def forward(self, images: Tensor, indices: list[int]) -> list[Tensor]:
        """Map images [batch, channels, height, width] to the maps [batch, channels, rows, columns] of some levels.

        Raises:
            UserError: the network cannot take images of this size.
        """
        size = (images.shape[-2], images.shape[-1])
        if size == self.network.space.input_size:
            return _Levels(self.network)(images, indices)
        other = self._other(size)
        state = {f"network.{name}": tensor for name, tensor in self.network.state_dict(keep_vars=True).items()}
        before, after = self.network.position_grids(), other.network.position_grids()
        for name in [name for name in before if before[name] != after[name]]:
            table = state[f"network.{name}"]
            state[f"network.{name}"] = self.network.resize_table(table, before[name], after[name])
        return functional_call(other, state, (images, indices))

    def _other(self, size: tuple[int, int]) -> _Levels:
        """Return the same network for another image size, to be called with this one's parameters."""
        like = next(self.network.parameters())
        if (key := (size, like.device, like.dtype)) not in self._others:
            if torch.compiler.is_exporting():
                raise UserError(
                    f"call it once on images of {size[0]} x {size[1]} before it is exported, or give img_size={size} "
                    "to timm.create_model"
                )
            space = self.network.space_at(size, scaled=False)
            self._others[key] = [_Levels(self.network.fitted_to(space, copy=False))]  # in a list: no submodule
            if len(self._others) > KEPT:
                self._others.popitem(last=False)
        other = self._others[key][0]
        for name in ("drop_path", "drop_path_over"):
            setattr(other.network, name, getattr(self.network, name))
        return other.train(self.network.training)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without networks of other sizes."""
        return {**self.__dict__, "_others": OrderedDict()}


class _Levels(nn.Module):
    """A network's levels as a forward pass."""

    def __init__(self, network: Supernet):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, indices: list[int]) -> list[Tensor]:
        return self.network.forward_intermediates(images, indices=indices, intermediates_only=True)


class Pyramid(nn.Module):
    """Maps of a network by name, `0` for the finest, as torchvision's detectors and the heads here take them.

    Networks of this project get a norm behind each map, as Swin and Twins have for detection and segmentation, and take
    images of any height and width. The maps of a plain transformer lie all on one grid: the last one, or each of those
    that are asked for, is resized to tokens of 4, 8, 16 and 32 pixels (Li et al., 2022, ViTDet, section 3). Other
    networks of timm, made with `features_only=True`, are taken as they are.

    Attributes:
        channels: number of channels of each map.
        reductions: pixels on the side of a token of each map.

    Args:
        network: a network of one arch, or one that timm made with `features_only=True`, with its own levels.
        out_indices: indices of the levels; by default the last four stages, up to tokens of 32 pixels if there are as
            many, or the last block of a plain transformer.

    Raises:
        UserError: it is neither, there are no such levels, or one is named twice.
    """

    def __init__(self, network: nn.Module, out_indices: tuple[int, ...] | None = None):
        super().__init__()
        if isinstance(network, FeatureGetterNet) and isinstance(network.model, Supernet):
            given, network = tuple(network.out_indices), network.model  # type: ignore[arg-type]
            out_indices = given if out_indices is None else out_indices
        if isinstance(network, Supernet):
            levels, network = network.levels(), network.unscaled()
            self.plain = len({level.reduction for level in levels}) == 1
            if out_indices is None:
                out_indices = (-1,) if self.plain else _usual(levels)
            self.indices = network.prune_intermediate_layers(out_indices, prune_norm=True)
            if len(self.indices) < len(out_indices):
                raise UserError(f"out_indices {list(out_indices)}: name each level once")
            chosen = [levels[index] for index in self.indices]
            if self.plain:
                chosen = [
                    replace(level, reduction=FINEST * 2**index)
                    for index, level in enumerate(chosen * (LEVELS if len(chosen) == 1 else 1))
                ]
            self.channels = [level.channels for level in chosen]
            self.reductions = [level.reduction for level in chosen]
            self.body: nn.Module = AnySize(network)
            self.norms = nn.ModuleList(LayerNorm2d(channels) for channels in self.channels)
        elif hasattr(network, "feature_info") and not hasattr(network, "forward_features"):
            if out_indices is not None:
                raise UserError("give the levels to timm: timm.create_model(..., features_only=True, out_indices=...)")
            self.channels_last = getattr(network, "output_fmt", "NCHW") == "NHWC"  # timm's Swin
            about: Any = network.feature_info
            self.channels, self.reductions = about.channels(), about.reduction()
            self.body, self.norms, self.plain = network, nn.ModuleList(), False
        else:
            raise UserError(
                f"a {type(network).__name__} gives no maps: give a network of raynas with one arch, or "
                "timm.create_model(..., features_only=True)"
            )

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Map images [batch, channels, height, width] to maps [batch, channels, rows, columns] by name."""
        if not self.norms:
            maps = self.body(images)
            return _named([each.permute(0, 3, 1, 2).contiguous() for each in maps] if self.channels_last else maps)
        maps = self.body(images, self.indices)
        maps = maps * len(self.norms) if len(maps) == 1 else maps
        if self.plain:
            sizes = [[-(-side // reduction) for side in images.shape[-2:]] for reduction in self.reductions]
            maps = [
                F.interpolate(each, size, mode="bilinear", align_corners=False)
                for each, size in zip(maps, sizes, strict=True)
            ]
        return _named([norm(each) for norm, each in zip(self.norms, maps, strict=True)])


def _usual(levels: list[Level]) -> tuple[int, ...]:
    """Return the indices of the default levels of a network of stages."""
    fine = [index for index, level in enumerate(levels) if level.reduction <= COARSEST]
    return tuple((fine if len(fine) >= LEVELS else range(len(levels)))[-LEVELS:])


def pyramid_of(network: nn.Module, classes: int) -> Pyramid:
    """Return a network's pyramid for a head, after refusing a number of classes that is no whole number from 1."""
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
        raise UserError(f"classes {classes!r}: give a whole number from 1")
    return network if isinstance(network, Pyramid) else Pyramid(network)


def _named(maps: list[Tensor]) -> OrderedDict[str, Tensor]:
    return OrderedDict((str(index), each) for index, each in enumerate(maps))

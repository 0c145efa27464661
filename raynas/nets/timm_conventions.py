"""timm's conventions for networks: features, pyramids, classifiers, layer groups, checkpointing, image sizes.

Layouts are timm's of the same kind of network: tokens [batch, tokens, channels] with the class tokens first (vit,
twins, vit_res), [batch, rows, columns, channels] (s3, as timm's Swin), or [batch, channels, rows, columns] (hybrid, as
timm's MobileNetV3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm
from raynas.nets.channels import Channels
from raynas.nets.classifier import Classifiers
from raynas.nets.layers import Through
from raynas.space import Arch, Space
from raynas.text import shown

Layout = Literal["NLC", "NHWC", "NCHW"]
Indices: TypeAlias = int | Sequence[int] | None
"""Levels by index, negative ones from the end; or a number for the last so many; or None for all."""


@dataclass(frozen=True)
class Level:
    """One level of a network's features: the output of a block or of a stage.

    Attributes:
        module: name of the module.
        reduction: pixels on the side of a token.
        grid: rows and columns of tokens.
        tap: index among the outputs that `trunk` collects.
    """

    module: str
    channels: int
    reduction: int
    grid: tuple[int, int]
    tap: int


@dataclass(frozen=True)
class Removed:
    """Parts that were removed from a network.

    Attributes:
        after: index of the last output of `trunk` that is still computed; None for all.
        norm: True if features are not normalised.
        head: True if there is no classifier.
    """

    after: int | None = None
    norm: bool = False
    head: bool = False


def checkpointed(module: nn.Module, *args: Any) -> Any:
    """Run a module and keep none of its intermediate results: the backward pass computes them again."""
    norms = [norm for norm in module.modules() if isinstance(norm, ElasticBatchNorm)]
    if not norms or not module.training:
        return checkpoint(module, *args, use_reentrant=False)

    @contextmanager
    def again() -> Iterator[None]:
        """Leave running averages alone, since they have this batch already."""
        momenta = [norm.momentum for norm in norms]
        try:
            for norm in norms:
                norm.momentum = 0.0
            yield
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), again()

    return checkpoint(module, *args, use_reentrant=False, context_fn=contexts)


def taken(count: int, indices: Indices) -> list[int]:
    """Return the indices of levels among so many, in ascending order.

    Raises:
        UserError: an index is out of range, or is none.
    """
    if isinstance(indices, int):
        indices = range(-indices, 0)
    if isinstance(indices, str) or not all(isinstance(index, Integral) for index in indices or ()):
        raise UserError(f"levels {shown(indices)}: give whole numbers, such as [2, 3], or how many of the last")
    found = {index + count if index < 0 else index for index in (range(count) if indices is None else indices)}
    if not found or min(found) < 0 or max(found) >= count:
        raise UserError(f"levels {list(indices or ())}: the network has {count}, numbered from 0")
    return sorted(found)


class TimmConventions(Classifiers):
    """The methods and attributes that timm's tools use, for networks of one arch.

    A family gives the parts of the network (`trunk`, `normed`, `pool`) and its `levels`.

    Attributes:
        layout: layout of `forward_features`.
        pooling: the family's pooling in timm's words.
        global_pool: the pooling before the classifier: `pooling`, or empty for none.
    """

    layout: ClassVar[Layout] = "NLC"
    space: Space
    norm: nn.Module
    global_pool: str
    _removed: Removed
    _only: Arch | None
    _settled: tuple[Any, list[int]] | None
    _described: dict[str, Any] | None = None
    _asked: Mapping[str, Any] | None = None
    _as_built: Mapping[str, Any] | None = None

    # -- implemented by a family -----------------------------------------------------------------------------------

    def trunk(self, x: Tensor, acting: Any, paths: Tensor | None, taps: list[Tensor] | None = None) -> Tensor:
        """Map the output of `stem_of_all` to the last block's output.

        Args:
            taps: list to which every block's output is added (in families of stages, every stage's).
        """
        raise NotImplementedError

    def normed(self, x: Tensor, acting: Any, whole: bool = True) -> Tensor:
        """Map the last block's output to features.

        Args:
            whole: False if only tokens that the image's classifiers read are needed.
        """
        raise NotImplementedError

    def pool(self, x: Tensor, acting: Any) -> list[Tensor]:
        """Map features to the inputs of the image's classifiers, [batch, width] each, after dropout."""
        raise NotImplementedError

    def head_width(self, acting: Any) -> Channels:
        """Return the channels of the classifiers' inputs."""
        raise NotImplementedError

    def levels(self) -> list[Level]:
        """Return the levels of a one-point space's network, from the first to the last."""
        raise NotImplementedError

    def until(self, acting: Any, tap: int) -> Any:
        """Return the shape of the network that ends after an output of `trunk`."""
        raise NotImplementedError

    def cut(self, tap: int) -> None:
        """Remove the modules behind an output of `trunk`."""
        raise NotImplementedError

    def normed_level(self, x: Tensor, acting: Any, last: bool) -> Tensor:
        """Normalise a level's output, if the final norm is for it: by default the last level's."""
        return self.normed(x, acting) if last else x

    @property
    def pooling(self) -> str:
        """The family's pooling: `avg` or `token`."""
        return "avg"

    @property
    def first_conv(self) -> str:
        """Name of the first convolution."""
        raise NotImplementedError

    @property
    def tokens_in_front(self) -> int:
        """Number of class tokens before the patch tokens of every level."""
        return self.num_prefix_tokens

    def _settled_shape(self) -> Any:
        """Return the shape of a one-point space's arch.

        Raises:
            UserError: the space has many archs.
        """
        if self._settled is None:
            raise UserError(f"space {self.space.name} has many archs: extract one, supernet.extract(arch)")
        return self._settled[0]

    def _begin(self, x: Tensor) -> tuple[Tensor, Any, Tensor | None]:
        """Return the stem's output for checked images, the shape, and the factors of stochastic depth."""
        raise NotImplementedError

    def space_at(self, size: int | tuple[int, int], scaled: bool = False) -> Space:
        """Return the space of the same networks for images of another size; `scaled`: windows scale with them."""
        raise NotImplementedError

    def fitted_to(self: Any, space: Space, copy: bool = True) -> Any:
        """Return the same network in a space that `space_at` gives; `copy`: with its own memory."""
        raise NotImplementedError

    # -- description -----------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 without a classifier."""
        return 0 if self._removed.head else self.space.classes

    @property
    def in_chans(self) -> int:
        """Number of image channels."""
        return self.space.channels

    @property
    def num_features(self) -> int:
        """Number of channels of features."""
        return self.levels()[-1].channels

    @property
    def head_hidden_size(self) -> int:
        """Number of channels of the classifier's input."""
        return self.num_features

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """The levels in timm's format."""
        return [
            {"num_chs": level.channels, "reduction": level.reduction, "module": level.module} for level in self.levels()
        ]

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Images and layers in timm's format; networks read from a folder have the preprocessing of their images."""
        if self._described is not None:
            return self._described
        return {
            "architecture": "raynas_vit",
            "input_size": (self.space.channels, *self.space.input_size),
            "fixed_input_size": True,
            "pool_size": self.levels()[-1].grid,
            "num_classes": self.space.classes,
            "first_conv": self.first_conv,
            "classifier": "head" if self.distillation_head is None else ("head", "distillation_head"),
        }

    @pretrained_cfg.setter
    def pretrained_cfg(self, config: dict[str, Any]) -> None:
        self._described = config

    default_cfg = pretrained_cfg
    """The same, under its older name."""

    @property
    def _model_args(self) -> dict[str, Any]:
        """The arguments of `timm.create_model` that make the network again, which timm saves with it for a hub.

        The arch is the network's own, as it is now, in place of the file that it was read from.
        """
        return {**(self._asked or {}), "arch": self.space.to_dict()}

    @_model_args.setter
    def _model_args(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked

    @property
    def _traits(self) -> dict[str, Any]:
        """timm's record of how the network was built, with the image size that it has now."""
        return {**(self._as_built or {}), "img_size": self.space.input_size}

    @_traits.setter
    def _traits(self, built: Mapping[str, Any]) -> None:
        self._as_built = built

    # -- features --------------------------------------------------------------------------------------------------

    def forward_features(self, x: Tensor) -> Tensor:
        """Map images to features in the family's layout, with class tokens in front of the patch tokens."""
        x, acting, paths = self._begin(x)
        return self._laid_out(self.normed(self.trunk(x, acting, paths), acting), self.levels()[-1])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map features to logits [batch, classes].

        Args:
            x: the output of `forward_features`.
            pre_logits: return the classifier's input [batch, width] instead.
        """
        acting = self._settled_shape()
        if not self.global_pool:
            if pre_logits or self._removed.head or self.head_hidden_size != self.num_features:
                return x
            return self.head(x, self.head_width(acting), Channels.first(self.space.classes))
        features = self.pool(x.flatten(1, 2) if self.layout == "NHWC" else x, acting)
        if pre_logits:
            return torch.stack(features).mean(0)
        logits = self.logits(features, x, self.head_width(acting), False)
        return logits if self.distillation_head is None else logits.mean(1)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Indices = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """Map images to features and the outputs of some levels.

        Args:
            indices: the levels; None for all.
            return_prefix_tokens: also return each level's class tokens, if the family has some.
            norm: normalise outputs by the final norm, if it is for their channels.
            stop_early: compute nothing behind the last of these levels.
            output_fmt: layout of the levels: NCHW, NHWC or NLC.
            intermediates_only: return the levels alone.
            output_dict: return a mapping with timm's keys.

        Returns:
            (features, levels), where levels are a list, in the network's order.

        Raises:
            UserError: there is no such level, or no such layout.
        """
        if output_fmt not in ("NCHW", "NHWC", "NLC"):
            raise UserError(f"output_fmt is NCHW, NHWC or NLC, not {output_fmt!r}")
        levels = self.levels()
        wanted = [levels[index] for index in taken(len(levels), indices)]
        last = levels[-1].tap
        x, acting, paths = self._begin(x)
        if intermediates_only or stop_early:
            acting = self.until(acting, wanted[-1].tap) if wanted[-1].tap < last else acting
        taps: list[Tensor] = []
        x = self.trunk(x, acting, paths, taps)
        found = [taps[level.tap] for level in wanted]
        if norm:
            found = [
                self.normed_level(each, acting, level.tap == last) for each, level in zip(found, wanted, strict=True)
            ]
        front = self.tokens_in_front
        prefix = [each[:, :front] for each in found] if front else []
        found = [self._shaped(each, level.grid, output_fmt) for each, level in zip(found, wanted, strict=True)]
        prefix = prefix if return_prefix_tokens else []
        outputs: dict[str, Any] = {"image_intermediates": found}
        if not intermediates_only:
            x = self.normed(x, acting) if len(taps) > last else self.normed_level(x, acting, last=False)
            outputs["image_features"] = self._laid_out(x, wanted[-1] if len(taps) <= last else levels[-1])
        if output_dict:
            return {**outputs, "image_intermediates_prefix": prefix} if prefix else outputs
        listed = list(zip(found, prefix, strict=True)) if prefix else found
        return listed if intermediates_only else (outputs["image_features"], listed)

    def _laid_out(self, x: Tensor, level: Level) -> Tensor:
        """Return a level's output in the family's layout."""
        return x.unflatten(1, level.grid) if self.layout == "NHWC" else x

    def _shaped(self, x: Tensor, grid: tuple[int, int], layout: str) -> Tensor:
        """Return a level's output, without class tokens, in a layout."""
        if self.layout == "NCHW":
            x = x.flatten(2).transpose(1, 2)
        x = x[:, self.tokens_in_front :]
        if layout == "NLC":
            return x.contiguous()
        return x.unflatten(1, grid) if layout == "NHWC" else x.transpose(1, 2).unflatten(2, grid).contiguous()

    # -- changes ---------------------------------------------------------------------------------------------------

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """Return the classifier; those of the class token and the distillation token if there are both."""
        return self.head if self.distillation_head is None else (self.head, self.distillation_head)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifiers by new ones.

        Args:
            num_classes: number of classes; with 0 the network returns the classifier's input.
            global_pool: the family's pooling, or empty: the network then returns unpooled features, classified token
                by token if there is a classifier; None for no change.

        Raises:
            UserError: the family has no such pooling.
        """
        self.set_pooling(global_pool)
        if not num_classes:
            self._remove(replace(self._removed, head=True))
            return
        self._of_space(self.space.with_input(classes=num_classes))
        self._removed = replace(self._removed, head=False)
        like = next(self.parameters())
        self.add_classifiers(self.classified, self.space)
        for head in (self.head, self.token_head, self.distillation_head):
            if head is not None:
                head.to(like.device, like.dtype).train(self.training)

    def set_pooling(self, global_pool: str | None) -> None:
        """Pool as the family does, or not at all if empty; None for no change. The classifiers stay as they are.

        Raises:
            UserError: the family has no such pooling.
        """
        if global_pool not in (None, "", self.pooling):
            raise UserError(f"global_pool={global_pool!r}: the network pools by {self.pooling!r}, or not at all ('')")
        self.global_pool = self.global_pool if global_pool is None else global_pool

    def remove_token_head(self) -> None:
        """Remove the token head, which has gradients from labels of patches alone, from the network and its space."""
        if self.token_head is not None:
            self.token_head = None
            constants = self.space.constants.model_copy(update={"token_head": False})
            self._of_space(self.space.replace(constants=constants))

    def _of_space(self, space: Space) -> None:
        """Take a space that differs in the classifiers."""
        self.space = space
        self._only = None if self._only is None else space.smallest()

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what some levels do not need, and return their indices.

        Raises:
            UserError: there is no such level.
        """
        levels = self.levels()
        found = taken(len(levels), indices)
        ends = found[-1] == len(levels) - 1
        head = self._removed.head or prune_head or not ends
        norm = self._removed.norm or prune_norm or not (ends or self.norms_all)
        after = levels[found[-1]].tap if head else self._removed.after
        self._remove(Removed(after, norm, head))
        if head:
            self.global_pool = ""
        return found

    windows_scale: ClassVar[bool] = False
    """True if the family's windows can scale with the images."""

    norms_all: ClassVar[bool] = False
    """True if the final norm is for the channels of all levels."""

    def _remove(self, parts: Removed) -> None:
        """Remove parts of a network of one arch."""
        if parts.after is not None and self._settled is not None:
            self._settled = self.until(self._settled[0], parts.after), self._settled[1]
            self.cut(parts.after)
        if parts.norm:
            self.remove_norm()
        if parts.head:
            self.remove_classifiers()
        self._removed = parts

    def remove_norm(self) -> None:
        """Remove the final norm."""
        self.norm = Through()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep no intermediate results of blocks for the backward pass, which then computes them again."""
        for module in self.modules():
            if hasattr(module, "grad_checkpointing"):
                setattr(module, "grad_checkpointing", enable)  # noqa: B010  which modules have it is not typed

    def set_input_size(self, img_size: int | tuple[int, int] | None = None) -> None:
        """Change the network to images of another size, in place; see `Supernet.resized`.

        Windows of family s3 scale with the images, as those of timm's Swin do.

        Raises:
            UserError: the family cannot take such images.
        """
        if img_size is None:
            return
        space = self.space_at(img_size, scaled=self.windows_scale)
        if space.input_size == self.space.input_size:
            return
        other = self.fitted_to(space, copy=False)
        hooks = {name: value for name, value in vars(self).items() if "hook" in name}
        self.__dict__ = {**vars(self), **vars(other), **hooks}
        if self._described is not None:
            size = (self.space.channels, *self.space.input_size)
            self._described = {**self._described, "input_size": size, "pool_size": self.levels()[-1].grid}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of parameter names by layer, for learning rates that decay from layer to layer.

        Args:
            coarse: one group for each stage instead of each block.
        """
        raise NotImplementedError

"""Import of weights in the released layout of NASViT's supernet, also used by AlphaNet and AttentiveNAS.

Layers are numbered consecutively. The released tables of relative position are for windows of 18 x 18 in every stage,
the tables of factors have rows for every depth up to 9 and remainder modulo 8. Entries that no arch of the space uses
are left out, as are the tensors of `UNUSED`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from raynas.errors import UserError
from raynas.families.hybrid.conv import InvertedResidual
from raynas.families.hybrid.model import HybridSupernet
from raynas.families.hybrid.transformer import ScalingTable, TransformerBlock
from raynas.nets.released import Checkpoint, read_parameters
from raynas.space import Space, load_space

SPACES = ("nasvit/released", "alphanet/cnn")
"""The released supernets."""

UNUSED = {
    "spare copies of batch norms": r".*\.bn_tracking\..*",
    "counts of batches": r".*\.num_batches_tracked",
    "indices, which follow from the grid": r".*\.relative_position_index",
    "frozen vectors of ones": r"blocks\.\d+\.mobile_inverted_conv\.rescale",
}
"""Tensors of released checkpoints that are ignored, besides convolutions of shortcuts that keep the width."""

_NETWORK = {
    "stem": "first_conv",
    "widen": "last_conv.final_expand_layer",
    "mix": "last_conv.feature_mix_layer.conv.conv",
    "head": "classifier.linear.linear",
}
_RESIDUAL = {
    "expand": "mobile_inverted_conv.inverted_bottleneck",
    "depthwise": "mobile_inverted_conv.depth_conv",
    "project": "mobile_inverted_conv.point_linear",
    "squeeze": "mobile_inverted_conv.depth_conv.se.fc",
    "shortcut": "shortcut.conv.conv",
}
_BLOCK = {
    "norm1": "norm1",
    "attention.q": "attn.q.linear",
    "attention.k": "attn.k.linear",
    "attention.v": "attn.v.linear",
    "attention.conv": "attn.vconv",
    "attention.before": "attn.proj_l.linear",
    "attention.behind": "attn.proj_w.linear",
    "attention.proj": "attn.proj.linear",
    "norm2": "norm3",  # the release's second MLP runs first
    "mlp1.fc1": "mlp2.linear1.linear",
    "mlp1.fc2": "mlp2.linear2.linear",
    "norm3": "norm2",
    "mlp2.fc1": "mlp1.linear1.linear",
    "mlp2.fc2": "mlp1.linear2.linear",
}
_TENSORS = {
    "depthwise.weight": "mobile_inverted_conv.depth_conv.conv.conv.weight",
    "attention.relative.table": "attn.relative_position_bias_table",
    "attention_scaling.weight": "rescale_attn",
    "mlp_scaling.weight": "rescale_mlp",
}
"""Released names by our names."""


def read_released(checkpoint: Checkpoint, space: Space | None = None) -> tuple[Space, dict[str, Tensor]]:
    """Read a supernet checkpoint in the layout of NASViT's release.

    Args:
        checkpoint: a file, or its content: the parameters, or a mapping that holds them as `model` or `state_dict`.
        space: the space to read it for. By default the released space with these shapes, for the checkpoint's channels
            and classes.

    Returns:
        The space, and the parameters and buffers of its supernet by our names, floating ones in float32.

    Raises:
        UserError: the layout is another, or the checkpoint does not fit the space; the message names the fault.
    """
    state = read_parameters(checkpoint, ["model", "state_dict"], "a NASViT checkpoint")
    if space is None:
        space = _recognise(state)
    elif space.family != "hybrid":
        raise UserError(f"space {space.name}: a NASViT checkpoint needs a space of family hybrid")
    elif space.constants.mlp_conv:
        raise UserError(
            f"space {space.name}: the release has no convolutions in MLPs: constants.mlp_conv must be false"
        )
    layout = Layout(space)
    problem = next(layout.problems(state), None)
    if problem is not None:
        raise UserError(f"the checkpoint is not of space {space.name}: {problem}")
    weights = {}
    for name, released in layout.sources.items():
        value = layout.part(name, state[released])
        value = value.float() if value.is_floating_point() else value
        weights[name] = value.clone(memory_format=torch.contiguous_format)
    return space, weights


class Layout:
    """A mapping from a released checkpoint to the tensors of a space's supernet.

    Attributes:
        shapes: shapes of our tensors, by our names.
        sources: released names, by our names.
    """

    def __init__(self, space: Space):
        with torch.device("meta"):
            self.supernet = HybridSupernet(space)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.supernet.state_dict().items()}
        layers = [
            (f"stages.{i}.layers.{j}.", layer)
            for i, stage in enumerate(self.supernet.stages)
            for j, layer in enumerate(stage.layers)  # type: ignore[arg-type]
        ]
        self.numbers = {prefix: number for number, (prefix, _) in enumerate(layers)}
        # Layers whose shortcut never changes the width; the release has a convolution for these too.
        kept = [n for n, (_, each) in enumerate(layers) if isinstance(each, InvertedResidual) and each.shortcut is None]
        self.idle = {f"blocks.{number}.shortcut.conv.conv.weight" for number in kept}
        self.sources = {name: self._source(name) for name in self.shapes}

    def _source(self, name: str) -> str:
        inside = re.match(r"stages\.\d+\.layers\.\d+\.", name)
        prefix = f"blocks.{self.numbers[inside[0]]}." if inside else ""
        rest = name[inside.end() :] if inside else name
        if rest in _TENSORS:
            return prefix + _TENSORS[rest]
        for parts in (_RESIDUAL, _BLOCK) if inside else (_NETWORK,):
            for ours, theirs in parts.items():
                if rest.startswith(f"{ours}."):
                    return prefix + theirs + _leaf(rest.removeprefix(ours), plain=ours in ("mix", "shortcut"))
        raise AssertionError(name)

    def part(self, name: str, released: Tensor) -> Tensor:
        """Return our tensor from the released one: all of it, except for tables.

        Raises:
            UserError: the table does not fit.
        """
        parent = self.supernet.get_submodule(name.rpartition(".")[0])
        if isinstance(parent, ScalingTable):
            for dim, keys in enumerate(parent.keys[: released.ndim - 1]):
                if max(keys) >= released.shape[dim]:
                    raise UserError(f"it has factors for keys below {released.shape[dim]}, the space for {keys}")
                released = released.index_select(dim, torch.tensor(keys, device=released.device))
        elif name.endswith("relative.table"):
            side = math.isqrt(released.shape[0])
            block = self.supernet.get_submodule(name.removesuffix(".attention.relative.table"))
            assert isinstance(block, TransformerBlock)
            rows, columns = block.attention.relative.offsets
            if released.ndim != 2 or side * side != released.shape[0] or side < max(rows, columns):
                raise UserError(f"its table of offsets is {list(released.shape)}, the space needs {rows} x {columns}")
            square = released.unflatten(0, (side, side))
            square = square.narrow(0, (side - rows) // 2, rows).narrow(1, (side - columns) // 2, columns)
            released = square.flatten(0, 1)[None]
        return released

    def unused(self, released: str) -> bool:
        """Return True if a released tensor is ignored."""
        return released in self.idle or any(re.fullmatch(pattern, released) for pattern in UNUSED.values())

    def problems(self, state: Mapping[str, Tensor]) -> Iterator[str]:
        """Yield differences between a checkpoint and the tensors that the space needs."""
        for name, released in self.sources.items():
            if released not in state:
                yield f"it lacks {released!r}"
                continue
            try:
                shape = tuple(self.part(name, state[released]).shape)
            except UserError as error:
                yield f"{released}: {error}"
                continue
            if shape != self.shapes[name]:
                yield f"its {released} gives {list(shape)} instead of {list(self.shapes[name])}"
        used = set(self.sources.values())
        for released in state:
            if released not in used and not self.unused(released):
                yield f"there is no use for its {released!r}"


def _leaf(rest: str, plain: bool) -> str:
    """Return the released name of a leaf: `.conv.weight`, `.norm.bias` or `.weight`."""
    if plain or not rest.startswith((".conv.", ".norm.")):
        return rest
    return re.sub(r"^\.(conv|norm)\.", lambda m: ".conv.conv." if m[1] == "conv" else ".bn.bn.", rest)


def _recognise(state: Mapping[str, Tensor]) -> Space:
    """Return the released space with a checkpoint's shapes, for its channels and classes."""
    try:
        channels = state["first_conv.conv.conv.weight"].shape[1]
        classes = state["classifier.linear.linear.weight"].shape[0]
    except (KeyError, IndexError) as error:
        raise UserError(f"not a NASViT checkpoint: it lacks {error}") from error
    for name in SPACES:
        space = load_space(name).with_input(channels=channels, classes=classes)
        if next(Layout(space).problems(state), None) is None:
            return space
    raise UserError(f"the checkpoint is none of {', '.join(SPACES)}; say which space it is of (`--space`)")

"""A toy family of stages with terms across them, whose spaces can be counted through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from raynas.nets.terms import Counts, Term
from raynas.space import INACTIVE, Choice, Codes, Distribution, Space
from raynas.space.codes import CodedSpace
from raynas.space.rules import Family, Rule
from tests.space.space_parts import NoConstants, toy


def _nothing_wrong(space: CodedSpace) -> Iterator[tuple[tuple[str | int, ...], str]]:
    return iter(())


def _unscaled(constants: Any, arch: Mapping[str, Choice], factor: float) -> tuple[Any, dict[str, Choice]]:
    raise NotImplementedError


def _rules(prefix: str) -> dict[str, Rule]:
    block = {"kept": Rule(bool, 0, 1), "op": Rule(int, 0, 9), "heads": Rule(int, 1, 9), "mlp": Rule(int, 1, 999)}
    return {f"{prefix}width": Rule(int, 1, 999), f"{prefix}depth": Rule(int, 0, 9)} | {
        f"{prefix}blocks.*.{name}": rule for name, rule in block.items()
    }


STAGED = Family(
    NoConstants,
    {"patch": Rule(int, 1, 99), **_rules("stages.*.")},
    lambda constants, dimensions: constants,
    _nothing_wrong,
    _unscaled,
    lambda constants, templates: sorted(templates),
)


def terms(space: Space) -> list[Term]:
    """Widths meet between stages, operations and heads within blocks; a position term asks for the depth itself."""
    listed = []
    before: str | None = None
    for stage in range(sum(d.template.endswith("width") for d in space.dimensions)):
        prefix = f"stages.{stage}."
        width = f"{prefix}width"
        listed.append(Term(f"{prefix}embed", ("patch", width, *([before] if before else [])), _embed))
        if space.has(f"{prefix}depth"):
            listed.append(Term(f"{prefix}positions", (f"{prefix}depth", width), _positions))
        for name in dict.fromkeys(d.unit for d in space.dimensions if d.unit.startswith(f"{prefix}blocks.")):
            listed.append(Term(f"{name}.attention", (width, f"{name}.op", f"{name}.heads"), _attention))
            listed.append(Term(f"{name}.mlp", (width, f"{name}.mlp", "patch"), _mlp))
            listed.append(Term(f"{name}.norm", (f"{name}.op",), _norm))
        before = width
    return [*listed, Term("head", (before or "patch",), _head)]


def _same(costs: np.ndarray) -> Counts:
    return Counts(costs, 3 * costs + 1, costs)


def _embed(patch: np.ndarray, width: np.ndarray, before: np.ndarray | int = 3) -> Counts:
    return _same(patch**2 * width * before)


def _positions(depth: np.ndarray, width: np.ndarray) -> Counts:
    return _same((depth > 0) * 9 * width)


def _attention(width: np.ndarray, op: np.ndarray, heads: np.ndarray) -> Counts:
    return Counts(heads * width * (5 + 17 * op), heads * width * 4, heads * width * 4)


def _mlp(width: np.ndarray, mlp: np.ndarray, patch: np.ndarray) -> Counts:
    return Counts(width * mlp * (20 - patch), width * mlp + mlp, width * mlp)


def _norm(op: np.ndarray) -> Counts:
    """The same for every operation, but only where the block acts."""
    return Counts(1000 * (op > 0), 11 * (op > 0), 11 * (op > 0))


def _head(width: np.ndarray) -> Counts:
    return _same(10 * width)


def stage(width: list[int], **changes: Any) -> dict[str, Any]:
    """One stage; its blocks have three or four archs each."""
    block = {"op": [1, 2], "heads": [1, 3], "mlp": [2], **changes.pop("block", {})}
    repeat = {} if "depth" in changes else {"repeat": 2}
    return {"width": width, **changes, "blocks": {**repeat, **block}}


def depths() -> Space:
    """Two stages of 0 to 2 blocks: 2 patches x 4 widths x 21 x 21 = 3,528 archs."""
    stages = [stage([2, 3], depth=[0, 1, 2]), stage([4, 7], depth=[0, 1, 2])]
    return toy("staged", {"patch": [2, 4], "stages": stages})


def anywhere() -> Space:
    """Three stages of two blocks, kept anywhere; those of the second always: 2 x 5^2 x 2^2 x 2 x 2^2 = 1,600 archs."""
    any_block, always = {"kept": [False, True]}, {"kept": [True]}
    stages = [
        stage([2, 3], block={**any_block, "heads": [1], "mlp": [2, 5]}),
        stage([4], block={**always, "op": [1], "heads": [1, 2]}),
        stage([3, 5], block={**any_block, "op": [1], "heads": [2]}),
    ]
    return toy("staged", {"patch": [2], "stages": stages})


def anywhere_up_to_a_depth() -> Space:
    """One stage of 0, 1 or 3 blocks, each of which may be dropped: 2 x 2 x (1 + 5 + 5^3) = 524 archs."""
    return toy("staged", {"patch": [2, 4], "stages": [stage([2, 3], depth=[0, 1, 3], block={"kept": [False, True]})]})


def probabilities(distribution: Distribution, codes: Codes) -> np.ndarray:
    """Of every arch: the product of those of its choices that act."""
    found = np.ones(len(codes))
    for column, shares in zip(codes.T, distribution.probabilities, strict=True):
        found *= np.where(column == INACTIVE, 1.0, np.array(shares)[column])
    return found


def uneven(space: Space) -> Distribution:
    """A distribution that is uniform in nothing."""
    weights = {d.name: [1.0 + 0.7 * (i + j) % 3 for j in range(len(d.choices))] for i, d in enumerate(space.dimensions)}
    return Distribution.uniform(space).with_weights(weights)

"""Archs drawn, completed, decoded and named many at a time: as one by one, and as their definitions say."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from math import prod

import numpy as np
import pytest
from scipy.stats import chisquare

from raynas.space import INACTIVE, Choice, Codes, Dimension, Space, load_space
from raynas.space.codes import CodedSpace
from tests.space.space_parts import toy, vit

SPACES = ("digits/vit", "digits/vitas_v1", "digits/twins", "digits/s3", "digits/vit_resnas", "nasvit/released")


def completed(space: Space, columns: list[np.ndarray]) -> Codes:
    """Codes of drawn columns, in which genes that do not act are inactive by the rule for a single arch."""
    rows = np.stack(columns, axis=1).astype(np.int16)
    for row in rows:
        chosen: dict[str, Choice] = {}
        for place, dimension in enumerate(space.dimensions):
            if dimension.acts_under(chosen):
                chosen[dimension.name] = dimension.choices[row[place]]
            else:
                row[place] = INACTIVE
    return rows


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("n", [1, 9, 400])
def test_few_and_many_are_drawn_alike_dimension_by_dimension(name: str, n: int) -> None:
    space, rng, other = load_space(name), np.random.default_rng(4), np.random.default_rng(4)
    sizes = [len(dimension.choices) for dimension in space.dimensions]
    codes = space.sample_codes(rng, n)
    assert codes.dtype == np.int16 and codes.flags.c_contiguous
    assert (codes == completed(space, [other.integers(size, size=n) for size in sizes])).all()
    for change in (False, True):
        mutants = space.mutate_codes(codes, rng, 0.3, change)
        fresh = np.stack([other.integers(size, size=n) for size in sizes], axis=1)
        redraw = (other.random(codes.shape) < 0.3) | (codes == INACTIVE)
        if change:
            steps = np.stack([other.integers(1, max(size, 2), size=n) for size in sizes], axis=1)
            fresh = np.where(codes == INACTIVE, fresh, (codes + steps) % sizes)
        assert mutants.dtype == np.int16  # rows are told apart by their bytes
        assert (mutants == completed(space, list(np.where(redraw, fresh, codes).T))).all()
    assert rng.bit_generator.state == other.bit_generator.state


@pytest.mark.usefixtures("toy_families")
@pytest.mark.parametrize("family", ["shifting", "anywhere"])
def test_single_archs_have_the_exact_distribution(family: str) -> None:
    blocks = {"op": [0, 1]}
    space = (
        toy("shifting", {"depth": [0, 1, 3], "blocks": blocks})
        if family == "shifting"
        else toy("anywhere", {"blocks": {"repeat": 2, "kept": [False, True], **blocks}})
    )
    rng = np.random.default_rng(2)
    drawn = Counter(space.sample(rng) for _ in range(5000))
    archs = list(space.enumerate())
    shares = [prod(1 / len(space[name].choices) for name in arch) for arch in archs]
    assert sum(shares) == pytest.approx(1) and sum(drawn[arch] for arch in archs) == 5000
    assert chisquare([drawn[arch] for arch in archs], 5000 * np.array(shares)).pvalue > 0.001


def test_children_of_children_act_only_if_all_above_them_do() -> None:
    dimensions = (
        Dimension("a", (1, 2, 3)),
        Dimension("b", (0, 1), "a", frozenset({2, 3})),
        Dimension("free", (5, 6)),
        Dimension("c", (7, 8, 9), "b", frozenset({1})),
        Dimension("d", (1, 2), "c", frozenset({7, 9})),
    )
    space = CodedSpace("toy", "toy", (8, 8), 1, 2, None, dimensions)
    codes = space.canonical(np.indices((3, 2, 2, 3, 2)).reshape(5, -1).T.astype(np.int16))
    for a, b, free, c, d in codes.tolist():
        assert (b == INACTIVE) == (a == 0) and free in (0, 1)
        assert (c == INACTIVE) == (b != 1) and (d == INACTIVE) == (c not in (0, 2))
    assert len(np.unique(codes, axis=0)) == space.cardinality() == 2 * (1 + 2 * (1 + (1 + 2 * 2)))
    assert (space.canonical(codes) == codes).all()


@pytest.mark.parametrize("name", SPACES)
def test_ids_and_codes_are_those_of_the_values(name: str) -> None:
    space = load_space(name)
    codes = space.sample_codes(np.random.default_rng(1), 30)
    archs = space.decode(codes)
    for arch, row in zip(archs, codes.tolist(), strict=True):
        values = {d.name: d.choices[code] for d, code in zip(space.dimensions, row, strict=True) if code >= 0}
        written = json.dumps(values, sort_keys=True, separators=(",", ":"))
        assert arch.id == hashlib.sha256(written.encode()).hexdigest()[:12]
        assert dict(arch) == values and space.arch(values) == arch
    assert (space.encode(archs) == codes).all()
    assert (space.encode([dict(arch) for arch in archs]) == codes).all()


def test_a_space_that_lists_its_dimensions_in_another_order_has_other_codes() -> None:
    space = vit()
    definition = space.to_dict()
    definition["dimensions"] = dict(reversed(definition["dimensions"].items()))
    other = Space.from_dict(definition, "vit")
    assert other.fingerprint == space.fingerprint and other.dimensions != space.dimensions
    archs = space.decode(space.sample_codes(np.random.default_rng(0), 50))
    assert other.decode(other.encode(archs)) == archs

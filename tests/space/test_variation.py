"""Codes, mutation, crossover and neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import numpy as np
import pytest

from raynas.costs import sample_within
from raynas.errors import ConfigError, UserError
from raynas.space import INACTIVE, Arch, Distribution, Space, load_space
from tests.space.space_parts import toy, vit


def random(space: Space, n: int, seed: int = 0) -> np.ndarray:
    return space.sample_codes(np.random.default_rng(seed), n)


def test_codes() -> None:
    space = vit()
    codes = space.encode([space.smallest(), space.largest()])
    assert codes.dtype == np.int16 and codes.shape == (2, 3 + 2 * 3)
    assert codes[0].tolist() == [0, 0, 0, 0, 0] + [INACTIVE] * 4 and codes[1].tolist() == [1, 1, 2] + [1] * 6
    assert space.values(codes, "patch_size").tolist() == [8, 4]
    assert space.values(codes, "blocks.2.mlp_ratio").tolist() == [0, 2.0]
    assert space.encode([]).shape == (0, 9) and space.decode(space.encode([])) == []
    with pytest.raises(ConfigError, match="width = 192 is not among"):
        space.encode([{**space.smallest(), "width": 192}])
    with pytest.raises(ConfigError, match=r"has no 'blocks.3.heads'"):
        space.encode([dict(load_space("autoformer/tiny").smallest())])


def test_one_hot() -> None:
    space = vit()
    codes = random(space, 200)
    hot = space.one_hot(codes)
    assert hot.shape == (200, 2 + 2 + 3 + 3 * 4) and set(np.unique(hot)) == {0, 1}
    assert (hot.sum(axis=1) == (codes != INACTIVE).sum(axis=1)).all()
    assert len(np.unique(hot, axis=0)) == len(np.unique(codes, axis=0))  # nothing is lost


@pytest.mark.usefixtures("toy_families")
@pytest.mark.parametrize("by", ["gene", "block"])
def test_variation_stays_in_the_space(by: Literal["gene", "block"]) -> None:
    anywhere = toy("anywhere", {"blocks": {"repeat": 5, "kept": [False, True], "op": [0, 1]}})
    for space in (vit(), anywhere, load_space("autoformer/small")):
        first, second = random(space, 200, 1), random(space, 200, 2)
        rng = np.random.default_rng(3)
        for codes in (space.mutate_codes(first, rng, 0.4), space.crossover_codes(first, second, rng, by)):
            assert (space.canonical(codes) == codes).all()
            assert all(arch in space for arch in space.decode(codes))


def test_mutation_rates() -> None:
    space = load_space("autoformer/small")
    codes = np.repeat(space.encode([space.largest()]), 6000, axis=0)
    mutants = space.mutate_codes(codes, np.random.default_rng(0), {"depth": 0.6, "blocks.*.heads": 0.3, "*": 0})
    # A redraw may bring the present value back: the share that changes is rate x (choices - 1) / choices.
    assert np.mean(space.values(mutants, "depth") != 14) == pytest.approx(0.6 * 2 / 3, abs=0.02)
    assert np.mean(space.values(mutants, "blocks.0.heads") != 7) == pytest.approx(0.3 * 2 / 3, abs=0.02)
    assert (space.values(mutants, "width") == 448).all() and (space.values(mutants, "blocks.0.mlp_ratio") == 4).all()
    assert (space.mutate_codes(codes, np.random.default_rng(0), 0) == codes).all()


def test_a_mutated_gene_may_have_to_change() -> None:
    """AlphaNet's mutation: each other value is equally likely, and a gene with one choice stays."""
    space = load_space("autoformer/small")
    codes = np.repeat(space.encode([space.largest()]), 6000, axis=0)
    mutants = space.mutate_codes(codes, np.random.default_rng(0), {"depth": 0.6, "blocks.*.heads": 1, "*": 1}, True)
    shares = np.bincount(mutants[:, space.index("depth")], minlength=3) / 6000
    assert shares == pytest.approx([0.3, 0.3, 0.4], abs=0.03)
    assert (space.values(mutants, "blocks.0.heads") != 7).all() and (mutants[:, space.index("patch_size")] == 0).all()


def test_blocks_that_mutation_adds_are_random() -> None:
    """AutoFormer's search: a network that grows gets random blocks, one that shrinks loses its tail."""
    space = load_space("autoformer/small")
    codes = np.repeat(space.encode([space.smallest()]), 6000, axis=0)
    mutants = space.mutate_codes(codes, np.random.default_rng(0), {"depth": 1, "*": 0})
    grown = mutants[space.values(mutants, "depth") == 14]
    shares = np.bincount(grown[:, space.index("blocks.13.heads")], minlength=3) / len(grown)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.04)
    assert (space.values(grown, "blocks.11.heads") == 5).all()


def test_crossover_takes_each_gene_from_either_parent() -> None:
    space = load_space("autoformer/small")
    small = space.encode([{**space.smallest(), "depth": 12}])
    large = space.encode([space.largest()])
    first, second = np.repeat(small, 4000, axis=0), np.repeat(large, 4000, axis=0)
    children = space.crossover_codes(first, second, np.random.default_rng(0), by="gene")
    heads, ratios = (space.values(children, f"blocks.3.{gene}") for gene in ("heads", "mlp_ratio"))
    assert np.mean(heads == 5) == pytest.approx(0.5, abs=0.03)
    assert np.mean((heads == 5) == (ratios == 3)) == pytest.approx(0.5, abs=0.03)
    deep = children[space.values(children, "depth") == 14]
    assert (space.values(deep, "blocks.13.heads") == 7).all()  # only one parent has it
    together = space.crossover_codes(first, second, np.random.default_rng(0), by="block")
    heads, ratios = (space.values(together, f"blocks.3.{gene}") for gene in ("heads", "mlp_ratio"))
    assert np.mean(heads == 5) == pytest.approx(0.5, abs=0.03) and ((heads == 5) == (ratios == 3)).all()


def differences(space: Space, first: Arch, second: Arch) -> list[int]:
    """Steps between the genes that act in both."""
    one, other = space.encode([first, second]).astype(int)
    return [abs(a - b) for a, b in zip(one, other, strict=True) if a != b and INACTIVE not in (a, b)]


def test_a_seed_in_place_of_a_generator_is_refused() -> None:
    """It would draw the same arch at every call."""
    space = vit()
    arch, codes, seed = space.smallest(), space.encode([space.largest()]), cast(np.random.Generator, 0)
    calls: list[Callable[[], object]] = [
        lambda: space.sample(seed),
        lambda: space.mutate(arch, seed),
        lambda: space.crossover(arch, arch, seed),
        lambda: space.deal_codes(seed, 2),
        lambda: space.sample_codes(cast(np.random.Generator, np.random), 2, "archs"),
        lambda: Distribution.uniform(space).sample_codes(seed, 2),
        lambda: space.mutate_codes(codes, seed, 0.1),
        lambda: sample_within(space, {"macs": (None, 1e12)}, seed, 2),
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"rng must be a generator, such as numpy\.random\.default_rng\(0\), not"):
            call()


def test_neighbours_are_one_step_away() -> None:
    space = vit()
    everything = list(space.enumerate())
    for arch in everything[::37]:
        expected = {
            other
            for other in everything
            if differences(space, arch, other) == [1]
            # Where the depth grows, the block that comes is the smallest.
            and all(other[name] == space[name].choices[0] for name in other if name not in arch)
        }
        found = space.neighbours(arch)
        assert len(found) == len(set(found)) and set(found) == expected


def test_single_archs() -> None:
    space = vit()
    rng = np.random.default_rng(0)
    assert space.sample(rng) in space
    assert space.mutate(space.largest(), rng, 0) == space.largest()
    assert space.crossover(space.largest(), space.largest(), rng) == space.largest()


@pytest.mark.parametrize(
    ("probability", "message"),
    [
        ({"dept": 0.4, "*": 0.2}, r"unknown dimension 'dept' \(did you mean 'depth'\?\)"),
        ({"depth": 0.4}, "no mutation probability for 'patch_size'"),
        (1.5, "not between 0 and 1"),
        (float("nan"), "not between 0 and 1"),
    ],
)
def test_wrong_probabilities(probability: object, message: str) -> None:
    space = vit()
    with pytest.raises(ConfigError, match=message):
        space.mutate(space.smallest(), np.random.default_rng(0), probability)  # type: ignore[arg-type]


def test_wrong_words() -> None:
    space = vit()
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match=r"uniform_over 'arch' \(did you mean 'archs'\?\)"):
        space.sample(rng, "arch")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"crossover by 'blocks' \(did you mean 'block'\?\)"):
        space.crossover(space.smallest(), space.largest(), rng, "blocks")  # type: ignore[arg-type]

"""E-T errors, lines and updates against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raynas.costs import cost
from raynas.errors import ConfigError
from raynas.outer.evolution.axes import Axis, axes_of, check_steps
from raynas.outer.evolution.moves import Move, measure_space
from raynas.outer.evolution.next_space import Limits, next_space
from raynas.outer.evolution.quality import et_errors, resamples, space_quality
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.space import Space, load_space
from raynas.space.choices import with_choices
from tests.outer.outer_parts import vit

FOUR = np.array([0.4, 0.1, 0.3, 0.2])


@pytest.mark.parametrize(
    ("top", "times", "mean", "best"),
    [
        (2, [1, 1, 1, 1], 0.25, 0.15),  # the best two: 0.1 and 0.2
        (0.25, [1, 1, 1, 1], 0.25, 0.1),  # a quarter of four: the best
        (0.3, [1, 1, 1, 1], 0.25, 0.15),  # rounded up to two
        (50, [1, 1, 1, 1], 0.25, 0.25),  # fewer than 50: all of them
        (2, [1, 0, 1, 2], 0.275, 0.2),  # 0.2 twice, 0.3 and 0.4: the best two are both 0.2
        (3, [0, 2, 2, 0], 0.2, (0.1 + 0.1 + 0.3) / 3),
    ],
)
def test_et_error_is_half_the_mean_and_half_the_top_tier(
    top: float, times: list[int], mean: float, best: float
) -> None:
    found = et_errors(FOUR, np.array([times]), top)
    assert [each[0] for each in found] == pytest.approx([mean, best, (mean + best) / 2])


def test_standard_error_of_a_mean_is_that_of_the_textbook() -> None:
    """With everything in the top tier the E-T error is the mean, whose standard error has a closed form."""
    errors = np.random.default_rng(0).normal(0.3, 0.05, 500)
    found, _ = space_quality(errors, resamples(np.random.default_rng(1), 500, draws=4000), top=500)
    assert found.standard_error == pytest.approx(errors.std(ddof=1) / math.sqrt(500), rel=0.05)


def test_standard_error_of_a_top_tier_is_that_of_repeated_samples() -> None:
    population = np.random.default_rng(0)
    repeated = [et_errors(population.normal(0.3, 0.05, 300), np.ones((1, 300)), 0.1)[2][0] for _ in range(2000)]
    found, _ = space_quality(population.normal(0.3, 0.05, 300), resamples(np.random.default_rng(1), 300), top=0.1)
    assert found.standard_error == pytest.approx(np.std(repeated), rel=0.2)


def moves_of(space: Space, errors: dict[int, list[float]], leaf: str, **settings: Any) -> dict[str, Move]:
    """The moves of a space with one dimension that is not fixed, whose errors by value are given."""
    archs, found = [], []
    for value, each in errors.items():
        archs += [space.arch({**space.largest(), **space.smallest(), leaf: value})] * len(each)
        found += each
    config = SpaceEvolutionConfig(fewest=1, **settings)
    _, moves = measure_space(space, space.encode(archs), np.array(found), config, np.random.default_rng(0))
    return {move.axis: move for move in moves}


RISING = {96: [0.30, 0.34], 112: [0.31, 0.35], 128: [0.33, 0.37]}
"""E-T errors with a top tier of one: (0.32 + 0.30) / 2 = 0.31, 0.32 and 0.34: a line of slope 0.015 per choice."""


@pytest.mark.parametrize(
    ("settings", "slope", "steps", "after"),
    [
        ({}, 1.5, -3, (48, 64, 80)),  # floor(1.5 / 0.4) = 3 steps of 16
        ({"rounding": "toward_zero"}, 1.5, -3, (48, 64, 80)),
        ({"tau": 0.5}, 1.5, -3, (48, 64, 80)),  # exactly three
        ({"tau": 0.751}, 1.5, -1, (80, 96, 112)),
        ({"steps": {"width": 8}}, 1.5, -3, (72, 88, 104)),
        ({"most_steps": 2}, 1.5, -2, (64, 80, 96)),
        ({"per": "value"}, 1.5 / 16, 0, (96, 112, 128)),
        ({"per": "value", "tau": 0.05}, 1.5 / 16, -1, (80, 96, 112)),
        ({"unit": "fraction"}, 0.015, 0, (96, 112, 128)),
        ({"unit": "fraction", "tau": 0.004}, 0.015, -3, (48, 64, 80)),
    ],
)
def test_a_line_that_rises_moves_down(settings: dict[str, Any], slope: float, steps: int, after: tuple) -> None:
    move = moves_of(vit(width=[96, 112, 128]), RISING, "width", top=1, **settings)["width"]
    assert [each.error for each in move.qualities] == pytest.approx([0.31, 0.32, 0.34])
    assert move.slope == pytest.approx(slope)
    assert (move.steps, move.after) == (steps, after)


@pytest.mark.parametrize(
    ("settings", "steps", "after"),
    [({}, 4, (160, 176, 192)), ({"rounding": "toward_zero"}, 3, (144, 160, 176))],
)
def test_a_line_that_falls_moves_up_and_floor_rounds_that_up(settings: Any, steps: int, after: tuple) -> None:
    falling = dict(zip(RISING, reversed(RISING.values()), strict=True))  # slope -1.5: floor(-3.75) = -4
    move = moves_of(vit(width=[96, 112, 128]), falling, "width", top=1, **settings)["width"]
    assert (move.steps, move.after) == (steps, after)


def test_by_floor_any_negative_slope_is_a_step_and_a_flat_line_is_none() -> None:
    for rise, steps in ((-1e-4, 1), (0.0, 0), (0.0039, 0), (0.0041, -1)):
        errors = {value: [0.3 + rise * i] for i, value in enumerate(RISING)}
        assert moves_of(vit(width=[96, 112, 128]), errors, "width")["width"].steps == steps


def test_where_smaller_is_dearer_up_in_cost_is_a_smaller_value() -> None:
    finer_is_better = {8: [0.4], 4: [0.39]}  # slope -1 per choice: floor(-2.5), three steps of 4 towards finer patches
    space = vit(patch_size=[8, 4])
    move = moves_of(space, finer_is_better, "patch_size")["patch_size"]
    assert move.steps == 3
    assert move.after == (8, 4)
    assert move.notes[:2] == (
        "8 would become -4, which is not above 0: it is left out",
        "4 would become -8, which is not above 0: it is left out",
    )
    by_value = moves_of(space, finer_is_better, "patch_size", per="value")["patch_size"]
    assert by_value.slope == pytest.approx(-1 / 4)
    coarser_is_better = {8: [0.39], 4: [0.4]}
    (after,) = (move.after for name, move in moves_of(space, coarser_is_better, "patch_size").items() if "pat" in name)
    assert after == (16, 12)


def test_choices_that_fall_to_zero_are_removed_with_a_message() -> None:
    move = moves_of(vit(depth=[1, 2, 3]), {1: [0.3], 2: [0.304], 3: [0.308]}, "depth", steps={"depth": 1})
    assert move["depth"].after == (1, 2)
    assert move["depth"].notes == ("1 would become 0, which is not above 0: it is left out",)
    move = moves_of(vit(depth=[0, 1, 2]), {0: [0.3], 1: [0.304], 2: [0.308]}, "depth", steps={"depth": 1})
    assert move["depth"].after == (0, 1)  # a depth of 0 that was there already may stay
    assert move["depth"].notes == ("0 would become -1, which is not above 0: it is left out",)


def test_how_sure_a_move_is() -> None:
    rng = np.random.default_rng(0)
    errors = {value: list(rng.normal(0.3, 0.05, 200)) for value in RISING}  # nothing is better than anything
    move = moves_of(vit(width=[96, 112, 128]), errors, "width")["width"]
    assert abs(move.slope) < 3 * move.slope_error and move.sure < 0.9
    assert not moves_of(vit(width=[96, 112, 128]), errors, "width", confidence=0.99)["width"].moved
    clear = {value: list(rng.normal(0.3 + 0.006 * i, 0.002, 200)) for i, value in enumerate(RISING)}
    move = moves_of(vit(width=[96, 112, 128]), clear, "width", confidence=0.99)["width"]
    assert (move.steps, move.sure) == (-1, 1.0)
    # The slope of a line through three equally spaced points is half the difference of the outer two.
    outer = [move.qualities[i].standard_error for i in (0, 2)]
    assert move.slope_error == pytest.approx(100 * math.hypot(*outer) / 2, rel=0.15)


def test_choices_with_too_few_archs_are_left_out_of_the_line() -> None:
    errors = {96: [0.3] * 5, 112: [0.31] * 5, 128: [0.9]}
    config = {"fewest": 5}
    space = vit(width=[96, 112, 128])
    archs = [space.arch({**space.smallest(), "width": value}) for value, each in errors.items() for _ in each]
    found = np.concatenate([np.array(each) for each in errors.values()])
    _, moves = measure_space(
        space, space.encode(archs), found, SpaceEvolutionConfig(**config), np.random.default_rng(0)
    )
    assert next(move for move in moves if move.axis == "width").slope == pytest.approx(1.0)
    _, moves = measure_space(
        space, space.encode(archs), found, SpaceEvolutionConfig(fewest=6), np.random.default_rng(0)
    )
    move = next(move for move in moves if move.axis == "width")
    assert not move.moved and "fewer than two choices" in move.notes[0]


@pytest.mark.parametrize("deep", [False, True])
def test_slopes_of_blocks_are_those_of_the_whole_stage(deep: bool) -> None:
    """The error falls by 1 point where all blocks have a head more, whatever the number of blocks."""
    space = vit(depth=[14] if deep else [3, 4, 5], heads=[2, 3, 4])
    rng = np.random.default_rng(0)
    codes = space.sample_codes(rng, 1000)
    heads = np.stack([space.values(codes, f"blocks.{i}.heads") for i in range(max(space["depth"].choices))])
    errors = 0.3 - 0.01 * heads.sum(0) / (heads > 0).sum(0) + 0.01 * rng.standard_normal(1000)
    found = {}
    for blocks in ("most", "any"):
        config = SpaceEvolutionConfig(blocks=blocks)  # type: ignore[arg-type]
        _, moves = measure_space(space, codes, errors, config, np.random.default_rng(1))
        (found[blocks],) = (move for move in moves if move.axis == "blocks.*.heads")
        assert abs(found[blocks].slope + 1) < 3 * found[blocks].slope_error
    assert found["most"].slope_error < 0.9 * found["any"].slope_error


# -- axes ----------------------------------------------------------------------------------------------------------


def test_where_archs_belong_whose_blocks_differ() -> None:
    space = vit(depth=[1, 3], heads=[1, 2])
    heads = next(axis for axis in axes_of(space) if axis.name == "blocks.*.heads")

    def code(*values: int) -> np.ndarray:
        blocks = {f"blocks.{i}.heads": value for i, value in enumerate(values)}
        return space.encode([space.arch({**space.smallest(), **space.largest(), **blocks, "depth": len(values)})])

    codes = np.concatenate([code(1), code(1, 1, 2), code(2, 2, 2)])
    assert heads.belongs(space, codes, "most").tolist() == [[True, True, False], [False, False, True]]
    assert heads.belongs(space, codes, "any").tolist() == [[True, True, False], [False, True, True]]
    apart = [axis for axis in axes_of(space, "apart") if axis.name.endswith("heads")]
    assert [axis.name for axis in apart] == [f"blocks.{i}.heads" for i in range(3)]
    assert apart[2].belongs(space, codes, "apart").tolist() == [[False, False, False], [False, True, True]]
    even = vit(depth=[2], heads=[1, 2])
    tie = even.encode([even.arch({**even.smallest(), "blocks.0.heads": 2})])
    assert Axis("h", ("blocks.0.heads", "blocks.1.heads"), (1, 2), False).belongs(even, tie, "most").all()


def test_blocks_with_other_choices_are_axes_of_their_own() -> None:
    blocks = [{"heads": [1, 2], "mlp_ratio": [2.0]}, {"heads": [3, 4], "mlp_ratio": [2.0]}] * 2
    names = [axis.name for axis in axes_of(vit(depth=[4], blocks=blocks))]
    assert names == ["patch_size", "width", "depth", "blocks.0,2.heads", "blocks.*.mlp_ratio", "blocks.1,3.heads"]
    assert not any("kept" in axis.name for axis in axes_of(load_space("digits/vit_resnas")))


def test_steps_of_what_is_not_there_are_refused() -> None:
    space = vit(width=[16, 32], heads=[1, 2])
    check_steps(space, {"heads": 1, "blocks.*.heads": 2, "width": 8}, "most")
    with pytest.raises(ConfigError, match=r"no dimension 'head' to move \(did you mean 'heads'"):
        check_steps(space, {"head": 1}, "most")
    with pytest.raises(ConfigError, match=r"width has whole numbers, which cannot move by 0\.5"):
        check_steps(space, {"width": 0.5}, "most")


# -- the next space ------------------------------------------------------------------------------------------------


def to(space: Space, **after: tuple) -> list[Move]:
    """Moves to given choices, by leaf or by name with `__` for dots; all equally sure but for their order."""
    found = []
    for place, axis in enumerate(axes_of(space)):
        there = next((after[key] for key in after if axis.name == key.replace("__", ".")), None)
        there = after.get(axis.name.rpartition(".")[2], axis.choices) if there is None else there
        sure = 0.9 - 0.1 * place
        found.append(Move(axis.name, axis.members, axis.choices, there, (), 0.0, 0.0, 0, 1.0, sure))
    return found


def test_a_deeper_space_has_new_blocks_and_its_ramp_is_as_long() -> None:
    space = load_space("digits/twins")
    moves = to(space, stages__0__depth=(2, 3, 4))
    after, made = next_space(space, moves, "after")
    assert [move.moved for move in made] == [move.moved for move in moves]
    assert after["stages.0.blocks.3.mlp_width"].choices == space["stages.0.blocks.1.mlp_width"].choices
    assert (space.constants.drop_path_depths, after.constants.drop_path_depths) == ((2, 3), (4, 3))
    back, _ = next_space(after, to(after, stages__0__depth=(0, 1, 2)), "back")
    assert back == space  # the name does not matter


def test_a_constant_that_was_chosen_stays() -> None:
    space = vit(depth=[2, 3])
    constants = space.constants.model_copy(update={"drop_path_depth": 10})
    deeper = with_choices(space.replace(constants=constants), {"depth": (3, 4)})
    assert deeper.constants.drop_path_depth == 10
    assert with_choices(space, {"depth": (3, 4)}).constants.drop_path_depth == 4


def test_widths_that_can_only_move_together_do() -> None:
    """In vit_res no stage may be narrower than the one before: the last must move first."""
    space = load_space("digits/vit_resnas")  # widths 12 16 24, 24 32 48, 48 64 96
    wide = {"stages__0__width": (44, 48, 56), "stages__1__width": (64, 72, 88), "stages__2__width": (96, 112, 144)}
    after, made = next_space(space, to(space, **wide), "after")
    assert [after[f"stages.{i}.width"].choices for i in range(3)] == list(wide.values())
    assert not any(move.notes for move in made)


def test_choices_that_the_family_cannot_build_are_removed_with_its_words() -> None:
    space = load_space("digits/vit_resnas")
    after, made = next_space(space, to(space, stages__0__width=(16, 20, 28)), "after")
    assert after["stages.0.width"].choices == (16, 20)
    (move,) = (move for move in made if move.moved)
    assert move.notes == (
        "28 removed: dimensions.stages.1.width: 24 is less than 28, which the stage before may have: a residual only "
        "adds channels",
    )
    unchanged, made = next_space(space, to(space, stages__0__width=(60, 64, 72)), "after")
    assert unchanged == space
    assert made[0].notes[-1] == "it stays: the family can build none of the others"


def test_the_least_sure_move_is_taken_back_where_the_space_grows_too_large() -> None:
    space = vit(depth=[1, 2], heads=[1, 2], mlp_ratio=[1.0, 2.0])  # 4 + 16 archs
    deeper = to(space, depth=(2, 3), heads=(2, 3))
    free, _ = next_space(space, deeper, "after")
    assert (space.cardinality(), free.cardinality()) == (20, 80)
    unsure = [replace(move, sure=0.1) if move.axis == "depth" else move for move in deeper]
    after, made = next_space(space, unsure, "after", Limits(50))
    assert after["depth"].choices == (1, 2) and after["blocks.0.heads"].choices == (2, 3)
    (depth,) = (move for move in made if move.axis == "depth")
    assert depth.notes == ("not made: with the moves that are, the space would hold 80 archs, more than 50",)


def test_moves_out_of_the_budget_are_not_made_but_what_saves_makes_room() -> None:
    space = vit(width=[16, 24], mlp_ratio=[1.0, 2.0])

    def of(ratio: float) -> dict[str, float]:
        return {f"blocks.{i}.mlp_ratio": ratio for i in range(2)}

    def least(width: int, ratio: float) -> int:
        arch = space.off_grid({**space.smallest(), "width": width, **of(ratio)})
        return int(cost(arch.space, [arch])["macs"][0])

    dear = to(space, width=(64, 72), mlp_ratio=(3.0, 4.0))
    after, made = next_space(space, dear, "after", Limits(constraints={"macs": (None, least(64, 1.0))}))
    assert after["width"].choices == (64, 72) and after["blocks.0.mlp_ratio"].choices == (1.0, 2.0)
    (note,) = (note for move in made for note in move.notes)
    assert note.startswith("not made: with the moves that are, no arch would have macs in [.., ")
    saving = to(space, width=(64, 72), mlp_ratio=(0.5, 4.0))
    after, made = next_space(space, saving, "after", Limits(constraints={"macs": (None, least(64, 0.5))}))
    assert after["width"].choices == (64, 72) and after["blocks.0.mlp_ratio"].choices == (0.5, 4.0)
    # Within the constraints of the first the space after both has one arch of eight: two blocks' smallest ratios.
    after, made = next_space(space, saving, "after", Limits(constraints={"macs": (None, least(64, 0.5))}, fewest=2))
    assert after["width"].choices == (16, 24) and after["blocks.0.mlp_ratio"].choices == (0.5, 4.0)
    (note,) = (note for move in made for note in move.notes)
    assert note.endswith("only 1 arch(s) would meet the constraints, fewer than 2")

"""The loop of space evolution on objectives whose optimum is known: it walks there, stops, and goes on after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raynas.costs import cost
from raynas.errors import ConfigError, InfeasibleError, RunDirError, UserError
from raynas.outer.evolution.loop import can_move, evolve_space
from raynas.outer.evolution.record import Iteration, read_iterations
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.runs.run import Run
from raynas.space import Arch, Space, load_space
from tests.outer.outer_parts import Bowl, vit

SPACE = vit(width=[16, 32, 48], depth=[2, 3, 4], heads=[5, 6, 7], mlp_ratio=[1.0, 2.0, 3.0])
BEST = {"width": 112, "depth": 3, "heads": 3, "mlp_ratio": 4.0}
STEP = {"width": 16, "depth": 1, "heads": 1, "mlp_ratio": 1.0}


def config(**settings: Any) -> SpaceEvolutionConfig:
    return SpaceEvolutionConfig(**{"iterations": 12, "archs": 200, "rounding": "toward_zero", **settings})


def evolve(path: Path, settings: SpaceEvolutionConfig, objective: Any, space: Space = SPACE, **more: Any) -> Any:
    said: list[str] = []
    found = evolve_space(Run(path, create=True), space, settings, objective, progress=said.append, **more)
    return found, said


def test_it_walks_to_the_optimum_and_stops(tmp_path: Path) -> None:
    found, said = evolve(tmp_path / "run", config(most_steps=3), Bowl(BEST, STEP))
    last = found[-1].space
    assert found[-1].ended == "no axis moves" and len(found) < 8
    assert last["width"].choices == (96, 112, 128)
    assert last["depth"].choices == (2, 3, 4)
    assert 3 in last["blocks.0.heads"].choices and 4.0 in last["blocks.0.mlp_ratio"].choices
    errors = [each.quality.error for each in found]
    assert errors[-1] < errors[0] / 3 + 0.15 and min(errors) == errors[-1]
    assert said[-1].endswith(f"spaces/{len(found) - 1}.yaml")


def test_the_rule_of_the_paper_gets_there_too_but_drifts_up_from_a_flat_bottom(tmp_path: Path) -> None:
    """By floor a slope of nothing, measured a little below 0, is a step: it goes in circles, which is noticed."""
    found, _ = evolve(tmp_path / "run", config(rounding="floor"), Bowl(BEST, STEP))
    assert "again" in found[-1].ended or found[-1].ended == "no axis moves"
    best = min(found, key=lambda each: each.quality.error)
    assert 112 in best.space["width"].choices
    assert load_space(tmp_path / "run/spaces/best.yaml") == best.space


def test_noise_moves_nothing_that_it_is_not_sure_of(tmp_path: Path) -> None:
    """At the optimum, with noise ten times what a step costs, confidence is what holds the space still."""
    space = vit(width=[96, 112, 128], depth=[2, 3, 4], heads=[2, 3, 4], mlp_ratio=[3.0, 4.0, 5.0])
    noisy = Bowl(BEST, STEP, noise=0.05)
    settings = {"rounding": "floor", "iterations": 2, "archs": 400}
    moved, _ = evolve(tmp_path / "a", config(**settings), noisy, space)
    still, said = evolve(tmp_path / "b", config(**settings, confidence=0.99), noisy, space)
    assert len(moved) == 2 and len(still) == 1 and still[0].ended == "no axis moves"
    assert any("of the resamples move it up, less than 99%" in line for line in said)


def test_every_scored_arch_is_within_the_constraints(tmp_path: Path) -> None:
    bowl = Bowl(BEST, STEP)
    limit = 400_000
    found, said = evolve(
        tmp_path / "run", config(iterations=3, most_steps=1), bowl, constraints={"macs": (None, limit)}
    )
    assert len(found) > 1 and bowl.calls == list(range(len(found)))
    for arch in bowl.archs:
        assert cost(arch.space, [arch])["macs"][0] <= limit
    assert said[0].endswith("within macs in [.., 400000] (±: standard errors)")
    with pytest.raises(InfeasibleError, match="no arch has macs"):
        evolve(tmp_path / "other", config(), bowl, constraints={"macs": (None, 10)})
    assert not (tmp_path / "other/space_evolution.yaml").exists()


def test_it_does_not_leave_the_budget(tmp_path: Path) -> None:
    far = Bowl({"width": 1000}, {"width": 16})
    space = vit(width=[16, 32, 48], depth=[1, 2])
    limit = int(cost(space, [space.largest()])["macs"][0]) + 100
    found, said = evolve(tmp_path / "run", config(fewest=1), far, space, constraints={"macs": (None, limit)})
    assert found[-1].ended == "no axis moves" and found[-1].space == space
    assert any("not made: with the moves that are, no arch would have macs in" in line for line in said)


def test_the_log_explains_every_move(tmp_path: Path) -> None:
    found, said = evolve(tmp_path / "run", config(iterations=2, steps={"depth": 0}), Bowl(BEST, STEP))
    log = (tmp_path / "run/space_evolution.txt").read_text()
    assert log.splitlines() == said[:-1]
    width = next(move for move in found[0].moves if move.axis == "width")
    assert width.steps > 0
    assert f"  width: [16, 32, 48] -> [{', '.join(map(str, width.after))}]\n" in log
    assert f"tau 0.4: {width.steps} steps of 16 up in cost; {width.sure:.0%} of the resamples say the same\n" in log
    assert f"    slope {width.slope:+.3g} ± {width.slope_error:.2g} points per choice" in log
    assert f"16: {width.qualities[0].error:.2%} ± " in log
    assert "  depth: [2, 3, 4] stays\n" in log and "    its step is 0\n" in log
    assert "it was the last iteration" in log


class Killed(Exception):
    """Somebody pulled the plug."""


def test_killed_it_goes_on_in_the_iteration_that_it_was_in(tmp_path: Path) -> None:
    settings, whole = config(most_steps=3), Bowl(BEST, STEP)
    expected, _ = evolve(tmp_path / "whole", settings, whole)
    run, bowl = Run(tmp_path / "run", create=True), Bowl(BEST, STEP)

    def dies(index: int, space: Space, archs: Sequence[Arch]) -> list[float]:
        if index == 1:
            raise Killed
        return bowl(index, space, archs)

    with pytest.raises(Killed):
        evolve_space(run, SPACE, settings, dies)
    assert [each.index for each in read_iterations(run)] == [0]

    def stops(line: str) -> None:
        if line.startswith("space 2"):
            raise Killed

    with pytest.raises(Killed):  # after its rows were written, and before it was told of
        evolve_space(run, SPACE, settings, bowl, progress=stops)
    heard: list[Iteration] = []
    found = evolve_space(run, SPACE, settings, bowl, after_each=heard.append)
    assert bowl.calls == whole.calls
    assert heard == found
    assert [each.space for each in found] == [each.space for each in expected]
    assert [(m.after, m.notes) for each in found for m in each.moves] == [
        (m.after, m.notes) for each in expected for m in each.moves
    ]
    for table in ("spaces", "space_moves", "space_scores"):
        rows = [Run(tmp_path / name).store.read(table).num_rows for name in ("run", "whole")]
        assert rows[0] == rows[1] > 0
    log = [(tmp_path / name / "space_evolution.txt").read_text() for name in ("run", "whole")]
    assert log[0] == log[1]
    with pytest.raises(RunDirError, match=r"settings\.tau was 0\.4, is 0\.5"):
        evolve_space(run, SPACE, settings.model_copy(update={"tau": 0.5}), bowl)


def test_too_few_archs_to_move_anything_are_known_beforehand() -> None:
    space = vit(width=[16, 32], depth=[2, 3], heads=[2], mlp_ratio=[1.0])
    assert can_move(space, SpaceEvolutionConfig(archs=4, fewest=2), {})  # all that there are, two of each choice
    assert not can_move(space, SpaceEvolutionConfig(archs=4, fewest=3), {})


def test_what_failed_is_left_out(tmp_path: Path) -> None:
    bowl = Bowl(BEST, STEP)

    def half(index: int, space: Space, archs: Sequence[Arch]) -> list[float | None]:
        return [None if i % 2 else value for i, value in enumerate(bowl(index, space, archs))]

    found, _ = evolve(tmp_path / "run", config(iterations=1), half)
    assert found[0].quality.archs == 100
    with pytest.raises(UserError, match="0 of 200 subnets could be scored"):
        evolve(tmp_path / "none", config(iterations=1), lambda index, space, archs: [None] * len(archs))


def test_a_space_that_is_too_large_to_begin_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="largest: small itself holds"):
        evolve(tmp_path / "run", config(largest=100), Bowl(BEST, STEP))


@pytest.mark.parametrize("name", ["digits/vit", "digits/twins", "digits/vit_resnas"])
def test_every_family_evolves_and_every_space_can_be_read_and_counted(name: str, tmp_path: Path) -> None:
    space = load_space(name)
    leaves = {d.name.rpartition(".")[2] for d in space.dimensions if not isinstance(d.choices[0], bool)}
    far = Bowl(dict.fromkeys(leaves, 20.0), dict.fromkeys(leaves, 20.0), noise=0.01)
    found, _ = evolve(tmp_path / "run", config(archs=100, most_steps=2), far, space)
    assert len(found) > 1
    for each in found:
        read = load_space(tmp_path / f"run/spaces/{each.index}.yaml")
        assert read == each.space and cost(read, [read.largest()])["macs"][0] > 0


def test_settings_bind_with_the_first_scores(tmp_path: Path) -> None:
    def fails(*arguments: Any) -> Any:
        raise UserError("the data cannot be read")

    settings = config(archs=40, iterations=1)
    with pytest.raises(UserError, match="cannot be read"):
        evolve_space(Run(tmp_path, create=True), SPACE, settings, fails)
    more = settings.model_copy(update={"archs": 50})  # as a message may advise
    evolve(tmp_path, more, Bowl(BEST, STEP))
    with pytest.raises(RunDirError, match="archs was 50, is 40"):
        evolve(tmp_path, settings, Bowl(BEST, STEP))

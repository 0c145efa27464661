"""The shipped ablations: they load, their rows differ, and those of the digits could be carried out."""

from __future__ import annotations

import pytest

from raynas.cluster.resources import Resources
from raynas.outer.ablation.cells import cells_of
from raynas.outer.ablation.loop import _check
from raynas.outer.measures import MEASURES, check_measures
from raynas.phases.inputs import space_of
from raynas.presets.ablation import load_ablation
from raynas.space.load import SPACES

SHIPPED = sorted(path.relative_to(SPACES).with_suffix("").as_posix() for path in SPACES.rglob("ablation_*.yaml"))
TWINS = {
    "vitas/ablation_v1_recipe": "digits/ablation_vitas_v1_recipe",
    "vitas/ablation_v2_recipe": "digits/ablation_vitas_v2_recipe",
    "vitas/ablation_v2_sharing": "digits/ablation_vitas_v2_sharing",
    "nasvit/ablation_cnn": "digits/ablation_nasvit_cnn",
    "nasvit/ablation_gradients": "digits/ablation_nasvit_gradients",
    "nasvit/ablation_recipe": "digits/ablation_nasvit_recipe",
    "vit_resnas/ablation_archs": "digits/ablation_vit_resnas_archs",
    "vit_resnas/ablation_network": "digits/ablation_vit_resnas_network",
}


def test_every_papers_table_has_a_twin_on_the_digits() -> None:
    assert sorted([*TWINS, *TWINS.values()]) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_rows_are_valid_and_differ(name: str) -> None:
    read = load_ablation(name)
    rows = read.rows()
    for row in rows:
        check_measures(read.config.measure, row.preset, read.config.truth)
        space = space_of(row.preset)
        row.preset.plan.open_space(space, 0, row.preset.recipe.epochs)
    assert len(cells_of(rows, read.config.seeds, read.config.measure)) == len(rows) * len(read.config.seeds)
    published = [figure for row in read.config.published.values() for figure in row.items()]
    assert all(measure in read.config.measure and MEASURES[measure].unit == "%" for measure, _ in published)
    assert bool(published) == bool(read.config.source)


@pytest.mark.parametrize("name", TWINS.values())
def test_rows_of_the_digits_can_be_carried_out(name: str) -> None:
    read = load_ablation(name)
    _check(read.rows(), read.config.measure, None, read.preset, Resources(workers=0, replicas=0))


def test_published_figures_are_those_of_the_papers() -> None:
    archs = load_ablation("vit_resnas/ablation_archs").config.published
    assert [archs[name]["tested"] for name in ("1", "8", "16", "32")] == [80.5, 80.6, 80.8, 80.6]
    network = load_ablation("vit_resnas/ablation_network").config.published
    assert [row["inherited"] for row in network.values()] == [78.5, 78.8, 79.6, 80.1, 79.6, 80.1]
    gradients = load_ablation("nasvit/ablation_gradients").config.published
    assert gradients == {"baseline": {"smallest": 76.6}, "NASViT": {"smallest": 78.1, "largest": 82.9}}

"""Ablations as YAML: generated rows, and mistakes that are named by file, line and nearest key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raynas.errors import UserError
from raynas.presets.ablation import load_ablation

TOGGLES = {
    "mixup": {"recipe.mixup": 0.8},
    "erasing": {"recipe.augment.reprob": 0.25},
    "decay": {"recipe.weight_decay": 0.1},
}


def ablation(**settings: Any) -> dict[str, Any]:
    return {"preset": "digits", "set": {"recipe.mixup": 0, "recipe.epochs": 3}, "toggles": TOGGLES, **settings}


@pytest.mark.parametrize(
    ("generate", "rows"),
    [
        ("leave_one_out", {"all": "med", "no mixup": "ed", "no erasing": "md", "no decay": "me"}),
        ("add_one_in", {"none": "", "mixup": "m", "erasing": "e", "decay": "d"}),
        ("cumulative", {"none": "", "+ mixup": "m", "+ erasing": "me", "+ decay": "med"}),
        (
            "grid",
            {
                "none": "", "mixup": "m", "erasing": "e", "decay": "d", "mixup + erasing": "me", "mixup + decay": "md",
                "erasing + decay": "ed", "mixup + erasing + decay": "med",
            },
        ),
    ],
)  # fmt: skip
def test_generated_rows(generate: str, rows: dict[str, str]) -> None:
    read = load_ablation(ablation(generate=generate))
    found = read.rows()
    assert {row.name: "".join(name[0] for name in row.toggles) for row in found} == rows
    assert read.baseline == next(iter(rows))
    for row in found:
        recipe = row.preset.recipe
        assert recipe.epochs == 3
        assert recipe.mixup == (0.8 if "mixup" in row.toggles else 0)
        assert recipe.augment.reprob == (0.25 if "erasing" in row.toggles else 0)
        assert recipe.weight_decay == (0.1 if "decay" in row.toggles else 0.05)


def test_rows_are_lists_of_toggles_or_changes_of_their_own() -> None:
    rows = {"as it is": {}, "both": ["mixup", "decay"], "slow": {"recipe.lr": 1.0e-3}}
    read = load_ablation(ablation(rows=rows, baseline="both"))
    plain, both, slow = read.rows()
    assert (plain.toggles, both.toggles, slow.toggles) == ((), ("mixup", "decay"), ())
    assert both.changes == {"recipe.mixup": 0.8, "recipe.weight_decay": 0.1}
    assert slow.changes == {"recipe.lr": 1.0e-3} and slow.preset.recipe.lr == 1.0e-3
    assert read.baseline == "both"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"row": {}}, r"ablation.yaml:\d+: row: unknown key 'row' .did you mean 'rows'"),
        (
            {"rows": {"a": {"recipe.mixpu": 1}}},
            r"ablation.yaml:\d+: rows.a.recipe.mixpu: .*unknown key 'mixpu' .did you mean 'mixup'",
        ),
        (
            {"rows": {"a": {}, "b": {"recipe.epochs": 0}}},
            r"ablation.yaml:\d+: rows.b.recipe.epochs: .*greater than or equal to 1, found 0",
        ),
        ({"rows": {"a": ["mixpu"]}}, r"ablation.yaml:\d+: rows.a: no toggle 'mixpu' .did you mean 'mixup'"),
        (
            {"rows": {"a": ["mixup", "other"]}, "toggles": {**TOGGLES, "other": {"recipe.mixup": 0.3}}},
            "'mixup' and 'other' both change recipe.mixup",
        ),
        ({"rows": {"a": {}}, "baseline": "b"}, r"ablation.yaml:\d+: baseline: no row 'b'"),
        (
            {"rows": {"a": {}}, "published": {"aa": {"tested": 1}}},
            r"ablation.yaml:\d+: published.aa: no row 'aa' .did you mean 'a'",
        ),
        ({"generate": "leave_one_out", "rows": {"a": {}}}, "give rows, or generate"),
        ({"generate": "leave_one"}, r"ablation.yaml:\d+: generate: Input should be"),
        ({"generate": "grid", "toggles": {}}, "makes rows of toggles: give some"),
        ({"generate": "grid", "toggles": {str(n): {"recipe.seed": n} for n in range(9)}}, "more than 8 has too many"),
        ({}, "give rows, or toggles and generate"),
        ({"rows": {"a": {}}, "seeds": [1, 1]}, "the same seed twice"),
        ({"rows": {"a": {}}, "measure": ["probes", "tau", "probes"]}, "measure: probes is there twice"),
        (
            {"rows": {"a": {}, "b": {"recipe.lr": 0.1, "recipe.seed": 3}}},
            r"ablation.yaml:\d+: rows.b.recipe.seed: every row is carried out with each of the ablation's seeds",
        ),
        ({"rows": {"a": {}}, "set": {"retrain.seeds": [1]}}, r"ablation.yaml:\d+: set.retrain.seeds: every row"),
        (
            {"rows": {"a": {}}, "set": {"recip.lr": 1}},
            r"ablation.yaml:\d+: set.recip.lr: .*unknown key 'recip' .did you mean 'recipe'",
        ),
        (
            {"rows": {"a": {}}, "preset": "digitss"},
            r"ablation.yaml:\d+: preset: no preset 'digitss'.*did you mean 'digits/preset'",
        ),
        ({"rows": {"a": {}}, "family": "vit"}, "this file is a space or a preset"),
    ],
)
def test_mistakes_are_named_by_file_line_and_key(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "ablation.yaml"
    file.write_text(yaml.safe_dump(ablation(**settings), sort_keys=False))
    with pytest.raises(UserError, match=message):
        load_ablation(file).rows()


def test_a_file_that_is_not_there_names_the_nearest_shipped_ablation_only() -> None:
    with pytest.raises(UserError, match="no ablation 'digits/ablation_x'") as error:
        load_ablation("digits/ablation_x")
    assert "preset" not in str(error.value)


def test_preset_and_truth_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "space: digits/vit\ndata: digits\nrecipe: {epochs: 2, batch_size: 64, lr: 1.0e-3}\n"
    )
    (tmp_path / "truth.parquet").touch()
    file = tmp_path / "ablation.yaml"
    file.write_text("preset: mine\ntruth: truth.parquet\nrows: {a: {}, b: {recipe.lr: 2.0e-3}}\n")
    read = load_ablation(file)
    assert read.preset.recipe.epochs == 2 and read.config.truth == str(tmp_path / "truth.parquet")

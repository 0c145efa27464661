"""Presets: the shipped ones, overrides, and what is said of wrong ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from raynas.api.given import chosen_preset
from raynas.costs import cost
from raynas.documents import parse_overrides, parse_yaml
from raynas.errors import ConfigError, UserError
from raynas.outer.evolution.axes import axes_of, step_of
from raynas.phases.inputs import space_of
from raynas.phases.preflight import check_later
from raynas.presets.preset import load_preset, override
from raynas.space import load_arch, load_space
from raynas.training.preflight import check_recipe

WRONG = """\
space: digits/vit
data: digits
recipe:
  epochs: 3
  batch_size: 32
  lr: 0.001
  warm_epochs: 1
"""


def test_autoformer_preset_is_the_released_procedure() -> None:
    preset = load_preset("autoformer")
    recipe = preset.recipe
    assert preset.space == "autoformer/small"
    assert (recipe.epochs, recipe.batch_size, recipe.opt, recipe.weight_decay) == (500, 1024, "adamw", 0.05)
    assert recipe.effective_lr == pytest.approx(1e-3)  # 5e-4 per 512 images
    assert (recipe.sched, recipe.min_lr, recipe.warmup_epochs, recipe.warmup_lr) == ("cosine", 1e-5, 20, 1e-6)
    assert (recipe.drop_path, recipe.smoothing, recipe.mixup, recipe.cutmix) == (0.1, 0.1, 0.8, 1.0)
    assert (recipe.clip_grad, recipe.ema) == (None, None)
    augment = recipe.augment
    assert (augment.auto_augment, augment.reprob, augment.remode, augment.repeats) == (
        "rand-m9-mstd0.5-inc1",
        0.25,
        "pixel",
        3,
    )
    assert preset.plan.sampler.name == "single_path" and preset.plan.objective.name == "labels"


@pytest.mark.parametrize(
    ("size", "drop_path", "billions", "baseline"),
    [("tiny", 0.1, 1.4, "twins_t"), ("small", 0.2, 3.0, "twins_svt_small"), ("base", 0.3, 8.8, "twins_svt_base"),
     ("large", 0.5, 16.1, "twins_svt_large")],
)  # fmt: skip
def test_vitas_twins_preset_is_the_papers_procedure_at_every_size(
    size: str, drop_path: float, billions: float, baseline: str
) -> None:
    """The paper's budgets and stochastic depth; each budget holds the baseline that it is set beside."""
    changes = {} if size == "small" else parse_overrides([
        f"space=vitas/twins_{size}", f"retrain.recipe.drop_path={drop_path}",
        f"search.constraints.macs=[null, {billions}e+9]", f"reference=vitas/published/{baseline}",
    ])  # fmt: skip
    preset = load_preset("vitas/preset_twins", changes)
    recipe, alone = preset.recipe, preset.retrain_recipe
    assert (recipe.epochs, recipe.effective_lr, recipe.min_lr, recipe.warmup_lr) == (300, 1e-3, 0, 0)
    assert (recipe.weight_decay, recipe.smoothing, recipe.drop_path, recipe.clip_grad, recipe.mixes) == (
        0, 0, 0, None, False,
    )  # fmt: skip
    assert (alone.weight_decay, alone.smoothing, alone.mixup, alone.cutmix) == (0.05, 0.1, 0.8, 1.0)
    assert (alone.clip_grad, alone.drop_path) == (5.0, drop_path)
    assert preset.search.constraints == {"macs": (None, pytest.approx(billions * 1e9))}
    assert preset.search.options["population"] * (1 + (preset.search.generations or 0)) == 2000
    space = space_of(preset)
    hand_made = load_arch(preset.reference or "")
    macs = int(cost(hand_made.space, [hand_made])["macs"][0])
    assert 0.9 * billions * 1e9 < macs < 1.01 * billions * 1e9
    assert space.constants.sharing == "cyclic" and space.smallest() in space


def test_digits_preset_loads_and_dumps_to_itself() -> None:
    preset = load_preset("digits/preset")
    assert preset.data is not None and preset.data.name == "digits"
    assert type(preset).model_validate(preset.model_dump(mode="json")) == preset


def test_wrong_key_names_line_and_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(WRONG)
    with pytest.raises(ConfigError) as caught:
        load_preset(path)
    assert "mine.yaml:7: recipe.warm_epochs: unknown key 'warm_epochs' (did you mean 'warmup_epochs'?)" in str(
        caught.value
    )


def test_space_beside_the_preset_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(WRONG.replace("digits/vit", "own.yaml").replace("warm_epochs", "warmup_epochs"))
    (tmp_path / "own.yaml").write_text("family: vit")
    assert load_preset(tmp_path / "mine.yaml").space == str(tmp_path / "own.yaml")


def test_overrides_by_dotted_key() -> None:
    preset = load_preset("digits", {"recipe.epochs": 7, "recipe.augment": {"hflip": 0.5}, "data": "digits"})
    assert preset.recipe.epochs == 7
    assert preset.recipe.augment.hflip == 0.5
    assert preset.recipe.augment.shift == load_preset("digits").recipe.augment.shift
    sandwich = override(preset, {"plan.sampler": {"name": "sandwich", "random": 1}, "plan.sampler.per_rank": True})
    assert sandwich.plan.sampler.options == {"random": 1} and sandwich.plan.sampler.per_rank
    back = override(sandwich, {"plan.sampler": {"name": "single_path"}})
    assert back.plan.sampler.options == {}  # the old sampler's options went with it
    with pytest.raises(ConfigError, match=r"override: recipe.epoch: unknown key 'epoch' \(did you mean 'epochs'\?\)"):
        override(preset, {"recipe.epoch": 3})
    with pytest.raises(ConfigError, match=r"recipe\.epochs"):
        override(preset, {"recipe.epochs": "many"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"search.objectives": {"top5": "max"}}, {"top5": "max"}),
        ({"search": {"objectives": {"loss": "min"}}}, {"loss": "min"}),
        ({"search": {"name": "nsga2", "objectives": {"top5": "max", "macs": "min"}}}, {"top5": "max", "macs": "min"}),
        ({"search.name": "nsga2", "search.objectives.macs": "min"}, {"accuracy": "max", "macs": "min"}),
    ],
)
def test_given_objectives_replace_the_old_ones_and_a_single_one_is_added(
    change: dict[str, Any], expected: dict[str, str]
) -> None:
    preset = override(load_preset("digits"), change)
    assert preset.search.objectives == expected
    assert preset.search.constraints == load_preset("digits").search.constraints


@pytest.mark.parametrize("change", [{"search.constraints": {}}, {"search.constraints.macs": None}])
def test_a_limit_can_be_taken_away(change: dict[str, Any]) -> None:
    limited = load_preset("digits")
    assert limited.search.constraints and not override(limited, change).search.constraints


def test_overrides_of_a_command_line() -> None:
    assert parse_overrides(["recipe.epochs=3", "data=digits", "recipe.ema=null"]) == {
        "recipe.epochs": 3,
        "data": "digits",
        "recipe.ema": None,
    }
    with pytest.raises(UserError, match="KEY=VALUE"):
        parse_overrides(["recipe.epochs"])
    with pytest.raises(UserError, match=r"recipe\.epochs is given twice"):
        parse_overrides(["recipe.epochs=3", "recipe.epochs=4"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["data.clutter.train=200", "data.clutter=null"], r"data\.clutter\.train and data\.clutter are both given"),
        (["data.clutter=null", "data.clutter.train=200"], r"data\.clutter and data\.clutter\.train are both given"),
        (["search.seed=1", "search={evaluations: 9}"], r"search\.seed and search are both given"),
        (["recipe={epochs: 3}", "recipe.epochs=4"], r"recipe and recipe\.epochs are both given"),
    ],
)
def test_overrides_that_undo_each_other_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_overrides(given)
    overrides = {key: parse_yaml(value, "").data for key, value in (each.split("=", 1) for each in given)}
    with pytest.raises(UserError, match=message):
        load_preset("clutter", overrides)
    with pytest.raises(UserError, match=message):
        chosen_preset(load_preset("clutter"), None, overrides)


def test_overrides_that_add_to_each_other_are_taken() -> None:
    given = [
        "plan.sampler={name: sandwich}",
        "plan.sampler.random=1",
        "search={options: {}}",
        "search.options={seed: 1}",
    ]
    assert len(parse_overrides([*given, "recipe.epochs=3", "recipe.epochs_=4", "search.options.parents=2"])) == 7
    with pytest.raises(UserError, match="the data is given twice"):
        chosen_preset("digits", "mnist5k", {"data": {"name": "digits"}})


OWN = """\
space: digits/vit
data: digits
recipe: {epochs: 3, batch_size: 32, lr: 0.001}
retrain:
  recipe:
    epochs: 9
    lr: 0.002
  finetune:
    size: 12
    recipe:
      lr: 0.0005
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("lr: 0.002", "lr: -2", r"mine.yaml:7: retrain.recipe.lr: .*greater than 0, found -2"),
        ("lr: 0.002", "rl: 2", r"mine.yaml:7: retrain.recipe.rl: unknown key 'rl' \(did you mean 'lr'"),
        ("lr: 0.002", "warmup_epochs: 10", r"mine.yaml:5: retrain.recipe: warmup_epochs \(10\) is longer"),
        ("lr: 0.0005", "augment: {shift: -1}", r"mine.yaml:11: retrain.finetune.recipe.augment.shift: .* found -1"),
    ],
)
def test_a_mistake_in_a_later_recipe_names_its_line(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(OWN.replace(right, wrong))
    with pytest.raises(ConfigError, match=message):
        load_preset(tmp_path / "mine.yaml")


def test_an_override_that_does_not_fit_to_the_rest_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^override of recipe.warmup_epochs: recipe: warmup_epochs \(61\) is longer"):
        load_preset("digits", {"recipe.warmup_epochs": 61, "search.seed": 1})
    with pytest.raises(ConfigError, match=r"no preset has a key 'a\.a\."):
        load_preset("digits", {".".join("a" * 3000): 1})


def test_the_warm_up_gives_way_to_fewer_epochs() -> None:
    short = load_preset("digits", {"recipe.epochs": 3})
    assert (short.recipe.warmup_epochs, short.retrain_recipe.epochs, short.retrain_recipe.warmup_epochs) == (1, 80, 5)
    again = override(short, {"recipe.lr": 1e-3})
    assert (again.recipe, again.retrain_recipe.warmup_epochs) == (short.recipe.model_copy(update={"lr": 1e-3}), 5)
    assert load_preset("digits", {"retrain.recipe.epochs": 2}).retrain_recipe.warmup_epochs == 1
    assert load_preset("autoformer", {"recipe.epochs": 10}).recipe.warmup_epochs == 5  # 20 of 500 as shipped
    both = load_preset("adapt", {"recipe.epochs": 1, "recipe.lr": 1e-5}).recipe
    assert (both.warmup_epochs, both.min_lr) == (0, 1e-6)  # the rate fits, though the warm-up does not
    assert load_preset("digits", {"recipe.epochs": 6}).recipe.warmup_epochs == 5  # it fits
    with pytest.raises(ConfigError, match="is longer than the training"):
        load_preset("digits", {"recipe.epochs": 3, "recipe.warmup_epochs": 4})


def test_the_rates_at_both_ends_give_way_to_a_lower_learning_rate() -> None:
    low = load_preset("digits", {"recipe.lr": 1e-7})
    assert (low.recipe.warmup_lr, low.recipe.min_lr, low.retrain_recipe.min_lr) == (1e-7, 1e-7, 1e-5)
    with pytest.raises(ConfigError, match=r"min_lr \(1e-06\) is above the learning rate \(1e-07"):
        load_preset("digits", {"recipe.lr": 1e-7, "recipe.min_lr": 1e-6})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("recipe.augment.scale", [5, 1], "less than or equal to 1, found 5"),
        ("recipe.augment.scale", [0, 0], "greater than 0, found 0"),
        ("recipe.augment.scale", [0.5, 0.1], r"the least comes first: \[0.1, 0.5\]"),
        ("recipe.augment.ratio", [-1, 0], "greater than or equal to 0.01, found -1"),
        ("recipe.augment.repeats", 10**9, "less than or equal to 100"),
        ("recipe.warmup_lr", 1e300, "less than or equal to 10000"),
        ("recipe.warmup_lr", 1.0, "warmup_lr .1. is above the learning rate"),
        ("recipe.decay_milestones", [3, 1], "give ascending epochs"),
        ("search.generations", 0, "greater than or equal to 1"),
        ("data.seed", 2**63 - 1, "less than 4294967296"),
        ("retrain.seeds", list(range(2000)), "at most 1000 items"),
        ("recipe.augment.interpolation", "cubic", "'bilinear', 'bicubic' or 'random'"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_preset("digits", {key: value})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"recipe.augment.shift": 8}, "shift 8 moves images of 8 x 8 pixels out of sight"),
        ({"recipe.opt_args": {"eps": "small"}}, "recipe.opt 'adamw' {'eps': 'small'.*TypeError"),
        ({"recipe.opt_args": {"betas": [0.9]}}, "recipe.opt 'adamw' {'betas': .0.9..*IndexError"),
        ({"recipe.opt": "adahessian", "recipe.opt_args": {}}, "recipe.opt 'adahessian'"),
    ],
)
def test_what_no_step_can_be_taken_with_is_refused_before_training(overrides: dict[str, Any], message: str) -> None:
    preset = load_preset("digits", overrides)
    with pytest.raises(ConfigError, match=message):
        check_recipe(load_space("digits/vit"), preset.recipe)


def test_a_space_is_no_preset() -> None:
    with pytest.raises(ConfigError, match="this file is a space or an arch; a preset names one"):
        load_preset("digits/vit")


def test_retraining_changes_the_recipe() -> None:
    preset = load_preset("digits", {"retrain.recipe": {"epochs": 11, "augment": {"hflip": 0.5}}})
    assert preset.retrain_recipe.epochs == 11 and preset.retrain_recipe.augment.hflip == 0.5
    assert preset.retrain_recipe.batch_size == preset.recipe.batch_size or preset.retrain.recipe.get("batch_size")
    with pytest.raises(ConfigError, match=r"epoch: unknown key 'epoch' \(did you mean 'epochs'\?\)"):
        load_preset("digits", {"retrain.recipe": {"epoch": 11}})


@pytest.mark.parametrize("space", ["", "x" * 5000])
def test_a_space_name_that_no_file_can_have(tmp_path: Path, space: str) -> None:
    (tmp_path / "mine.yaml").write_text(
        WRONG.replace("digits/vit", repr(space)).replace("warm_epochs", "warmup_epochs")
    )
    with pytest.raises(ConfigError, match="no space"):
        space_of(load_preset(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(("seeds", "message"), [([-1], "greater than or equal to 0"), ([1, 1], "same seed twice")])
def test_seeds_of_retraining_are_checked(seeds: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=f"retrain.seeds.*{message}"):
        load_preset("digits", {"retrain.seeds": seeds})


def test_a_bound_is_not_a_boolean() -> None:
    with pytest.raises(ConfigError, match=r"search\.constraints: true and false are not numbers"):
        load_preset("digits", {"search.constraints.macs": [True, None]})


@pytest.mark.parametrize("key", ["recipe.seed", "retrain.seeds"])
def test_a_seed_fits_the_tables(key: str) -> None:
    with pytest.raises(ConfigError, match="less than"):
        load_preset("digits", {key: 2**63 if key == "recipe.seed" else [2**63]})


@pytest.mark.parametrize("value", ["[1", "2001-99-99", "!!bool x", "&a [*a]"])
def test_an_override_that_is_not_yaml_is_one_line(value: str) -> None:
    with pytest.raises(UserError, match=r"recipe\.epochs=") as raised:
        parse_overrides([f"recipe.epochs={value}"])
    assert "\n" not in str(raised.value)


def test_vit_resnas_preset_is_the_papers_procedure() -> None:
    """Section 4.1 and the released scripts: 120 epochs, N_a of 16 on 8 GPUs, warm-up of widths over a quarter."""
    preset = load_preset("vit_resnas")
    recipe, plan, search = preset.recipe, preset.plan, preset.search
    assert preset.space == "vit_resnas/tiny"
    assert (recipe.epochs, recipe.batch_size, recipe.opt, recipe.weight_decay) == (120, 1024, "adamw", 0.05)
    assert recipe.effective_lr == pytest.approx(1e-3)
    assert (recipe.min_lr, recipe.warmup_epochs, recipe.warmup_lr) == (1e-5, 5, 1e-6)
    assert (recipe.drop_path, recipe.smoothing, recipe.ema, recipe.clip_grad) == (0.2, 0.1, None, None)
    assert recipe.token_labels is not None and recipe.token_labels.mixing == "released" and not recipe.mixes
    assert plan.sampler.options["archs"] * 8 == 16 and plan.sampler.per_rank
    assert plan.open_space(space_of(preset), 30, 120) == space_of(preset)
    assert search.options["initial"] + search.generations * search.options["population"] == 3350  # type: ignore[operator]
    assert search.constraints["macs"] == (pytest.approx(0.975 * 1.7944e9), 1.7944e9)
    retrain = preset.retrain_recipe
    assert (retrain.epochs, retrain.ema, retrain.token_labels) == (300, 0.99996, recipe.token_labels)


def test_vit_resnas_small_and_medium_have_their_presets() -> None:
    """Section 4.3 and the released scripts; the paper's fine-tuning of Medium at 280, 336 and 392 pixels."""
    tiny, small, medium = (load_preset(f"vit_resnas/preset{name}") for name in ("", "_small", "_medium"))
    for preset, budget in ((small, 2.9e9), (medium, 4.6e9)):
        assert preset.space == "vit_resnas/small" and preset.search.constraints["macs"] == (0.975 * budget, budget)
        assert preset.recipe == tiny.recipe.model_copy(update={"drop_path": 0.3}) and preset.plan == tiny.plan
    tuning = medium.finetune_recipe_at(math.inf)
    assert (tuning.epochs, tuning.batch_size, tuning.weight_decay, tuning.drop_path) == (30, 512, 1e-8, 0.75)
    assert (tuning.effective_lr, tuning.scaled_lr(tuning.min_lr), tuning.warmup_epochs) == (5e-6, 5e-6, 5)
    assert tuning.ema == medium.retrain_recipe.ema and tuning.token_labels == medium.recipe.token_labels
    assert small.retrain.finetune is None and medium.retrain.finetune is not None
    check_later(medium, space_of(medium))


def test_s3_preset_is_the_papers_procedure() -> None:
    """Section 5 and the appendix: the sandwich without distillation, 300 epochs, and the evolution in one space."""
    preset = load_preset("s3")
    recipe, plan, search = preset.recipe, preset.plan, preset.search
    assert (preset.space, plan.sampler.name, plan.sampler.options) == ("s3/initial", "sandwich", {"random": 2})
    assert (recipe.epochs, recipe.batch_size, recipe.opt, recipe.weight_decay) == (300, 1024, "adamw", 0.05)
    assert (recipe.effective_lr, recipe.min_lr, recipe.warmup_epochs) == (pytest.approx(1e-3), 1e-5, 20)
    assert (recipe.drop_path, recipe.smoothing) == (0.2, 0.1)
    rates = space_of(preset).mutation_rates(search.options["mutation"])
    per_stage = [0.2, 0.2, *[0.4] * 12]  # width, depth; four blocks of window, heads and ratio
    assert rates.tolist() == per_stage * 4 and search.generations == 20 and search.options["crossover"] == "block"
    evolution, tuning = preset.space_evolution, preset.finetune_recipe_at(math.inf)
    assert (evolution.iterations, evolution.tau, evolution.warm_start) == (3, 0.4, False)
    steps = {axis.name: step_of(axis, evolution.steps) for axis in axes_of(space_of(preset))}
    first = {"width": 64, "depth": 1, "blocks.*.window": 7, "blocks.*.heads": 2, "blocks.*.mlp_ratio": 0.5}
    assert steps == {f"stages.{stage}.{leaf}": step for stage in range(4) for leaf, step in first.items()}
    assert preset.retrain.windows == "scaled"
    assert (preset.retrain.finetune.size, tuning.epochs, tuning.weight_decay) == ((384, 384), 10, 1e-8)  # type: ignore[union-attr]
    assert (tuning.effective_lr, tuning.scaled_lr(tuning.min_lr), tuning.warmup_epochs) == (1e-5, 1e-5, 0)
    for name in ("s3", "digits/preset_s3"):
        check_later(load_preset(name), space_of(load_preset(name)))


def test_the_plan_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    parts = parse_yaml(page.split("```yaml\n")[1].split("```")[0], "docs").data
    changed = override(load_preset("digits/preset_vit_resnas"), parts)
    assert changed.plan.sampler.options == {"archs": 4} and changed.plan.widening == 0.25


def test_a_reference_that_the_recipe_cannot_train_is_told_before_the_training() -> None:
    preset = load_preset("digits/preset_vit_resnas", {"reference": "digits/deit"})
    with pytest.raises(UserError, match=r"^reference digits/deit: space digits/vit has no token head"):
        check_later(preset, load_space("digits/vit_resnas"))
    check_later(load_preset("digits/preset_vit_resnas"), load_space("digits/vit_resnas"))


def test_nasvit_and_alphanet_presets_have_their_settings() -> None:
    released, paper, alphanet = map(load_preset, ("nasvit/preset_released", "nasvit/preset_paper", "alphanet"))
    recipe = released.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.opt, recipe.weight_decay) == (400, 1024, "adamw", 0)
    rates = [recipe.effective_lr, *map(recipe.scaled_lr, (recipe.warmup_lr, recipe.min_lr))]
    assert rates == pytest.approx([2 * 3e-4, 2 * 5e-7, 2 * 5e-6])
    assert (recipe.clip_grad, recipe.ema, recipe.mixup, recipe.cutmix) == (None, 0.99985, 0.01, 0.01)
    assert recipe.teachers is not None and len(recipe.teachers.models) == 2 and recipe.teachers.sharpen == 5
    begins = released.plan.gradients.options["start"] * recipe.epochs
    assert 100 < begins <= 101 and released.plan.gradients.options["clip_subnets"] == 1  # on from epoch 101, from 0
    assert (paper.recipe.epochs, paper.plan.gradients.options["unit"], paper.recipe.mixes) == (360, "model", False)
    assert alphanet.recipe.effective_lr == pytest.approx(0.8) and alphanet.recipe.clip_mode == "value"
    for preset in (released, paper, alphanet, load_preset("digits/preset_nasvit")):
        check_later(preset, space_of(preset))


def test_data_given_later_keep_the_preset_s_split_unless_it_named_data() -> None:
    imagenet = override(load_preset("nasvit/preset_paper"), {"data": {"name": "/imagenet"}})
    assert imagenet.data is not None and (imagenet.data.name, imagenet.data.search_per_class) == ("/imagenet", 5)
    other = override(imagenet, {"data": {"name": "/other"}})
    assert other.data is not None and other.data.search_per_class is None


RULES = [{"macs": 1.3e9, "recipe": {"cutmix": 0, "mixup": 0}}, {"macs": 5e8, "recipe": {"epochs": 7}}]


def test_small_networks_are_retrained_by_another_recipe() -> None:
    preset = load_preset("vitas/preset_v2", {"retrain.below": RULES, "retrain.recipe": {"cutmix": 1.0, "mixup": 0.8}})
    at = {macs: preset.retrain_recipe_at(macs) for macs in (1.3e9, 1.3e9 - 1, 5e8, 5e8 - 1)}
    mixing = [(recipe.cutmix, recipe.mixup, recipe.epochs) for recipe in at.values()]
    assert mixing == [(1.0, 0.8, 300), (0, 0, 300), (0, 0, 300), (0, 0, 7)]
    assert preset.retrain_recipe == at[1.3e9] and preset.retrain_recipes == [at[1.3e9], at[5e8], at[5e8 - 1]]


def test_a_rule_for_small_networks_is_checked_when_the_preset_is_read() -> None:
    with pytest.raises(ConfigError, match=r"retrain\.below\.1\.recipe\.cutmx: unknown key 'cutmx'"):
        load_preset("digits", {"retrain.below": [RULES[0], {"macs": 1e6, "recipe": {"cutmx": 0}}]})
    with pytest.raises(ConfigError, match=r"retrain\.below"):
        load_preset("digits", {"retrain.below": [{"macs": 0, "recipe": {"cutmix": 0}}]})


def test_a_key_that_was_added_later_is_written_only_where_it_is_used() -> None:
    """Otherwise a run that began before the key existed could not be resumed."""
    assert "below" not in load_preset("digits").model_dump()["retrain"]
    used = load_preset("digits", {"retrain.below": RULES}).model_dump()
    assert [rule["macs"] for rule in used["retrain"]["below"]] == [1.3e9, 5e8]


@pytest.mark.parametrize(
    "change", [{"search.name": "nsga2"}, {"search": {"name": "optuna", "options": {"sampler": "tpe"}}}]
)
def test_another_search_keeps_limits_and_budget_without_the_old_options(change: dict[str, Any]) -> None:
    budget = {"search.evaluations": 77, "search.options": {"parents": 5}}
    before = load_preset("digits", budget)
    after = override(before, change).search
    assert after.constraints == before.search.constraints != {} and after.evaluations == 77
    assert after.name != before.search.name and "parents" not in after.options
    assert override(before, {"search": {"name": "random", "generations": None}}).search.evaluations is None

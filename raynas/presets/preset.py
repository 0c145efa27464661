"""Presets: all settings of a run in one YAML file."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, field_validator, model_validator

from raynas.arguments import checked
from raynas.config import MOST_SEEDS, Config, Different, Seed, added_field, validate
from raynas.data.config import CalibrationConfig, DataConfig, Size, square
from raynas.documents import MAX_DEPTH, Document, Location, check_overrides, read_yaml
from raynas.errors import ConfigError
from raynas.presets.adapt import AdaptConfig
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.presets.tune import TuneConfig
from raynas.search.config import SearchConfig
from raynas.space.load import SPACES, find_beside, find_shipped
from raynas.text import is_text, shown
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe


class FinetuneConfig(Config):
    """Fine-tuning of the retrained winner on images of another size, usually larger ones.

    Attributes:
        size: (height, width) of the images, or one number for both.
        recipe: changes to the retraining's recipe, nested in the same way.
    """

    size: Size
    recipe: dict[str, Any] = Field(default_factory=dict)

    _square = field_validator("size", mode="before")(square)


class BelowConfig(Config):
    """Changes to the retraining's recipe for small networks (ViTAS v1 leaves Mixup and CutMix out below 1.3 GMACs).

    Attributes:
        macs: the changes are for networks of fewer multiply-accumulates, counted at the run's image size.
        recipe: changes to the recipe of `retrain`, nested in the same way.
    """

    macs: float = Field(gt=0, le=1e18)
    recipe: dict[str, Any] = Field(min_length=1)


class RetrainConfig(Config):
    """Training of a search's winner on its own.

    Attributes:
        recipe: changes to the preset's recipe, nested in the same way.
        below: further changes for networks with fewer multiply-accumulates; where several are for a network, they are
            made in this order.
        train_on: images to train on: `train`, or `train+search` to include those that subnets were scored on, since
            the search is over.
        seeds: seeds of the trainings, all different.
        start: `scratch`, or `inherited` for fine-tuning from the supernet's weights.
        finetune: fine-tuning of the result at another image size; None for none.
        windows: at another image size, windows (of family s3) are `kept`, as many tokens, or `scaled` with the images.
    """

    recipe: dict[str, Any] = Field(default_factory=dict)
    below: tuple[BelowConfig, ...] = added_field((), max_length=16)
    train_on: Literal["train", "train+search"] = "train+search"
    seeds: Annotated[tuple[Seed, ...], Different] = Field(default=(0,), min_length=1, max_length=MOST_SEEDS)
    start: Literal["scratch", "inherited"] = "scratch"
    finetune: FinetuneConfig | None = None
    windows: Literal["kept", "scaled"] = added_field("kept")


class Preset(Config):
    """All settings of a run: training, search and retraining.

    Attributes:
        space: a shipped space's name or a path (in a preset file, relative to that file); null if it follows from a
            model (`raynas adapt`).
        fix: dimensions of the space that are held at one of their choices: `{patch_size: 4}`.
        data: the dataset; None, or settings without a name, if it must be named when the preset is run.
        plan: the parts of a training step.
        recipe: the training of the supernet.
        calibration: calibration of subnets' batch norms, in families that have them.
        search: the search with its budget and constraints.
        retrain: the training of the winner.
        adapt: adapting of a trained model (`raynas adapt`).
        space_evolution: the search of the space itself (`raynas evolve-space`).
        tune: what is tuned, by what and how long (`raynas tune`).
        reference: an arch (shipped name or path) that reports compare with, scaled to the winner's MACs.
    """

    space: str | None
    fix: dict[str, Any] = added_field({})
    data: DataConfig | None = None
    plan: Plan = Plan()
    recipe: Recipe
    calibration: CalibrationConfig = CalibrationConfig()
    search: SearchConfig = SearchConfig()
    retrain: RetrainConfig = RetrainConfig()
    adapt: AdaptConfig | None = added_field(None)
    space_evolution: SpaceEvolutionConfig = SpaceEvolutionConfig()
    tune: TuneConfig | None = added_field(None)
    reference: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Preset:
        _ = self.retrain_recipes, self.model_recipe
        return self

    @property
    def model_recipe(self) -> Recipe:
        """The recipe of the fine-tuning of a model before it is adapted."""
        changes = {} if self.adapt is None else self.adapt.finetune.recipe
        return changed_recipe(self.recipe, {"teachers": None, **changes}, ("adapt", "finetune", "recipe"))

    @property
    def retrain_recipe(self) -> Recipe:
        """The recipe with the changes of `retrain.recipe`."""
        return self.retrain_recipe_at(math.inf)

    def retrain_recipe_at(self, macs: float) -> Recipe:
        """Return the retraining's recipe for a network of so many multiply-accumulates."""
        recipe = changed_recipe(self.recipe, self.retrain.recipe, ("retrain", "recipe"))
        for place, rule in enumerate(self.retrain.below):
            if macs < rule.macs:
                recipe = changed_recipe(recipe, rule.recipe, ("retrain", "below", place, "recipe"))
        return recipe

    def finetune_recipe_at(self, macs: float) -> Recipe:
        """Return the fine-tuning's recipe for a network of so many multiply-accumulates."""
        changes = {} if self.retrain.finetune is None else self.retrain.finetune.recipe
        return changed_recipe(self.retrain_recipe_at(macs), changes, ("retrain", "finetune", "recipe"))

    @property
    def retrain_recipes(self) -> list[Recipe]:
        """All recipes by which a network may be retrained, or fine-tuned at another image size."""
        sizes = [math.inf, *(math.nextafter(rule.macs, 0) for rule in self.retrain.below)]
        recipes = [self.retrain_recipe_at(macs) for macs in sizes]
        return recipes if self.retrain.finetune is None else recipes + [self.finetune_recipe_at(each) for each in sizes]


@checked()
def load_preset(name: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Preset:
    """Load a preset: a shipped name such as `digits/preset` (or `digits`), or a path.

    Args:
        overrides: values by dotted key, such as `{"recipe.epochs": 3}`.

    Raises:
        ConfigError: there is no such file, or it or an override is wrong; the message names file, line and key.
        UserError: overrides contradict each other.
    """
    check_overrides(overrides or {})
    path = _file(name)
    document = read_yaml(path)
    if isinstance(document.data, dict) and "family" in document.data:
        raise document.error(
            ("family",), "this file is a space or an arch; a preset names one (space: ...) and trains it"
        )
    preset = validate(Preset, document)
    beside = find_beside(path.parent, preset.space) if preset.space and "/" not in preset.space else None
    if beside is not None:
        preset = preset.model_copy(update={"space": str(beside)})
    return override(preset, overrides or {})


def _file(name: str | os.PathLike[str]) -> Path:
    return find_beside(SPACES, f"{name}/preset") or find_shipped(name, "preset")


def tuning_section(name: str | os.PathLike[str]) -> Document | None:
    """Return the section `tune` of a preset that can be loaded, as it stands in its file; None if there is none."""
    document = read_yaml(_file(name))
    return document.part(("tune",)) if isinstance(document.data.get("tune"), dict) else None


def override(preset: Preset, overrides: Mapping[str, Any]) -> Preset:
    """Return a preset with some values changed, validated again.

    Values that no longer fit a changed one return to their defaults unless they are changed too: the warm-up for fewer
    epochs, the first and last rates of a schedule for a lower learning rate.

    Args:
        overrides: values by dotted key; a mapping is merged, an empty one replaces the old value, and so do objectives.

    Raises:
        ConfigError: a key is unknown (the message names the nearest) or a value is wrong.
    """
    if not overrides:
        return preset
    data, changes = preset.model_dump(), dict[str, Any]()
    for key, value in overrides.items():
        for place in _objectives_in(value, tuple(key.split("."))):
            if isinstance(around := _inside(data, place), dict):
                around.pop("objectives", None)
        data, changes = with_value(data, key, value), with_value(changes, key, value)
    _give_way(data, changes)
    return validate(Preset, Document(data, "override", changed=[tuple(key.split(".")) for key in overrides]))


def with_value(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return plain values with one of them changed by its dotted key, which some preset must have; see `override`."""
    return _merged(values, _nested(key, value))


def _objectives_in(value: Any, place: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the places in a preset around objectives that a change gives as a whole, for a search by others."""
    *around, last = place
    if last == "objectives":
        yield around
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _objectives_in(inner, (*place, str(key)))


def _nested(key: str, value: Any) -> Any:
    """Return `{a: {b: value}}` for the key `a.b`."""
    parts = key.split(".")
    if len(parts) > MAX_DEPTH or not is_text(key):
        raise ConfigError(f"override: no preset has a key {shown(key)}")
    for part in reversed(parts):
        value = {part: value}
    return value


RECIPES = (("recipe",), ("retrain", "recipe"), ("retrain", "finetune", "recipe"))
"""The places of recipes in a preset; each one holds changes to the one before."""

BUDGETS = ("evaluations", "generations")

FOLLOWERS = {"epochs": {"warmup_epochs"}, "lr": {"warmup_lr", "min_lr"}}
"""Values of a recipe that may no longer fit another one that is changed, by that one's name."""


def changed_recipe(recipe: Recipe, changes: Mapping[str, Any], where: Location) -> Recipe:
    """Return a recipe with some values changed; others that no longer fit return to their defaults, see `override`.

    Args:
        where: the place of the changes in a preset, for messages.

    Raises:
        ConfigError: a value is wrong.
    """
    merged = _merged(recipe.model_dump(), changes)
    for name in _giving_way(merged, changes.keys()):
        del merged[name]  # the default replaces it, and may be adapted in turn
    return validate(Recipe, Document(merged, inside=where))


def _giving_way(recipe: Mapping[str, Any], changed: Iterable[str]) -> set[str]:
    """Return the names of unchanged values that no longer fit the changed ones."""
    groups = [(FOLLOWERS[leader] - {*changed}) & recipe.keys() for leader in changed if leader in FOLLOWERS]
    following = {name for group in groups for name in group}
    if not following or _fits(recipe):
        return set()
    # Only those whose leader it takes: a warm-up that is too long leaves the rates as they are.
    return {name for group in groups if not _fits(recipe, following - group) for name in group}


def _fits(recipe: Mapping[str, Any], without: Iterable[str] = ()) -> bool:
    """Return True if the values of a recipe fit each other, with the defaults in place of some."""
    try:
        Recipe.model_validate({name: value for name, value in recipe.items() if name not in without})
    except pydantic.ValidationError:
        return False
    return True


def _give_way(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop values that no longer fit the changes from the recipes of a preset.

    A later recipe with its own value in place of the changed one keeps the values that fitted it.
    """
    whole: dict[str, Any] = {}
    for place, where in enumerate(RECIPES):
        own, changed = _inside(data, where), _inside(changes, where)
        if not isinstance(own, dict):
            return
        whole = _merged(whole, own)
        for name in _giving_way(whole, changed.keys() if isinstance(changed, dict) else ()):
            del whole[name]
            before = own.pop(name, None)
            for later in (_inside(data, later) for later in RECIPES[place + 1 :]):
                leader = next(leader for leader, names in FOLLOWERS.items() if name in names)
                if before is not None and isinstance(later, dict) and later.keys() & {name, leader}:
                    later.setdefault(name, before)
                    break


def _inside(data: Any, where: Sequence[str]) -> Any:
    """Return the value at a place in nested mappings; None if there is none."""
    for key in where:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in changes.items():
        inner = result.get(key)
        # Options belong to a part's name: with another name, the old ones are dropped. A search has them in a mapping
        # of their own, and keeps its limits; its budget, too, unless another one is given. A search of the user's own
        # keeps the number of archs alone, which it need not know of: nothing else knows its generations.
        renamed = isinstance(value, Mapping) and "name" in value and isinstance(inner, dict) and inner.get("name")
        if renamed and isinstance(inner, dict) and isinstance(inner.get("options"), dict):
            own = ("generations",) if ":" in str(value["name"]) else ()
            dropped = BUDGETS if value.keys() & set(BUDGETS) else own
            inner, renamed = {key: of for key, of in inner.items() if key not in dropped} | {"options": {}}, None
        if isinstance(value, Mapping) and value and isinstance(inner, dict) and not renamed:
            result[key] = _merged(inner, value)
        else:
            result[key] = copy.deepcopy(value)
    return result

"""A preset: everything that a run needs to know, in one YAML file."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import Field, field_validator, model_validator

from raynas.config import MAX_DEPTH, MOST_SEEDS, Config, Document, Seed, parse_yaml, read_yaml, validate
from raynas.data.config import CalibrationConfig, DataConfig, Size, square
from raynas.errors import ConfigError, UserError
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.search.config import SearchConfig
from raynas.space.load import SPACES, find_beside, find_shipped
from raynas.text import is_text, shown
from raynas.training.plan import Plan
from raynas.training.recipe import Recipe

if TYPE_CHECKING:
    pass


class FinetuneConfig(Config):
    """How the retrained winner is then fine-tuned on images of another size, mostly larger ones.

    Attributes:
        size: (height, width) of the images, or one number for both.
        recipe: what differs from the retraining's recipe, nested as it is.
    """

    size: Size
    recipe: dict[str, Any] = Field(default_factory=dict)

    _square = field_validator("size", mode="before")(square)


class RetrainConfig(Config):
    """How the winner of a search is trained on its own.

    Attributes:
        recipe: what differs from the preset's recipe, nested as it is.
        train_on: images that it is trained on: `train`, or `train+search`, those that subnets were scored on as
            well, since the search is over.
        seeds: one training each, all different.
        start: `scratch`, or `inherited` for fine-tuning from the supernet's weights.
        finetune: how what has been trained is fine-tuned at another image size; None for not at all.
    """

    recipe: dict[str, Any] = Field(default_factory=dict)
    train_on: Literal["train", "train+search"] = "train+search"
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1, max_length=MOST_SEEDS)
    start: Literal["scratch", "inherited"] = "scratch"
    finetune: FinetuneConfig | None = None

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("the same seed twice would be the same training twice")
        return seeds


class Preset(Config):
    """What is trained, searched and retrained, and how.

    Attributes:
        space: a shipped space's name or a path (in a preset file, relative to that file).
        data: the dataset; None where whoever runs the preset must name it.
        plan: what one training step does.
        recipe: how the supernet is trained.
        calibration: of subnets' batch norms, in families that have them.
        search: which search, and its budget and constraints.
        retrain: how the winner is trained.
        space_evolution: how the space itself is searched (`raynas evolve-space`).
        reference: an arch (shipped name or path) that reports compare with, scaled to the winner's MACs.
    """

    space: str
    data: DataConfig | None = None
    plan: Plan = Plan()
    recipe: Recipe
    calibration: CalibrationConfig = CalibrationConfig()
    search: SearchConfig = SearchConfig()
    retrain: RetrainConfig = RetrainConfig()
    space_evolution: SpaceEvolutionConfig = SpaceEvolutionConfig()
    reference: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Preset:
        _ = self.retrain_recipe, self.finetune_recipe
        return self

    @property
    def retrain_recipe(self) -> Recipe:
        """The recipe with what `retrain.recipe` changes."""
        return _changed(self.recipe, self.retrain.recipe, ("retrain", "recipe"))

    @property
    def finetune_recipe(self) -> Recipe:
        """The retraining's recipe with what `retrain.finetune.recipe` changes."""
        changes = {} if self.retrain.finetune is None else self.retrain.finetune.recipe
        return _changed(self.retrain_recipe, changes, ("retrain", "finetune", "recipe"))


def load_preset(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Preset:
    """Load a preset: a shipped name such as `digits/preset` (or `digits`), or a path.

    Args:
        overrides: values by dotted key, such as `{"recipe.epochs": 3}`.

    Raises:
        ConfigError: there is no such file, or it or an override is wrong; the message names file, line and key.
    """
    path = find_beside(SPACES, f"{name}/preset") or find_shipped(name, "preset")
    document = read_yaml(path)
    if isinstance(document.data, dict) and "family" in document.data:
        raise document.error(
            ("family",), "this file is a space or an arch; a preset names one (space: ...) and trains it"
        )
    preset = validate(Preset, document)
    beside = find_beside(path.parent, preset.space) if "/" not in preset.space else None
    if beside is not None:
        preset = preset.model_copy(update={"space": str(beside)})
    return override(preset, overrides or {})


def override(preset: Preset, overrides: Mapping[str, Any]) -> Preset:
    """A preset with some values changed, validated again.

    What follows from a changed value gives way, unless it is changed as well: the warm-up to fewer epochs, the rates
    that a schedule begins and ends with to a lower learning rate.

    Args:
        overrides: by dotted key; a mapping as value is merged, an empty one takes the place of what was there.

    Raises:
        ConfigError: a key is unknown (the message names the nearest) or a value is wrong.
    """
    if not overrides:
        return preset
    data, changes = preset.model_dump(), dict[str, Any]()
    for key, value in overrides.items():
        data, changes = _merged(data, _nested(key, value)), _merged(changes, _nested(key, value))
    _give_way(data, changes)
    return validate(Preset, Document(data, "override", changed=[tuple(key.split(".")) for key in overrides]))


def parse_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """`["recipe.epochs=3", ...]` as a command line gives them; values are read as YAML.

    Raises:
        UserError: an assignment has no `=`, its key is there twice, or its value is not YAML (a ConfigError).
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"{assignment!r} is not KEY=VALUE, such as recipe.epochs=3")
        if key.strip() in found:
            raise UserError(f"{key.strip()} is given twice: give it once")
        found[key.strip()] = parse_yaml(value, shown(assignment)).data
    return found


def _nested(key: str, value: Any) -> Any:
    """`a.b` and a value as `{a: {b: value}}`."""
    parts = key.split(".")
    if len(parts) > MAX_DEPTH or not is_text(key):
        raise ConfigError(f"override: no preset has a key {shown(key)}")
    for part in reversed(parts):
        value = {part: value}
    return value


RECIPES = (("recipe",), ("retrain", "recipe"), ("retrain", "finetune", "recipe"))
"""Where a preset has recipes; each changes the one before."""

FOLLOWERS = {"epochs": {"warmup_epochs"}, "lr": {"warmup_lr", "min_lr"}}
"""Values of a recipe that give way to another one that is changed, unless they are changed with it."""


def _changed(recipe: Recipe, changes: Mapping[str, Any], where: tuple[str, ...]) -> Recipe:
    """A recipe with some values changed."""
    merged = _merged(recipe.model_dump(), changes)
    for name in _giving_way(merged, changes.keys()):
        del merged[name]  # the default takes its place, and gives way in its turn
    return validate(Recipe, Document(merged, inside=where))


def _giving_way(recipe: Mapping[str, Any], changed: Iterable[str]) -> set[str]:
    """The values of a recipe that no longer fit to what was changed, and were not changed themselves."""
    following = {name for leader in changed for name in FOLLOWERS.get(leader, ())} - set(changed)
    if not following & recipe.keys():
        return set()
    try:
        Recipe.model_validate(recipe)
    except pydantic.ValidationError:
        return following & recipe.keys()
    return set()


def _give_way(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop from the recipes of a preset what gives way to changes of them.

    A later recipe that has a value of its own in place of the changed one keeps what followed it.
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
    """What lies at a place in nested mappings; None where nothing does."""
    for key in where:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in changes.items():
        inner = result.get(key)
        # A part's options go with its name: another name starts with none of the old ones.
        renamed = isinstance(value, Mapping) and "name" in value and isinstance(inner, dict) and "name" in inner
        if isinstance(value, Mapping) and value and isinstance(inner, dict) and not renamed:
            result[key] = _merged(inner, value)
        else:
            result[key] = copy.deepcopy(value)
    return result

"""Ablations as YAML: a preset, rows of changes to it, seeds, and what is measured."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from raynas.config import MOST_SEEDS, Config, Different, Seed, validate
from raynas.documents import Document, Location, read_yaml
from raynas.errors import ConfigError, UserError, together
from raynas.presets.preset import Preset, load_preset, override
from raynas.space.load import find_beside, find_shipped
from raynas.text import nearest, shown

Changes = dict[str, Any]
"""Values of a preset by dotted key."""

SEEDS = ("recipe.seed", "search.seed", "retrain.seeds")
"""Keys that every row gets from the ablation's seeds."""

MOST_TOGGLES = 8
"""The most toggles of a grid, which has a row for each of their combinations."""


class AblationConfig(Config):
    """An ablation: rows of a table, each a preset with some changes.

    Attributes:
        title: heading of the table.
        preset: the preset that the rows change: a shipped name, or a path relative to this file.
        set: changes to it that all rows have in common.
        toggles: named changes, each a column of the table.
        rows: the rows by name: a list of toggles, or changes of their own.
        generate: makes the rows from all toggles instead: `leave_one_out` (`all`, and `no X` for each), `add_one_in`
            (`none`, and `X` for each), `cumulative` (`none`, then one more in each), `grid` (every combination).
        baseline: the row that the others are compared with; None for the first.
        seeds: every row is carried out with each of them: as seed of training, search and retraining.
        measure: names of what is measured (see `raynas.outer.measures`).
        truth: for `tau`, a Parquet table of networks trained on their own; a path relative to this file.
        published: a paper's figures by row and measure, in the table's units.
        source: where they are from.
    """

    title: str = ""
    preset: str
    set: Changes = Field(default_factory=dict)
    toggles: dict[str, Changes] = Field(default_factory=dict)
    rows: dict[str, tuple[str, ...] | Changes] = Field(default_factory=dict)
    generate: Literal["leave_one_out", "add_one_in", "cumulative", "grid"] | None = None
    baseline: str | None = None
    seeds: Annotated[tuple[Seed, ...], Different] = Field((0, 1, 2), min_length=1, max_length=MOST_SEEDS)
    measure: tuple[str, ...] = Field(("probes", "searched"), min_length=1)
    truth: str | None = None
    published: dict[str, dict[str, float]] = Field(default_factory=dict)
    source: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> AblationConfig:
        if self.rows and self.generate:
            raise ValueError("give rows, or generate, which makes them")
        if self.generate and not self.toggles:
            raise ValueError(f"toggles: generate: {self.generate} makes rows of toggles: give some")
        if self.generate == "grid" and len(self.toggles) > MOST_TOGGLES:
            raise ValueError(f"toggles: a grid of more than {MOST_TOGGLES} has too many rows: give rows")
        if not self.rows and not self.generate:
            raise ValueError("give rows, or toggles and generate")
        if twice := next((name for name in self.measure if self.measure.count(name) > 1), None):
            raise ValueError(f"measure: {twice} is there twice")
        return self

    def toggled(self) -> dict[str, tuple[str, ...] | Changes]:
        """Return the rows, generated ones too."""
        names = list(self.toggles)
        if self.generate == "leave_one_out":
            left_out = {f"no {name}": tuple(other for other in names if other != name) for name in names}
            return {"all": tuple(names), **left_out}
        if self.generate == "add_one_in":
            return {"none": (), **{name: (name,) for name in names}}
        if self.generate == "cumulative":
            return {"none": (), **{f"+ {name}": tuple(names[: place + 1]) for place, name in enumerate(names)}}
        if self.generate == "grid":
            subsets = itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1))
            return {" + ".join(subset) or "none": subset for subset in subsets}
        return dict(self.rows)


@dataclass(frozen=True)
class AblationRow:
    """One row of an ablation.

    Attributes:
        toggles: the toggles that it has.
        changes: all of its changes.
        preset: the preset with them.
    """

    name: str
    toggles: tuple[str, ...]
    changes: Mapping[str, Any]
    preset: Preset


@dataclass(frozen=True)
class Ablation:
    """An ablation that has been read.

    Attributes:
        config: its settings; `truth` is a path as from here.
        preset: the preset with the changes that all rows have in common.
        document: the file, for messages.
    """

    config: AblationConfig
    preset: Preset
    document: Document = field(repr=False)

    @property
    def baseline(self) -> str:
        """Name of the row that the others are compared with."""
        return self.config.baseline or next(iter(self.config.toggled()))

    def rows(self, preset: Preset | None = None) -> list[AblationRow]:
        """Return the rows.

        Args:
            preset: a preset to change in place of the ablation's.

        Raises:
            ConfigError: the preset has no such key (the nearest is named), a value is wrong, or a row has a toggle that
                does not exist, or two that change the same key.
        """
        config, base, found = self.config, preset or self.preset, []
        for name, toggles in config.toggled().items():
            place: Location = ("rows", name)
            parts: dict[Location, Changes] = (
                {place: dict(toggles)}
                if isinstance(toggles, Mapping)
                else {("toggles", each): self._toggle(each, place) for each in toggles}
            )
            changed: dict[str, Location] = {}
            for at, changes in parts.items():
                for key in changes:
                    if key in changed:
                        other = changed[key][-1]
                        raise self.document.error(place, f"{other!r} and {at[-1]!r} both change {key}: give one")
                    changed[key] = at
            changes = {key: value for each in parts.values() for key, value in each.items()}
            changed_preset = self._override(base, changes, changed)
            marks = () if isinstance(toggles, Mapping) else toggles
            found.append(AblationRow(name, marks, changes, changed_preset))
        return found

    def _toggle(self, name: str, place: Location) -> Changes:
        if name not in self.config.toggles:
            raise self.document.error(place, f"no toggle {shown(name)}{nearest(name, list(self.config.toggles))}")
        return self.config.toggles[name]

    def _override(self, preset: Preset, changes: Mapping[str, Any], places: Mapping[str, Location]) -> Preset:
        """Return a changed preset; mistakes are named by their place in the file."""
        if seeded := next((key for key in changes if key in SEEDS), None):
            told = "every row is carried out with each of the ablation's seeds: leave it out, and give seeds"
            raise self.document.error((*places[seeded], seeded), told)
        try:
            return override(preset, changes)
        except UserError as error:
            found = []
            for key, value in changes.items():  # which of them it was
                try:
                    override(preset, {key: value})
                except UserError as single:
                    found += [self.document.error((*places[key], key), _told(line)) for line in single.lines]
            at = next(iter(places.values()), ())
            raise together(found or [self.document.error(at, _told(line)) for line in error.lines]) from error


def load_ablation(ablation: str | os.PathLike[str] | Mapping[str, Any]) -> Ablation:
    """Read an ablation: a shipped name such as `digits/ablation_vitas_v2_recipe`, a path, or its values.

    Raises:
        ConfigError: there is no such file, or something in it is wrong; the message names file, line and nearest key.
    """
    if isinstance(ablation, Mapping):
        path, document = None, Document(dict(ablation), "ablation")
    else:
        path = find_shipped(ablation, "ablation")
        document = read_yaml(path)
        if isinstance(document.data, dict) and ("family" in document.data or "recipe" in document.data):
            raise document.error((), "this file is a space or a preset; an ablation names a preset and changes it")
    config = validate(AblationConfig, document)
    beside = {} if path is None else {"preset": config.preset, "truth": config.truth}
    found = {key: find_beside(path.parent, name) for key, name in beside.items() if path is not None and name}
    config = config.model_copy(update={key: str(file) for key, file in found.items() if file is not None})
    try:
        preset = load_preset(config.preset)
    except ConfigError as error:
        raise error if str(error).startswith(config.preset) else document.error(("preset",), str(error)) from error
    read = Ablation(config, preset, document)
    if config.set:
        read = Ablation(config, read._override(preset, config.set, dict.fromkeys(config.set, ("set",))), document)
    _check_names(read)
    return read


def _check_names(ablation: Ablation) -> None:
    """Refuse names of rows that do not exist."""
    config, document = ablation.config, ablation.document
    rows = {row.name: row for row in ablation.rows()}
    if config.baseline is not None and config.baseline not in rows:
        raise document.error(("baseline",), f"no row {shown(config.baseline)}{nearest(config.baseline, list(rows))}")
    for name in config.published:
        if name not in rows:
            raise document.error(("published", name), f"no row {shown(name)}{nearest(name, list(rows))}")


def _told(line: str) -> str:
    """Return a mistake in a preset without the words about where it was overridden."""
    return line.partition(": ")[2] if line.startswith("override") else line

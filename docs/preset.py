"""Write docs/preset.md: every key of a preset, from the models and docstrings that declare them.

python docs/preset.py > docs/preset.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as bounds
import pydantic
import yaml

from raynas.presets.preset import Preset
from raynas.search.config import OPTIONS, SEARCHES
from raynas.training.attentive import Attentive
from raynas.training.draws import draw
from raynas.training.objectives import OBJECTIVES
from raynas.training.plan import POLICIES, Part, SamplerPart
from raynas.training.samplers import SAMPLERS

WORDS = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Any: "anything", type(None): ""}
SIGNS = {bounds.Ge: "at least", bounds.Gt: "above", bounds.Le: "at most", bounds.Lt: "below"}
YAML = {"None": "`null`", "True": "`true`", "False": "`false`"}
MODELS_IN_PARTS = {"attentive": Attentive}

HEAD = """\
<!-- Written by docs/preset.py: change the docstrings that it reads. -->
# The keys of a preset

This page lists every key of a preset, with its values, its default and its meaning.

A preset is one YAML file with all settings of a run. A key that is left out has its default; `null` means no value. On
the command line `--set` changes any key, for example `--set recipe.epochs=30`. A mapping is merged with the old one; an
empty mapping (`{}`) replaces it, and so do objectives (`--set 'search.objectives={top5: max}'`). With another `name`
the old options of a part are dropped; a search keeps its limits and, unless another one is given, its budget.

If a changed value no longer fits another one, the other returns to its default, unless it is changed as well: the
warm-up if there are fewer epochs, and the first and last rates of a schedule if the learning rate is lower.
"""


def page() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for where, model in models(Preset, ""):
        lines += [f"\n## `{where}`\n" if where else "", f"{summary(model)}\n", *table(model)]
    for heading, parts, rest in (
        ("plan.sampler", SAMPLERS, (draw, Attentive)),
        ("plan.objective", OBJECTIVES, ()),
        ("plan.gradients", POLICIES, ()),
    ):
        lines.append(f"\n## Options of `{heading}`\n")
        lines.append("Options stand beside the name: `{name: ..., option: ...}`. Your own part: `module:object`.\n")
        if parts is SAMPLERS:
            per_rank = documented(SamplerPart)["per_rank"]
            lines += [f"Every sampler, also one of your own, takes `per_rank`: {per_rank}\n"]
        for name, part in parts.items():
            lines += options(name, part, [option for option in parameters(part) if parameters(part)[option][0]], rest)
    lines.append("\n## `plan.sampler.attentive`\n")
    lines += [f"{summary(Attentive)}\n", *table(Attentive)]
    lines.append("\n## `search.options`\n")
    for name, part in SEARCHES.items():
        lines += options(name, part, OPTIONS[name], (part.__init__,))
    return "\n".join(lines) + "\n"


def models(model: type[pydantic.BaseModel], where: str) -> Iterator[tuple[str, type[pydantic.BaseModel]]]:
    """Yield a model and all models inside it, each with its dotted key."""
    yield where, model
    for name, field in model.model_fields.items():
        for inner in inside(field.annotation):
            if not issubclass(inner, Part):
                several = "[]" if get_origin(field.annotation) is tuple else ""
                yield from models(inner, f"{where}.{name}{several}".lstrip("."))


def inside(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Return the models that an annotation names."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, pydantic.BaseModel) else []
    return [model for part in get_args(annotation) for model in inside(part)]


def table(model: type[pydantic.BaseModel]) -> list[str]:
    """Return the table of a model, a row for each key."""
    said = {name: text for kind in reversed(model.__mro__) for name, text in documented(kind).items()}
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        value = kind_of(field.annotation, field.metadata)
        default = "(needed)" if field.is_required() else shown(field.get_default(call_default_factory=True))
        if name not in said:
            raise ValueError(f"{model.__name__}.{name} is documented nowhere")
        rows.append(f"| `{name}` | {value} | {default} | {said[name]} |")
    return rows


def options(name: str, part: Any, names: Any, more: tuple[Any, ...]) -> list[str]:
    """Return the table of the options of a part, which is a function or a class."""
    if not names:
        return [f"`{name}` has no options.\n"]
    said = {option: text for source in (*more, part) for option, text in documented(source).items()}
    rows = [f"`{name}`:\n", "| option | default | meaning |", "|---|---|---|"]
    for option in names:
        _, default = parameters(part)[option]
        needed = default is inspect.Parameter.empty
        meaning = "see `plan.sampler.attentive`" if option in MODELS_IN_PARTS else said.get(option)
        if meaning is None:
            raise ValueError(f"option {option} of {name} is documented nowhere")
        rows.append(f"| `{option}` | {'(needed)' if needed else shown(default)} | {meaning} |")
    return [*rows, ""]


def parameters(part: Any) -> dict[str, tuple[bool, Any]]:
    """Return the parameters of a function or class: True for a keyword-only one, and its default."""
    found = inspect.signature(part).parameters
    return {name: (this.kind is this.KEYWORD_ONLY, this.default) for name, this in found.items()}


def documented(source: Any) -> dict[str, str]:
    """Return the entries of a docstring's `Attributes:` or `Args:` by name, as one line each."""
    text = inspect.cleandoc(source.__doc__ or "")
    section = re.search(r"^(?:Attributes|Args):\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    found: dict[str, str] = {}
    for entry in re.split(r"^(?=\S)", inspect.cleandoc(section[1]), flags=re.MULTILINE) if section else ():
        names, colon, meaning = entry.partition(":")
        if colon:
            words = re.sub(r"\b(None|True|False)\b", lambda this: YAML[this[0]], " ".join(meaning.split()))
            words = words.replace("|", "\\|")
            found |= {name.strip(): words[:1].upper() + words[1:] for name in names.split(",")}
    return found


def summary(model: type[pydantic.BaseModel]) -> str:
    """Return the first paragraph of a model's docstring."""
    first = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]
    return " ".join(first.split()).removesuffix(", and")


def kind_of(annotation: Any, metadata: Any = ()) -> str:
    """Return a type and its bounds in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(inner[0], [*annotation.__metadata__, *metadata])
    if origin is Literal:
        words = ", ".join(f"`{choice}`" for choice in inner)
    elif origin is list or (origin is tuple and inner[-1] is Ellipsis):
        words = f"list of: {kind_of(inner[0])}"
    elif origin is tuple:
        words = f"[{', '.join(kind_of(part) for part in inner)}]"
    elif origin in (dict,):
        words = f"mapping to: {kind_of(inner[1])}" if inner[1] is not Any else "mapping"
    elif inner:
        words = " or ".join(kind_of(part) if part is not type(None) else "`null`" for part in inner)
    elif inside(annotation):
        words = "a name, or a mapping with `name`" if issubclass(annotation, Part) else "mapping, see below"
    else:
        words = WORDS[annotation]
    flat = [bound for one in metadata for bound in getattr(one, "metadata", None) or [one]]
    limits = [limit for bound in flat if (limit := bound_in_words(bound))]
    return ", ".join([words, *limits])


def bound_in_words(bound: Any) -> str:
    """Return a bound of a field in words; an empty string for other metadata."""
    for kind, sign in SIGNS.items():
        if isinstance(bound, kind):
            return f"{sign} {number(getattr(bound, kind.__name__.lower()))}"
    if isinstance(bound, bounds.MinLen):
        return f"at least {bound.min_length} of them" if bound.min_length > 1 else "not empty"
    if isinstance(bound, bounds.MaxLen):
        return f"at most {bound.max_length:,} of them"
    return ""


def number(value: float) -> str:
    """Return a number with separators, or as a power."""
    power = {2**63: "2^63", 2**32: "2^32"}
    return power.get(value) or (f"{value:,}" if isinstance(value, int) else f"{value:g}")


def shown(value: Any) -> str:
    """Return a default as YAML."""
    if isinstance(value, Part):
        return f"`{value.name}`"
    if isinstance(value, pydantic.BaseModel):
        return "as below"
    text = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True, width=1000)
    return f"`{text.removesuffix('...').strip().removesuffix('...').strip()}`"


if __name__ == "__main__":
    print(page(), end="")

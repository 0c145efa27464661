"""Check of what callers of the public functions give, by the types in the functions' signatures."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from raynas.errors import UserError
from raynas.locations import refuse_credentials
from raynas.text import shown

P = ParamSpec("P")
T = TypeVar("T")

_EXACT = ConfigDict(arbitrary_types_allowed=True, strict=True)


def checked(**places: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: its function refuses arguments of other types than its signature says, in one line.

    Arguments are passed on as they are, but numpy's numbers as Python's, and tuples and ranges as lists. The function's
    module postpones its annotations; parameters without one, or with a type variable, are not checked.

    Args:
        places: modules of the names that the function's module imports for type checkers alone.

    Raises:
        UserError: by the function, an argument is of another type, or a location with credentials.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        names = _Names(function.__globals__, places)

        @functools.cache
        def adapter(annotation: str) -> TypeAdapter[Any]:
            return TypeAdapter(eval(annotation, names.module, names), config=_EXACT)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                if isinstance(value, str | os.PathLike):  # which messages and files may repeat
                    refuse_credentials(os.fsdecode(value), name)
                annotation = signature.parameters[name].annotation
                if annotation is inspect.Parameter.empty or isinstance(names.module.get(annotation), TypeVar):
                    continue
                try:
                    bound.arguments[name] = _plain(value)
                    adapter(annotation).validate_python(bound.arguments[name])
                except (ValidationError, RecursionError):
                    said = f"{name} must be {names.spelt(annotation)}, not {shown(value)}"
                    if isinstance(value, str) and annotation.startswith("Sequence["):
                        said += f": give [{shown(value)}]"
                    raise UserError(f"{function.__qualname__.removesuffix('.__init__')}: {said}") from None
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def check_generator(rng: object) -> None:
    """Check that a random stream is one: a seed in its place would give the same draws again at every call.

    Raises:
        UserError: it is not.
    """
    if not isinstance(rng, np.random.Generator):
        raise UserError(f"rng must be a generator, such as numpy.random.default_rng(0), not {shown(rng)}")


class _Names(dict[str, Any]):
    """Types by the names in a module's annotations; those of other modules are not imported, which may take seconds."""

    def __init__(self, module: dict[str, Any], places: Mapping[str, str]):
        super().__init__()
        self.module, self.places = module, places

    def __missing__(self, name: str) -> Any:
        if name in self.places:
            return Annotated[object, AfterValidator(functools.partial(_of_module, self.places[name], name))]
        if isinstance(value := self.module.get(name), str):
            return eval(value, self.module, self)
        if is_dataclass(value) or (isinstance(value, type) and issubclass(value, BaseModel)):
            # pydantic would look into its fields, and take a mapping for it
            return Annotated[object, AfterValidator(functools.partial(_of_class, value))]
        raise KeyError(name)  # eval goes on in the module

    def spelt(self, annotation: str) -> str:
        """Return an annotation in words: aliases written out, bounded types by their descriptions."""
        return re.sub(r"\w+", lambda word: self._spelt(word[0]), annotation).replace(" | ", " or ")

    def _spelt(self, name: str) -> str:
        value = self.module.get(name)
        if get_origin(value) is Literal:
            return " or ".join(map(repr, get_args(value)))
        described = (getattr(each, "description", None) for each in getattr(value, "__metadata__", ()))
        return value if isinstance(value, str) else next(filter(None, described), name)


def _of_class(kind: Any, value: object) -> object:
    if not isinstance(value, kind):
        raise ValueError
    return value


def _of_module(module: str, name: str, value: object) -> object:
    if module not in sys.modules:  # then nothing is of its classes
        raise ValueError
    return _of_class(getattr(sys.modules[module], name), value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if type(value) in (list, tuple, range):
        return [_plain(item) for item in value]
    return value

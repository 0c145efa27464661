"""User code named as `module:object`: imported, called with its options, and its errors told in one line."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from raynas.errors import ConfigError, UserError, reason
from raynas.text import nearest, one_line, shown


def load_object(reference: str, known: Mapping[str, Any], what: str) -> Any:
    """Return a part by name: one of ours, or the user's own as `module:object`.

    The module is looked for on the Python path, and in the current directory last.

    Args:
        what: the kind of part, for messages.

    Raises:
        ConfigError: the name is neither, or the module or object cannot be imported.
    """
    if reference in known:
        return known[reference]
    module, colon, name = reference.partition(":")
    if not colon:
        hint = nearest(reference, sorted(known))
        raise ConfigError(f"unknown {what} {shown(reference)}{hint}; your own: 'module:object'")
    here = os.getcwd()
    if here not in sys.path:  # Python adds it for scripts and `-m`, not for an installed command such as ours
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return getattr(importlib.import_module(module), name)
    # The module is the user's: all its errors are theirs to mend and are chained. It may end with sys.exit.
    except (Exception, SystemExit) as error:
        told = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"{what} {shown(reference)} cannot be imported: {told}") from error


def bind_part(
    name: str,
    options: Mapping[str, Any],
    known: Mapping[str, Callable[..., Any]],
    what: str,
    given: int,
    also: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a function or class by name with its options bound, after checking that it takes them.

    Args:
        name: the name of one of ours, or the user's own as `module:object`.
        what: the kind of part, for messages.
        given: number of arguments that it will be called with by position.
        also: options that the caller reads itself, named in hints.

    Raises:
        ConfigError: it cannot be loaded or called so, has no such option, or needs one that is missing.
    """
    function, what = load_object(name, known, what), f"{what} {name!r}"
    if not callable(function):
        raise ConfigError(f"{what} is not callable: it is {kind(function)}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} is a builtin that says nothing of its arguments: give a function or class"
        ) from error
    kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < given and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ConfigError(f"{what} takes {len(positional)} arguments by position, and is called with {given}")
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY or p in positional[given:]]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for option in options:
            if option not in (names := [parameter.name for parameter in own]):
                hint = nearest(option, [*names, *also]) if names or also else " (it has none)"
                raise ConfigError(f"{what} has no option {option!r}{hint}")
    for parameter in own:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise ConfigError(f"{what} needs the option {parameter.name!r}")
    return partial(function, **options)


def takes_option(function: Callable[..., Any], option: str) -> bool:
    """Return True if a function has an argument of that name, or takes any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return option in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turn any error of the user's code inside the block into one line that says what failed and where.

    Args:
        what: the object and how it is used, such as `search my:Search: ask(50)`.

    Raises:
        ConfigError: the code raised an error, or called `sys.exit`. A `UserError`, Ctrl-C and SIGTERM pass.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        why = f"ended the program (sys.exit({error.code!r}))" if isinstance(error, SystemExit) else "failed"
        told = "" if isinstance(error, SystemExit) else f": {reason(error)}"
        raise ConfigError(f"{what} {why}{told} ({place.filename}:{place.lineno})") from error


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Return True if a function can be called with this number of positional arguments, or if Python cannot tell."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # no signature: some builtins
        return True
    return True


def kind(value: Any) -> str:
    """Return the kind of a value in words, for the end of a sentence: `None`, `a generator`, `text 'abc'`."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return f"text {shown(value)}"
    if isinstance(value, np.ndarray):
        return f"a numpy array {list(value.shape)}"
    if isinstance(value, int | float):
        return f"the number {shown(value)}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"

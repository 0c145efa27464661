"""Code of the user's own, such as what a preset names as `module:object`: called so that its faults are told."""

from __future__ import annotations

import inspect
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from raynas.errors import ConfigError, UserError, reason
from raynas.text import shown


@contextmanager
def running(what: str) -> Iterator[None]:
    """Within, whatever the user's code raises is an error of one line, which says what failed and where.

    Args:
        what: the object and what is asked of it, such as `search my:Search: ask(50)`.

    Raises:
        ConfigError: the code raised something, or called `sys.exit`. Errors that are one line already, Ctrl-C and
            SIGTERM pass.
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
    """Whether a function can be called with so many arguments by position; True where Python cannot tell."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # no signature: some builtins
        return True
    return True


def parameters_of(function: Callable[..., Any], what: str) -> list[inspect.Parameter]:
    """The parameters of a function or class.

    Raises:
        ConfigError: Python does not know them, as of some builtins: it is no part that was written to be one.
    """
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} is a builtin that says nothing of its arguments: give a function or class"
        ) from error


def kind(value: Any) -> str:
    """What a value is, in words that end a sentence: `None`, `a generator`, `text 'abc'`."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"text {shown(value)}"
    if isinstance(value, np.ndarray):
        return f"a numpy array {list(value.shape)}"
    if isinstance(value, bool | int | float):
        return f"the number {shown(value)}" if not isinstance(value, bool) else f"{value}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"

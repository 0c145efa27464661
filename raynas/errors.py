"""Errors with a message that says what to do.

The command prints each mistake of a `UserError` as one line and exits with code 2, a `ClusterError` with code 1; only
bugs of raynas show a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound="UserError")


class UserError(ValueError):
    """An error that the caller can correct; the message says how.

    Attributes:
        others: further mistakes that were found with this one; the text of the error tells them, too.
    """

    others: tuple[UserError, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The message of each mistake."""
        return [super(UserError, each).__str__() for each in (self, *self.others)]

    def __str__(self) -> str:
        return "; ".join(self.lines)


class ConfigError(UserError):
    """An unusable YAML file or configuration value; the message names file, line and key.

    Args:
        location: the keys of the wrong value, for an outer document that adds file and line.
        problem: the message without the location.
    """

    def __init__(self, message: str = "", location: tuple[str | int, ...] = (), problem: str = ""):
        super().__init__(message)
        self.location, self.problem = location, problem


class Mistakes:
    """A collection of mistakes that are told together: `with mistakes.noted(): ...` for each check, then `tell`."""

    def __init__(self) -> None:
        self._found: list[UserError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the error of the block, in place of raising it."""
        try:
            yield
        except UserError as error:
            if str(error) not in map(str, self._found):
                self._found.append(error)

    def tell(self) -> None:
        """Raise the first error, with all others in it; do nothing if there is none.

        Raises:
            UserError: there is one.
        """
        if self._found:
            raise together(self._found)


def together(errors: Sequence[ErrorT]) -> ErrorT:
    """Return the first of some errors, which tells of the others, too."""
    first, *rest = errors
    others = [*first.others]
    for error in rest:
        others += [error, *error.others]
        error.others = ()
    first.others = tuple(others)
    return first


class InfeasibleError(UserError):
    """No architecture meets the constraints; the message gives the span of the space."""


class RunDirError(UserError):
    """A run directory is missing, busy, or belongs to other settings."""


class TrainingCollapsed(UserError):
    """Training diverged twice; the message is the verdict of the health check."""


class ClusterError(RuntimeError):
    """Ray did not start, or the connection was lost; the same command, run again, goes on."""


def reason(error: BaseException) -> str:
    """Return an exception as one line, for a row."""
    try:
        text = str(error).strip()
    except Exception:  # an exception of somebody's own, whose text is broken
        text = ""
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of what another library's exception says, or its class if it says nothing."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__

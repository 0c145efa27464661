"""Errors that tell a user what to mend.

The command line prints any `UserError` as one line and exits with code 2, a `ClusterError` with code 1; a traceback is
for our own bugs only.
"""


class UserError(ValueError):
    """Something the caller can put right: the message says what and how."""


class ConfigError(UserError):
    """A YAML file or configuration value that cannot be used; the message names file, line and key.

    Args:
        message: all of it.
        location: the keys of what is wrong, where another document holds it and names file and line.
        problem: what is wrong there.
    """

    def __init__(self, message: str = "", location: tuple[str | int, ...] = (), problem: str = ""):
        super().__init__(message)
        self.location, self.problem = location, problem


class InfeasibleError(UserError):
    """No architecture meets the constraints; the message says what the space really spans."""


class RunDirError(UserError):
    """A run directory that is missing, busy, or belongs to other settings."""


class TrainingCollapsed(UserError):
    """Training diverged twice; the message is the verdict of the health check."""


class ClusterError(RuntimeError):
    """Ray did not start, or was lost: nothing is wrong with what the user asked for, and the same command goes on."""


def reason(error: BaseException) -> str:
    """An exception as one line for a row."""
    try:
        text = str(error).strip()
    except Exception:  # an exception of somebody's own, whose text is broken
        text = ""
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__

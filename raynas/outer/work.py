"""The trial's side of an experiment: its work in a process of its own; light, since each process imports this."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from raynas.errors import UserError, reason
from raynas.results.run_dir import RunDir
from raynas.text import one_line

TRACEBACK = "error.txt"
"""The traceback of a failed trial, in its folder."""

Report = Callable[..., None]
"""`report(step, value, **others)` tells a value on the way, and maybe others for TensorBoard; it may not return."""

Work = Callable[[str, Mapping[str, Any], Report], Mapping[str, float]]
"""`work(folder, values, report)` carries a trial out in a process of its own and returns its results by name.

The folder is a path, or a URI, that need not exist. Given again, it goes on with what it finds there.
"""


def carry_out_trial(work: Work, uri: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a trial in its own process, and return what it came to for its last report to Tune.

    Args:
        config: `run` and `values`; see `Proposed`.
    """
    from ray import tune

    run = RunDir(uri, create=True)
    ended = False

    def report(step: int, value: float, **others: float) -> None:
        nonlocal ended
        try:
            tune.report({**others, "step": int(step), "value": float(value)})
        except SystemExit:  # pruned
            ended = True
            raise

    try:
        results = work(run.local_or_uri(config["run"]), config["values"], report)
        return {"state": "finished", "results": {name: float(value) for name, value in results.items()}}
    except (Exception, SystemExit) as error:
        if ended:
            raise
        with suppress(Exception):
            run.write_bytes("/".join(filter(None, (config["run"], TRACEBACK))), traceback.format_exc().encode())
        return {"state": "failed", "reason": _why(error)}


def _why(error: BaseException) -> str:
    """Return in one line why a trial failed, with the place in the code unless the message is for users."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, UserError):
        return one_line(str(cause))
    if isinstance(cause, SystemExit):
        return f"it ended the program (sys.exit({cause.code!r}))"
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return one_line(f"{reason(cause)}{place}")


class Named:
    """A mixin of Tune's trials: Ray's dashboard shows their names, and relative paths are the driver's."""

    _name: str

    def setup(self, config: dict[str, Any]) -> None:
        """Set the trial up in its process."""
        self._name = config["title"]
        super().setup(config)  # type: ignore[misc]
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))

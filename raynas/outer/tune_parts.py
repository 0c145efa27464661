"""The parts of Ray Tune that an experiment puts its own in place of: they call the driver's side of the experiment.

Tune pickles them into snapshots, which are never read, and copies some of them: the copies are the same objects.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError
from ray.tune import Callback, Stopper
from ray.tune.search import Searcher

from raynas.cluster.losses import ENDED, NODE_LOST, OUT_OF_MEMORY, why_lost
from raynas.outer.course import Course
from raynas.text import one_line

_ANSWER_S = 10.0
"""For Ray to say whose process it has killed."""


class _OurPart:
    """A part that stays one object, whatever Tune does with it."""

    def __init__(self, course: Course):
        super().__init__()
        self._course = course

    def __deepcopy__(self, memo: Any) -> _OurPart:
        return self

    def __reduce__(self) -> Any:
        return object, ()


class Suggesting(_OurPart, Searcher):
    """Ask for the next trial whenever there is room for one."""

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial; None for not now, and Tune's word for never again."""
        return self._course.suggest(trial_id) or (None if self._course.goes_on else Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Leave it to `Stopping` and `Watching`, which know more."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the rows are the state."""


class Stopping(_OurPart, Stopper):
    """Take what trials report, and end those that are pruned or have reported their results."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return True to end a trial."""
        if trial_id not in self._course.running:
            return True
        if "state" not in result:
            return self._course.step(trial_id, result["step"], result["value"])
        self._course.end(trial_id, result["state"], result.get("results"), result.get("reason"))
        return True

    def stop_all(self) -> bool:
        """Return True if the cluster cannot run any trial; else those under way come to their end."""
        return self._course.lack is not None


class Watching(_OurPart, Callback):
    """See to trials whose process is lost."""

    def __init__(self, course: Course):
        super().__init__(course)
        self._trials: list[Any] = []
        self._actors: dict[Any, str] = {}

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Keep the trials and their processes, and note whether any has its process."""
        self._trials = trials
        self._actors = {
            actor: each.trial_id for each in trials if (actor := each.temporary_state.ray_actor) is not None
        }
        self._course.at_work = any(trial.status == "RUNNING" for trial in trials)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """End a trial without results, or begin it again if its node or its process was lost."""
        if trial.trial_id not in self._course.running:
            return
        error = Path(trial.error_file).read_text() if trial.error_file else ""
        why = why_lost(error)
        if why not in (NODE_LOST, ENDED) or not self._course.lose(trial.trial_id, why):
            self._course.end(trial.trial_id, "failed", reason=_cause(error))

    def end_killed(self) -> None:
        """End the trial whose process Ray has killed for want of memory; if it does not say which, begin all again."""
        # As they were at the last step: Tune has let go of them since, and may have ended the others.
        asked = {actor.__ray_ready__.remote(): id for actor, id in self._actors.items()}
        until = time.monotonic() + _ANSWER_S
        while asked and time.monotonic() < until:
            answered, _ = ray.wait(list(asked), num_returns=1, timeout=1.0)
            for answer in answered:
                id = asked.pop(answer)
                try:
                    ray.get(answer)
                except OutOfMemoryError:
                    self._course.end(id, "failed", reason=OUT_OF_MEMORY)
                    return
                except RayError:
                    pass
        for id in list(self._course.running):
            if not self._course.lose(id, OUT_OF_MEMORY):
                self._course.end(id, "failed", reason=f"{OUT_OF_MEMORY}, again and again")

    def actors(self) -> list[Any]:
        """Return the processes of trials that are still under way."""
        return [actor for trial in self._trials if (actor := trial.temporary_state.ray_actor) is not None]


def _cause(error: str) -> str:
    """Return in one line why the process of a trial was lost, by Ray's text about it."""
    if "failed to import on the worker" in error and (missing := re.search(r"^\w*Error: .*No module.*$", error, re.M)):
        return f"its process cannot import what it needs: {one_line(missing[0])}"
    if (why := why_lost(error)) is not None:
        return why if why == OUT_OF_MEMORY else f"{why}, again and again"
    return one_line(error.strip().splitlines()[-1]) if error.strip() else "it ended without results"

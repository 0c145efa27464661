"""Report section on a tuning: its trials, and Optuna's plots of its study."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from raynas.reports.html import Part, Picture, Section, Table, drawn
from raynas.results.schemas import Row
from raynas.text import seconds_text

if TYPE_CHECKING:
    import optuna

_NAMED = 12  # trials, beyond which a legend would be larger than its plot
MOST_SLICES = 12
"""Parameters with a plot of their own: those that matter most."""


@dataclass(frozen=True)
class Tuning:
    """A tuning to report on.

    Attributes:
        objectives: `max` or `min` by objective.
        trials: its trials, the best first, then those without results: `name`, `run`, `state`, `values`, `results`,
            `reason`, `seconds`; see table `trials`.
    """

    objectives: Mapping[str, str]
    trials: Sequence[Row]
    study: optuna.Study


def tuning_lead(tuning: Tuning) -> str:
    """Return the result in a sentence."""
    states = [trial["state"] for trial in tuning.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if "finished" not in states:
        return f"No trial has finished yet ({counts or 'none has begun'}). The command that began the tuning goes on."
    best = tuning.trials[0]
    results = ", ".join(f"{name} {best['results'][name]:.4g}" for name in tuning.objectives)
    what = "The best" if len(tuning.objectives) == 1 else f"The best by {next(iter(tuning.objectives))}"
    return f"{what} of {len(states)} trials ({counts}) is {best['name']}: {results}, with {_values(best['values'])}."


def tuning_section(tuning: Tuning | None) -> Section | None:
    """Return the section on a tuning; None if there was none."""
    if tuning is None:
        return None
    params = list(dict.fromkeys(name for trial in tuning.trials for name in trial["values"]))
    header = ["trial", "state", *tuning.objectives, *params, "took", "reason"]
    rows = [
        [
            trial["run"] or trial["name"],
            trial["state"],
            *(trial["results"].get(name) for name in tuning.objectives),
            *(_value(trial["values"].get(name)) for name in params),
            seconds_text(trial["seconds"]) if trial["state"] != "running" else None,
            trial["reason"],
        ]
        for trial in tuning.trials
    ]
    sense = " and ".join(
        f"{name} ({'more' if way == 'max' else 'less'} is better)" for name, way in tuning.objectives.items()
    )
    text = f"The objective is {sense}. Each trial of a preset is a run directory with a report of its own."
    return Section("The tuning", [text, Table("tuned", header, rows), *_pictures(tuning)])


def _pictures(tuning: Tuning) -> Iterator[Part]:
    """Yield Optuna's plots, as far as there are trials enough for them."""
    import optuna.visualization.matplotlib as plots

    study, objectives = tuning.study, list(tuning.objectives)
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not finished:
        return
    for place, name in enumerate(objectives):
        by: dict[str, Any] = {"target_name": name}
        if len(objectives) > 1:
            by["target"] = partial(_value_of, place)
        about = f"of {name}: each trial's value."
        if len(objectives) == 1:  # of one of several, Optuna does not draw the best
            about = "of the objective: each trial's value, and the best so far."
        yield _picture(partial(plots.plot_optimization_history, study, **by), f"history-{place}", f"History {about}")
        shares = importances(study, by, finished)
        names = list(shares)
        if any(shares.values()):
            yield _picture(
                partial(plots.plot_param_importances, study, evaluator=_evaluator(), params=names, **by),
                f"importances-{place}",
                f"Importances for {name}: of the variance that single parameters explain, the share of each (fANOVA), "
                "among those that all trials have.",
            )  # fmt: skip
        if len(finished) > 1:
            yield _picture(
                partial(plots.plot_parallel_coordinate, study, **by), f"parallel-{place}",
                f"Parallel coordinates: a line for each trial, by its {name}.", wide=True,
            )  # fmt: skip
            shown = names[:MOST_SLICES] or None
            yield _picture(
                partial(plots.plot_slice, study, params=shown, **by), f"slices-{place}",
                f"Slices: {name} by each parameter's values, a point for each trial.", wide=True,
            )  # fmt: skip
    if len(objectives) in (2, 3):
        yield _picture(
            partial(plots.plot_pareto_front, study, target_names=objectives), "front",
            "The trials, and those that no other one beats in all objectives.",
        )  # fmt: skip
    if any(trial.intermediate_values for trial in study.trials):
        yield _picture(
            partial(plots.plot_intermediate_values, study), "courses",
            "The values that trials reported on the way; short lines were pruned.",
        )  # fmt: skip


def importances(study: optuna.Study, by: Mapping[str, Any], finished: Sequence[Any]) -> dict[str, float]:
    """Return the share of each parameter in the variance that single ones explain (fANOVA), the greatest first.

    Of parameters that all finished trials have and that vary; 0 for all if there are too few trials or parameters.

    Args:
        by: `target`, a function that returns a trial's value; by default the only objective's.
    """
    import optuna

    common = [name for name in finished[0].params if all(name in trial.params for trial in finished)]
    varied = [name for name in common if len({trial.params[name] for trial in finished}) > 1]
    target = by.get("target")
    values = [trial.values[0] if target is None else target(trial) for trial in finished]
    if len(varied) < 2 or len(finished) < 3 or not np.all(np.isfinite(values)) or np.ptp(values) == 0:
        return dict.fromkeys(varied, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=_evaluator(), params=varied, target=target)
    return dict(found)


def _evaluator() -> optuna.importance.BaseImportanceEvaluator:
    """Return fANOVA: Optuna's default looks at the trials of the lowest values, the worst ones if more is better."""
    from optuna.importance import FanovaImportanceEvaluator

    return FanovaImportanceEvaluator(seed=0)


def _picture(draw: Callable[[], Any], name: str, caption: str, wide: bool = False) -> Picture:
    """Return one of Optuna's plots as a picture."""
    import matplotlib.pyplot as plt

    with warnings.catch_warnings(), matplotlib.rc_context({"backend": "agg"}):
        warnings.simplefilter("ignore")  # Optuna calls its plots experimental, and matplotlib its layout tight
        axes = draw()
        figure: Figure = np.ravel(axes)[0].figure
        try:
            if not wide:  # no layout engine keeps several plots clear of their one bar of colours
                figure.set_layout_engine("tight")
            if (legend := figure.axes[0].get_legend()) is not None and len(legend.get_texts()) > _NAMED:
                legend.remove()
            count = np.size(axes)
            figure.set_size_inches(max(7.2, 2.4 * count) if wide else 7.2, 5.4 if wide else 3.8)
            return drawn(figure, name, caption, caption)
        finally:
            plt.close(figure)


def _value_of(place: int, trial: Any) -> float:
    return float(trial.values[place])


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str | None:
    if value is None:
        return None
    return f"{value:.4g}" if isinstance(value, float) else str(value)

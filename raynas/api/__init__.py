"""The public functions: each does what the command of its name does.

They turn what a user has at hand into checked values, and call the phase that does the work. Imports in them are local,
so that `import raynas` stays light and a missing run directory is reported before torch is loaded.
"""

from raynas.api.existing_runs import evaluate, export, rank, retrain, search_run
from raynas.api.experiments import ablate, evolve_space, tune
from raynas.api.looks import check, compare, list_runs, report, status
from raynas.api.new_runs import adapt, elastic_space, import_model, pipeline, train

__all__ = [
    "ablate",
    "adapt",
    "check",
    "compare",
    "elastic_space",
    "evaluate",
    "evolve_space",
    "export",
    "import_model",
    "list_runs",
    "pipeline",
    "rank",
    "report",
    "retrain",
    "search_run",
    "status",
    "train",
    "tune",
]

"""A whole procedure as one job: train, search, retrain, evaluate, export, report.

Stopped at any moment and started again with the same arguments, it goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from raynas.errors import UserError


def main() -> int:
    """Run the procedure; the exit code: 0, or 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="a shipped preset (digits, autoformer) or a YAML file")
    parser.add_argument("--run", required=True, help="run directory: a URI, or a path that every node sees")
    parser.add_argument(
        "--data", help="in place of the preset's: a path that every node sees, a URI, or module:function"
    )
    parser.add_argument("--workers", type=int, default=1, help="Ray Train workers (default: 1)")
    parser.add_argument("--replicas", type=int, default=2, help="scorers as Ray actors; 0: without Ray (default: 2)")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker and each replica")
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="such as recipe.epochs=3"
    )
    options = parser.parse_args()

    from raynas.pipeline import pipeline  # after the parser: --help waits for no torch
    from raynas.preset import load_preset, parse_overrides

    try:
        changes: dict[str, Any] = parse_overrides(options.changes)
        if options.data is not None:
            changes = {"data": {"name": options.data}, **changes}
        preset = load_preset(options.preset, changes)
        outcome = pipeline(preset, options.run, options.workers, options.replicas, gpus=int(options.gpu))
    except UserError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    print(f"Report: {outcome.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

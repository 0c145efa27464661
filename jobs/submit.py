"""Hand a script of this folder to a running cluster: `python jobs/submit.py -- pipeline.py PRESET --run s3://...`"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from raynas.cluster.submission import ADDRESS, submit
from raynas.errors import UserError
from raynas.locations import refuse_credentials


def main() -> int:
    """Submit, follow and return the exit code: 0 when the job succeeded, 2 for a mistake or a failed job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help=f"the cluster's dashboard (default: RAY_API_SERVER_ADDRESS, else {ADDRESS})")
    parser.add_argument(
        "--working-dir",
        type=Path,
        default=Path(__file__).parent,
        help="folder with the script and your own code; never data (default: the folder of this script)",
    )
    parser.add_argument("--python", default="python", help="the cluster's interpreter (default: python on its PATH)")
    parser.add_argument("--no-wait", action="store_true", help="return at once; follow with: ray job logs ID --follow")
    parser.add_argument("script", help="a file in the working directory, such as pipeline.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    try:
        for argument in sys.argv[1:]:  # before the parser repeats it
            refuse_credentials(argument)
    except UserError as error:
        parser.error(str(error))
    options = parser.parse_args()
    if not (options.working_dir / options.script).is_file():
        parser.error(f"{options.script} is not in {options.working_dir}")
    logging.disable(logging.INFO)  # of Ray's client; the job's own output is shown
    try:
        submit(
            [options.python, options.script, *options.arguments],
            options.working_dir,
            address=options.address,
            wait=not options.no_wait,
        )
    except UserError as error:
        print(f"submit: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

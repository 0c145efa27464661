"""Hand a script of this folder to a running cluster: `python jobs/submit.py -- pipeline.py PRESET --run s3://...`"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from raynas.cluster.submission import ADDRESS, submit
from raynas.commands.main import check_arguments, told
from raynas.commands.parser import Parser
from raynas.errors import UserError


def main(argv: list[str]) -> int:
    """Submit, follow and return the exit code: 0 if the job succeeded, 2 for a mistake or a failed job."""
    parser = Parser(description=__doc__)
    parser.add_argument("--address", help=f"the cluster's dashboard (default: RAY_API_SERVER_ADDRESS, else {ADDRESS})")
    text = "folder with the script and your own code; never data (default: the folder of this script)"
    parser.add_argument("--working-dir", type=Path, default=Path(__file__).parent, help=text)
    parser.add_argument("--python", default="python", help="the cluster's interpreter (default: python on its PATH)")
    parser.add_argument("--no-wait", action="store_true", help="return at once; follow with: ray job logs ID --follow")
    parser.add_argument("script", help="a file in the working directory, such as pipeline.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    logging.disable(logging.INFO)  # of Ray's client; the job's own output is shown
    try:
        check_arguments(argv)
        options = parser.parse_args(argv)
        if not (options.working_dir / options.script).is_file():
            raise UserError(f"{options.script} is not in {options.working_dir}")
        command = [options.python, options.script, *options.arguments]
        submit(command, options.working_dir, options.address, wait=not options.no_wait, progress=print)
    except UserError as error:
        print(f"submit: {told(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run a whole preset, as a job: takes the options of `raynas pipeline`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))

"""Carry out a whole procedure, as a job: the same options as `raynas pipeline`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))

"""Measure how well inherited weights rank subnets, as a job: takes the options of `raynas rank`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["rank", *sys.argv[1:]]))

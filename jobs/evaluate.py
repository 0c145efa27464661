"""Measure finished networks on the test split, as a job: takes the options of `raynas evaluate`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))

"""Adapt a trained model to a budget, as a job: takes the options of `raynas adapt`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["adapt", *sys.argv[1:]]))

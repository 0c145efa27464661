"""Carry out an ablation, as a job: takes the options of `raynas ablate`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["ablate", *sys.argv[1:]]))

"""Tune a preset, as a job: takes the options of `raynas tune`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["tune", *sys.argv[1:]]))

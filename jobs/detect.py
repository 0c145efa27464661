"""Detect digits in scenes with a network as the backbone, as a job: takes the options of `raynas bench detect`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "detect", *sys.argv[1:]]))

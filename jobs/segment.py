"""Segment scenes with a network as the backbone, as a job: takes the options of `raynas bench segment`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "segment", *sys.argv[1:]]))

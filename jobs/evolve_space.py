"""Search the search space, as a job: takes the options of `raynas evolve-space`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["evolve-space", *sys.argv[1:]]))

"""Search a trained supernet, as a job: takes the options of `raynas search`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["search", *sys.argv[1:]]))

"""Train a supernet, as a job: takes the options of `raynas train`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

"""Train found networks on their own, as a job: takes the options of `raynas retrain`."""

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main(["retrain", *sys.argv[1:]]))

"""`python -m raynas` is the `raynas` command."""

from __future__ import annotations

import sys

from raynas.commands.main import main

if __name__ == "__main__":
    sys.exit(main())

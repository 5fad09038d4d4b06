"""`python -m tensortap` is the `tensortap` command."""

import sys

from tensortap.commands import main

if __name__ == "__main__":
    sys.exit(main())

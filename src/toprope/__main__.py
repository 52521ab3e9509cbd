"""`python -m toprope` is the command `toprope`."""

import sys

from toprope.cli import main

if __name__ == "__main__":
    sys.exit(main())

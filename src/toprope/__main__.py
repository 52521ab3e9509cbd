"""`python -m toprope` is the command `toprope`.

The work is in `toprope.cli.app`. Tests: tests/cli/test_cli.py.
"""

import sys

from toprope.cli import main

if __name__ == "__main__":
    sys.exit(main())

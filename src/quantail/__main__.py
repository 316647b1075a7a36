"""`python -m quantail` is the command `quantail`."""

import sys

from quantail.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m standalone.runner`."""

import sys

from standalone.runner.main import main

if __name__ == "__main__":
    sys.exit(main())

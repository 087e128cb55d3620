"""Entry of `python -I -S standalone/runner/shim DIRECTORY`: isolated mode knows no path of ours, so we add it."""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

    from standalone.runner.shim.main import main

    sys.exit(main(sys.argv[1:]))

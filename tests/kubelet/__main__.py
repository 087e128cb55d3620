"""`python -m tests.kubelet build`: kubelet, containerd, runc and images for the guest, into the cache."""

from __future__ import annotations

import argparse
import sys

from tests.kubelet import tools


def main() -> int:
    """Build; 1 with a line that says why when that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubelet", description=__doc__)
    parser.add_argument("action", choices=["build"])
    parser.parse_args()
    try:
        print(tools.build())
    except tools.ToolsMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

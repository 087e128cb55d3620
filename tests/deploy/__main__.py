"""`python -m tests.deploy build`: helm and kustomize for the chart's tests."""

from __future__ import annotations

import argparse
import sys

from tests.deploy import tools


def main() -> int:
    """Build all of them, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    parser.add_argument("action", choices=["build"])
    parser.add_argument("names", nargs="*", choices=[[], *tools.RECIPES], default=[])
    chosen = parser.parse_args()
    try:
        for name in chosen.names or tools.RECIPES:
            print(tools.build(name), flush=True)
    except tools.ToolsMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

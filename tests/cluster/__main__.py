"""`python -m tests.cluster build | up`: a control plane for use by hand."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tests.cluster import tools
from tests.cluster.harness import StartFailed, control_plane


def main() -> int:
    """Build the programs, or run them until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("action", choices=["build", "up"])
    parser.add_argument("--controllers", action="store_true", help="run some of the stock controllers too")
    parser.add_argument("--scheduler", action="store_true", help="run the stock scheduler too")
    chosen = parser.parse_args()
    try:
        built = tools.build()
        if chosen.action == "build":
            print(built)
        else:
            _up(scheduler=chosen.scheduler, controllers=chosen.controllers)
    except (tools.ToolsMissing, StartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(*, scheduler: bool, controllers: bool) -> None:
    def end(*_: object) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slacktide-cluster-")))
        plane = stack.enter_context(control_plane(directory))
        if controllers:
            stack.enter_context(plane.controllers())
        if scheduler:
            stack.enter_context(plane.scheduler())
        print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())

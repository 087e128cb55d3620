"""`python -m standalone.load serve|burn`: the two ends of a colocation experiment as ordinary commands."""

from __future__ import annotations

import argparse
import sys

from standalone.load.burn import KINDS, burn
from standalone.load.server import serve


def main(argv: list[str] | None = None) -> int:
    """Run one of the two; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m standalone.load", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="latency-sensitive server on named pipes")
    server.add_argument("--directory", required=True, help="where the pipes are, made when missing")
    server.add_argument("--workers", type=int, required=True)
    server.add_argument("--service-millis", type=float, required=True, help="CPU time of a request")
    burner = commands.add_parser("burn", help="busy best-effort processes")
    burner.add_argument("--processes", type=int, required=True)
    burner.add_argument("--pid-file", default="", help="gets the pids, one a line")
    burner.add_argument("--kind", choices=KINDS, default="cpu", help="what they do (default cpu)")
    burner.add_argument("--directory", default="", help="where a page cache hog has its file")
    arguments = parser.parse_args(argv)
    if arguments.command == "serve":
        return serve(arguments.directory, arguments.workers, arguments.service_millis / 1000.0)
    return burn(arguments.processes, arguments.pid_file, arguments.kind, arguments.directory)


if __name__ == "__main__":
    sys.exit(main())

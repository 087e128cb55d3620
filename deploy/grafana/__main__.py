"""Writes the dashboards' JSON from their Python; `--check` only says whether it is current.

Usage: python -m deploy.grafana [--check]. Exit code 0 is written or current, 1 is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana import drills, fleet, node, predictor, scheduler
from deploy.grafana.panels import Board, build

DIRECTORY: Final = Path(__file__).parent / "json"
BOARDS: Final = (fleet.BOARD, node.BOARD, predictor.BOARD, scheduler.BOARD, drills.BOARD)


def rendered(board: Board) -> str:
    """The JSON of a dashboard."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build(board)) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` compare them."""
    old = []
    for board in BOARDS:
        path, text = DIRECTORY / f"{board.uid}.json", rendered(board)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            old.append(path.name)
    if old:
        sys.stderr.write(f"{', '.join(old)} out of date: run python -m deploy.grafana\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

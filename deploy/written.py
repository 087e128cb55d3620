"""Files that code writes and CI compares: written, or with `--check` only looked at."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(target: Path, text: str, argv: list[str], command: str) -> int:
    """Write `text`, or with `--check` in `argv` compare it; 1 when it is out of date, and what `command` mends it."""
    if "--check" not in argv:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{target.name} is out of date: run {command}\n")
    return 1

# ruff: noqa: INP001 - scripts beside what they build, not a package
"""Runs inside the image while it is built: installs the wheels, drops their tests, compiles everything.

Only from the directory beside this file; nothing is fetched. $REQUIREMENT is what to install, `slacktide[EXTRAS]`.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

WHEELS = Path(__file__).parent
TARGET = Path("/usr/local/lib/python3.11/dist-packages")
LIBRARY = "/usr/local/lib/python3.11"


def main() -> None:
    """Install; raises CalledProcessError when pip cannot."""
    (pip,) = WHEELS.glob("pip-*.whl")
    command = [sys.executable, f"{pip}/pip", "install", "--no-index", "--find-links", str(WHEELS), "--no-compile"]
    flags = ["--no-cache-dir", "--disable-pip-version-check", "--root-user-action", "ignore", "--quiet"]
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([*command, *flags, os.environ["REQUIREMENT"]], check=True, env=environment)
    for directory in sorted(TARGET.rglob("tests")):
        if directory.is_dir():
            shutil.rmtree(directory)
    # The layers carry one time for all files, so byte code must be judged by its content or not at all.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(LIBRARY, maxlevels=20, quiet=2, workers=1, invalidation_mode=mode)


if __name__ == "__main__":
    # Sets would be stored in another order with each start.
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, *sys.argv]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself, once more
    main()

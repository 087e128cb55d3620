"""Runs all tests in lanes side by side: most of their time is waiting for API servers, timers and emulated machines.

`python -m tests.run` is what `make test` calls. Each lane is a pytest of its own; its output is shown when all have
ended. Tests that failed beside the other lanes are run once more, alone, and named: a machine that is too busy for a
deadline is no fault of the code, and what fails alone is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LANES = (
    # Those that want CPU of their own come last, when other lanes have ended.
    ("agent", "emulators", "fuzz", "kernel", "whole"),
    ("cluster", "client_suite"),
    ("kubelet", "deploy", "image"),
)
"""Directories by lane; everything else is a lane of its own."""

_END_SECONDS = 60.0


@dataclass
class Lane:
    """One pytest, its output and its memory of what failed."""

    name: str
    paths: list[str]
    folder: Path
    process: subprocess.Popen | None = None

    @property
    def log(self):
        return self.folder / f"{self.name}.txt"

    def command(self, *more):
        cache = ("-o", f"cache_dir={self.folder / self.name}")
        return [sys.executable, "-m", "pytest", "-q", *cache, *more, *self.paths]

    def start(self, *more):
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(self.command(*more), stdout=out, stderr=subprocess.STDOUT, cwd=HERE.parent)

    def end(self):
        """Let it clean up behind itself."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(_END_SECONDS)

    def show(self):
        print(f"===== {self.name} =====", flush=True)
        sys.stdout.buffer.write(self.log.read_bytes())
        sys.stdout.buffer.flush()


def lanes(folder):
    """All test paths, each in one lane."""
    named = {name for lane in LANES for name in lane}
    rest = [path for path in sorted(HERE.iterdir()) if path.name not in named and holds_tests(path)]
    made = [Lane(lane[0], [str(HERE / name) for name in lane if (HERE / name).exists()], folder) for lane in LANES]
    return [*made, Lane("others", [str(path) for path in rest], folder)]


def holds_tests(path):
    if path.is_dir():
        return any(path.rglob("test_*.py"))
    return path.name.startswith("test_") and path.suffix == ".py"


def main():
    with tempfile.TemporaryDirectory(prefix="slacktide-tests-") as made:
        running = lanes(Path(made))
        begin = time.monotonic()
        for lane in running:
            lane.start()
        try:
            for lane in running:
                lane.process.wait()
        finally:
            for lane in running:
                lane.end()
        for lane in running:
            lane.show()
        failed = [lane for lane in running if lane.process.returncode != 0]
        again = [lane for lane in failed if lane.process.returncode == 1]
        for lane in again:
            lane.start("--last-failed", "--last-failed-no-failures", "none")
            lane.process.wait()
            print(f"===== {lane.name}: what failed beside the others, alone =====", flush=True)
            lane.show()
        bad = [lane.name for lane in failed if lane.process.returncode != 0]
        took = round(time.monotonic() - begin)
        print(
            f"lanes: {len(running)}, run again: {len(again)}, failed: {', '.join(bad) or 'none'}, {took} s", flush=True
        )
        return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())

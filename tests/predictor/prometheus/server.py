"""A real Prometheus on loopback whose past is written by a test: OpenMetrics text, made into blocks by promtool."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from tests.patience import PATIENCE

MISSING = next((name for name in ("prometheus", "promtool") if shutil.which(name) is None), None)
"""The program that is not installed, None when both are."""


class Text:
    """Samples as OpenMetrics. A family's samples must follow its TYPE line, so they are gathered first."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}
        self._types: dict[str, str] = {}

    def add(self, name: str, labels: Mapping[str, str], at: float, value: float) -> None:
        """One sample; a name that ends with _total is a counter."""
        counter = name.endswith("_total")
        family = name.removesuffix("_total") if counter else name
        self._types[family] = "counter" if counter else "gauge"
        inner = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
        self._families.setdefault(family, []).append(f"{name}{{{inner}}} {value!r} {at:.3f}\n")

    def series(
        self, name: str, labels: Mapping[str, str], times: range | list[float], value: Callable[[float], float | None]
    ) -> None:
        """A sample at each time of which `value` is not None."""
        for at in times:
            amount = value(at)
            if amount is not None:
                self.add(name, labels, at, amount)

    def render(self) -> str:
        """The whole file."""
        parts = [f"# TYPE {family} {self._types[family]}\n{''.join(lines)}" for family, lines in self._families.items()]
        return "".join(parts) + "# EOF\n"


class Prometheus:
    """A running server; `url` is its address."""

    def __init__(self, folder, text: Text, *flags: str) -> None:
        source = folder / "metrics.txt"
        source.write_text(text.render())
        data = folder / "data"
        made = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(source), str(data)],
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        (folder / "prometheus.yml").write_text("global: {}\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={data}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--storage.tsdb.retention.time=100y",
                    *flags,
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + 30 * PATIENCE
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"Prometheus did not become ready: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

"""Readiness probes: one thread a probed container, results read by the runner's loop.

`Readiness` is the pure part: thresholds over a sequence of results. A container that has not passed is not ready.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from slacktide.objects import Probe
from standalone.runner import shim
from standalone.runner.attempts import ContainerId

_SHIM: Final = os.path.dirname(shim.__file__)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready or not, and how many results in a row spoke for the other."""

    ready: bool = False
    streak: int = 0

    def after(self, passed: bool, probe: Probe) -> Readiness:
        """The state after one more result."""
        if passed == self.ready:
            return replace(self, streak=0)
        streak = self.streak + 1
        needed = max(1, probe.success_threshold if passed else probe.failure_threshold)
        return Readiness(passed, 0) if streak >= needed else replace(self, streak=streak)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """What a probe needs to know of its container."""

    probe: Probe
    dirs: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    address: str


def check(target: ProbeTarget) -> str | None:
    """Run a probe once: None when it passed, else what went wrong. A probe without an action passes."""
    probe, timeout = target.probe, float(max(1, target.probe.timeout_seconds))
    try:
        if probe.exec is not None:
            return _run(target, list(probe.exec.command), timeout)
        if probe.http_get is not None:
            get = probe.http_get
            return _http(get.scheme, get.host or target.address, _port(get.port), get.path or "/", timeout)
        if probe.tcp_socket is not None:
            tcp = probe.tcp_socket
            socket.create_connection((tcp.host or target.address, _port(tcp.port)), timeout).close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return None


def _port(port: int | str) -> int:
    try:
        return int(port)
    except ValueError:
        raise ValueError(f"port {port!r} is a name; a standalone node wants its number") from None


def _http(scheme: str, host: str, port: int, path: str, timeout: float) -> str | None:
    if scheme.upper() != "HTTP":
        return f"scheme {scheme} is not supported by this node's probes; use HTTP, tcpSocket or exec"
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"User-Agent": "slacktide-probe"})
        status = connection.getresponse().status
    finally:
        connection.close()
    return None if 200 <= status < 400 else f"HTTP probe failed with status code {status}"


def _run(target: ProbeTarget, command: list[str], timeout: float) -> str | None:
    argv = [sys.executable, "-I", "-S", _SHIM, "--join", *target.dirs, "--", *command]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(target.env),
        cwd=target.cwd or "/",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"command did not end within {timeout:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    text = output.decode("utf-8", "replace").strip()[:200]
    return None if process.returncode == 0 else f"command ended with {process.returncode}: {text}"


class _Worker:
    """Probes one container until it is stopped."""

    def __init__(
        self, target: ProbeTarget, changed: Callable[[], None], run: Callable[[ProbeTarget], str | None]
    ) -> None:
        self._target = target
        self._changed = changed
        self._run = run
        self._stop = threading.Event()
        self.readiness = Readiness()
        self._thread = threading.Thread(target=self._loop, name="probe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread."""
        self._thread.join(seconds)

    def _loop(self) -> None:
        probe = self._target.probe
        pause = float(max(0, probe.initial_delay_seconds))
        while not self._stop.wait(pause):
            before = self.readiness
            self.readiness = before.after(self._run(self._target) is None, probe)
            if self.readiness.ready != before.ready:
                self._changed()
            pause = float(max(1, probe.period_seconds))


class Prober:
    """Keeps one worker for each container that has a readiness probe. `changed` is called from worker threads."""

    def __init__(self, changed: Callable[[], None], run: Callable[[ProbeTarget], str | None] = check) -> None:
        self._changed = changed
        self._run = run
        self._workers: dict[ContainerId, _Worker] = {}

    def sync(self, targets: Mapping[ContainerId, Callable[[], ProbeTarget]]) -> None:
        """Probe exactly these containers; a target is only built for one that is new."""
        for container_id in set(self._workers) - set(targets):
            self._workers.pop(container_id).stop()
        for container_id, build in targets.items():
            if container_id not in self._workers:
                self._workers[container_id] = _Worker(build(), self._changed, self._run)

    def ready(self) -> dict[ContainerId, bool]:
        """Readiness of every probed container."""
        return {container_id: worker.readiness.ready for container_id, worker in self._workers.items()}

    def stop(self) -> None:
        """End all workers."""
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(1.0)

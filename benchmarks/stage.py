"""One LS and one BE pod in real cgroups, and the agent as a process beside them: what reaction and crash play on."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.crowd import NODE, START_SECONDS, Crowd
from slacktide.errors import SlacktideError
from slacktide.kernel.kubepods import pod_path
from standalone.probe import get
from standalone.runner.attempts import ContainerId, PodUid

ROOT: Final = Path(__file__).resolve().parents[1]
LS: Final = 0
BE: Final = 1

_JOIN: Final = (
    "import os, sys\n"
    "for directory in sys.argv[1].split(':'):\n"
    "    with open(directory + '/cgroup.procs', 'w') as file: file.write('0')\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)
"""Goes into cgroups, then becomes the command, so that all that it makes is born there."""


class Stage(Crowd):
    """Use as a context manager: pods 0 (LS) and 1 (BE) of one container each are there, without processes."""

    def __enter__(self) -> Stage:
        super().__enter__()
        try:
            self.grow(2)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _spawn(self, directories: list[str], *, active: bool) -> None:
        """Nothing: processes come by `run`."""

    def directories(self, pod: int) -> list[str]:
        """Cgroups of a pod's container, one a mount."""
        qos, uid, container = self.pods[pod]
        return list(self.groups.container(qos, PodUid(uid), ContainerId(container)).dirs)

    def group(self, pod: int) -> str:
        """Cgroup of a pod, relative to each mount."""
        qos, uid, _ = self.pods[pod]
        return f"{self.root}/{pod_path(qos, PodUid(uid))}"

    @contextlib.contextmanager
    def run(self, pod: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """`python ARGUMENTS` inside a pod's container."""
        command = [sys.executable, "-S", "-c", _JOIN, ":".join(self.directories(pod)), *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class AgentProcess:
    """`python -m agent` on a stage. Its state stays between two of them, so the second finds what the first left."""

    def __init__(self, stage: Stage, settings: Mapping[str, str]) -> None:
        self.state = f"{stage.directory}/agent"
        self._socket = f"{stage.directory}/agent.sock"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        flags = [f"--{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "agent", "--node", NODE, "--state-dir", self.state]
        where = ["--cluster.server", f"unix:{stage.socket}", "--cgroup-root", stage.root]
        observe = ["--observe.listen", f"unix:{self._socket}"]
        with open(f"{stage.directory}/agent.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, *where, *observe, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def status(self) -> dict[str, object] | None:
        """What `/status` says; None while it says nothing."""
        try:
            code, body = get(self._socket, "/status")
            found = msgspec.json.decode(body)
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return None
        return found if code == 200 and found else None

    def wait_for_turns(self, turns: int) -> None:
        """Until it has done so many turns. Raises SlacktideError when it ended or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            status = self.status()
            if status is not None and int(str(status["turn"])) >= turns:
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SlacktideError(f"the agent did no {turns} turns (exit status {self.process.poll()})")
            time.sleep(0.02)

    def end(self, signal: int) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        self.process.send_signal(signal)
        return self.process.wait(30)


def restore(stage: Stage) -> str:
    """`slacktide-agent restore` after an agent was killed; what it said where it did not give back everything."""
    where = ["--state-dir", f"{stage.directory}/agent", "--cgroup-root", stage.root]
    done = subprocess.run(
        [sys.executable, "-m", "agent", "restore", *where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    return "" if done.returncode == 0 else f"restore: exit status {done.returncode}: {done.stdout}{done.stderr}"

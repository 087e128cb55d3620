"""A node full of pods without a kubelet: pods in an embedded API, their cgroups made here, a process in each container.

Every second pod is BE. One container in five is lightly active (half a percent of a CPU), the others sleep. All of it
lies below one cgroup of our own and is gone on return.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any, Final

from slacktide.cluster import NODES, PODS, Client, connect
from slacktide.cluster.errors import ClusterError
from slacktide.errors import SlacktideError
from slacktide.kernel.hierarchy import Version, discover
from slacktide.names import TIER_LABEL
from slacktide.settings import ClusterSettings
from standalone.runner.attempts import ContainerId, PodUid
from standalone.runner.groups import Groups
from standalone.runner.limits import Limits

NODE: Final = "crowded"
START_SECONDS: Final = 60.0

SPAWNER: Final = r"""
import ctypes, os, signal, sys, time
prctl = ctypes.CDLL(None).prctl
me, children = os.getpid(), []
def work(active):
    prctl(1, signal.SIGKILL)
    if os.getppid() != me:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while not active:
        signal.pause()
    while True:
        time.sleep(0.1)
        end = time.thread_time() + 0.0005
        while time.thread_time() < end:
            pass
for line in sys.stdin:
    active, *groups = line.split()
    child = os.fork()
    if not child:
        work(active == "1")
    children.append(child)
    for group in groups:
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(child))
    print(child, flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
for child in children:
    os.waitpid(child, 0)
"""
"""Forks one process a line of its input (`ACTIVE DIRECTORY...`), moves it there, and kills all of them at the end."""


class Crowd:
    """Use as a context manager; `grow` adds pods of one container each. Raises SlacktideError where it cannot."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="slacktide-cost-")
        self.socket = f"{self.directory}/api.sock"
        self.groups = Groups(discover(), f"slacktide-cost-{secrets.token_hex(4)}")
        self.pods: list[tuple[str, str, str]] = []
        self._stack = contextlib.ExitStack()
        self._spawner: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def root(self) -> str:
        """Cgroup below which all of it lies, relative to each mount."""
        return self.groups.root

    def __enter__(self) -> Crowd:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            stack.callback(self._remove_groups)
            self._start_api(stack)
            self._spawner = stack.enter_context(
                subprocess.Popen([sys.executable, "-S", "-c", SPAWNER], stdin=-1, stdout=-1, text=True)
            )
            self.groups.prepare(1024)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_api(self, stack: contextlib.ExitStack) -> None:
        os.mkdir(f"{self.directory}/logs")
        arguments = ["--socket", self.socket, "--database", f"{self.directory}/api.sqlite"]
        process = subprocess.Popen(
            [sys.executable, "-m", "standalone.api", *arguments, "--log-dir", f"{self.directory}/logs"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, process)
        self._client = connect(ClusterSettings(server=f"unix:{self.socket}"), user_agent="slacktide-benchmark")
        stack.callback(self._client.close)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._client.version()
                break
            except ClusterError as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SlacktideError(f"the embedded API did not start: {error}") from error
                time.sleep(0.05)
        self._client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    def grow(self, containers: int) -> None:
        """Add pods until there are so many containers."""
        while len(self.pods) < containers:
            self._add(len(self.pods))

    def _add(self, number: int) -> None:
        assert self._client is not None
        be, name = bool(number % 2), f"pod-{number:04d}"
        pod = self._client.create(PODS, pod_body(name, be=be))
        container = secrets.token_hex(32)
        status = {"name": "main", "containerID": f"containerd://{container}", "ready": True, "image": "none"}
        self._client.patch(
            PODS,
            name,
            "default",
            {"status": {"phase": "Running", "containerStatuses": [{**status, "imageID": "", "restartCount": 0}]}},
            "status",
        )
        qos, uid = "BestEffort" if be else "Burstable", PodUid(pod.metadata.uid)
        limits = Limits(shares=2 if be else 102)
        self.groups.make_pod(qos, uid, limits)
        self.groups.make_container(qos, uid, ContainerId(container), limits)
        directories = self.groups.container(qos, uid, ContainerId(container)).dirs
        self._spawn([*directories, *self._in_blkio(directories[0])], active=number % 5 == 0)
        self.pods.append((qos, uid, container))

    def _in_blkio(self, like: str) -> list[str]:
        """The same cgroup under v1's blkio, which the runner does not use; nothing where there is none."""
        mount = discover().controllers.get("blkio")
        if mount is None or mount.version is not Version.V1:
            return []
        directory = os.path.join(mount.path, like[like.index(self.root) :])
        os.makedirs(directory, exist_ok=True)
        return [directory]

    def _spawn(self, directories: list[str], *, active: bool) -> None:
        assert self._spawner is not None
        assert self._spawner.stdin is not None
        assert self._spawner.stdout is not None
        self._spawner.stdin.write(f"{int(active)} {' '.join(directories)}\n")
        self._spawner.stdin.flush()
        if not self._spawner.stdout.readline().strip():
            raise SlacktideError("the process that makes the others ended")

    def _remove_groups(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        for qos, uid, container in self.pods:
            del qos
            while not self.groups.remove_container(PodUid(uid), ContainerId(container)):
                _pause(deadline)
            while not self.groups.remove_pod(PodUid(uid)):
                _pause(deadline)
        blkio = discover().controllers.get("blkio")
        for mount in {*(tree.mount for tree in self.groups.trees), *([blkio.path] if blkio else [])}:
            for path, _, _ in os.walk(os.path.join(mount, self.root), topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(path)


def pod_body(name: str, *, be: bool) -> dict[str, Any]:
    """A pod on our node, BE or LS."""
    requests = {} if be else {"cpu": "100m", "memory": "32Mi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    metadata = {"name": name, "namespace": "default", "labels": {TIER_LABEL: "be" if be else "ls"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": NODE, "containers": [container]},
    }


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SlacktideError("a cgroup of the benchmark cannot be removed")
    time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

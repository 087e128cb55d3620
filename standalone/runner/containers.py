"""Imperative: starts, signals, kills and buries containers, and reads back how they are.

One object owns the attempt records, the cgroups and the shims that are its children. It is used by one thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from slacktide.errors import KernelError, ManifestError, QuantityError, SlacktideError
from slacktide.resources import qos_class
from standalone.runner import shim
from standalone.runner.attempts import SIGKILLED, Attempt, ContainerId, PodUid, Stopping
from standalone.runner.environment import command_line, environment
from standalone.runner.groups import Groups
from standalone.runner.limits import container_limits, oom_score_adj, pod_limits
from standalone.runner.plan import Start
from standalone.runner.records import Config, CorruptRecord, ExitRecord, Store, Stored
from standalone.runner.shim import proc
from standalone.runner.shim.files import read_text
from standalone.runner.shim.groups import kill, oom_kills

_SHIM: Final = os.path.dirname(shim.__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """Where container logs go and how they rotate. `keep` counts files, the current one included."""

    directory: str
    max_bytes: int
    keep: int


class StartError(SlacktideError):
    """A container could not be prepared: reason of the waiting state, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Containers:
    """What runs on this node, below one state directory and one cgroup root (`groups` None: without cgroups).

    memory_bytes: size of the machine, which memory requests are compared with.
    """

    def __init__(
        self, store: Store, groups: Groups | None, logs: LogRules, address: str, boot_id: str, memory_bytes: int
    ) -> None:
        self._store = store
        self._groups = groups
        self._logs = logs
        self._address = address
        self._boot_id = boot_id
        self._memory_bytes = memory_bytes
        self._shims: dict[ContainerId, subprocess.Popen[bytes]] = {}
        self._known: dict[ContainerId, Stored] = {}
        self._unwritten: dict[ContainerId, Stopping] = {}
        self.corrupt: list[str] = []
        """Sentences on records that were set aside; whoever reads them clears the list."""

    def observe(self) -> tuple[Attempt, ...]:
        """All attempts as their files say now. Records that cannot be read are set aside and said in `corrupt`."""
        for container_id, process in list(self._shims.items()):
            if process.poll() is not None:
                del self._shims[container_id]
        ids = self._store.ids()
        for container_id in ids:
            stored = self._known.get(container_id)
            if stored is None or stored.attempt.live:
                self._refresh(container_id)
        self._known = {one: self._known[one] for one in ids if one in self._known}
        self._unwritten = {one: stopping for one, stopping in self._unwritten.items() if one in self._known}
        return tuple(self._with_stopping(stored.attempt) for stored in self._known.values())

    def listed(self) -> Mapping[PodUid, frozenset[ContainerId]]:
        """Cgroups that exist. Raises KernelError."""
        return self._groups.listed() if self._groups is not None else {}

    def dirs(self, container_id: ContainerId) -> list[str]:
        """Cgroup directories of a container, for a probe that joins them; empty without cgroups."""
        stored = self._known.get(container_id)
        return stored.config.dirs if stored else []

    def environment(self, container_id: ContainerId) -> tuple[dict[str, str], str]:
        """Environment and working directory of a container, for its probes."""
        stored = self._known[container_id]
        return stored.config.env, stored.config.cwd

    def start(self, start: Start) -> ContainerId:
        """Start a container. Raises StartError when it cannot be prepared; a command that is missing shows as exit."""
        container_id = ContainerId(secrets.token_hex(32))
        uid, qos = PodUid(start.pod.metadata.uid), qos_class(start.pod)
        try:
            config = self._config(start, container_id, qos)
            limits = pod_limits(start.pod), container_limits(start.container)
        except (ManifestError, QuantityError) as error:
            raise StartError("CreateContainerConfigError", str(error)) from error
        try:
            if self._groups is not None:
                self._groups.make_pod(qos, uid, limits[0])
                self._groups.make_container(qos, uid, container_id, limits[1])
            lock = self._store.create(config)
        except (KernelError, OSError) as error:
            self._undo(uid, container_id)
            raise StartError("CreateContainerError", str(error)) from error
        try:
            self._shims[container_id] = self._spawn(container_id, lock)
        except OSError as error:
            self._store.remove(container_id)
            self._undo(uid, container_id)
            raise StartError("RunContainerError", f"cannot start a process: {error}") from error
        finally:
            os.close(lock)
        return container_id

    def terminate(self, attempt: Attempt, grace_seconds: float) -> bool:
        """Send SIGTERM to the payload through its shim. False when the shim is not there to take it: try again."""
        if not self._signal_shim(attempt.id, signal.SIGTERM):
            return False
        stopping = Stopping(signalled=time.monotonic(), grace_seconds=grace_seconds)
        try:
            self._store.note_stopping(attempt.id, stopping)
        except OSError:
            # A full disk must not make the grace period begin again and again; it is only forgotten by a restart.
            self._unwritten[attempt.id] = stopping
        return True

    def kill(self, attempt: Attempt) -> None:
        """Kill everything of a container once; its shim then writes the exit record."""
        if self._groups is not None and self._groups.kill(attempt.pod_uid, attempt.id):
            return
        self._signal_shim(attempt.id, signal.SIGUSR1)

    def bury(self, attempt: Attempt) -> bool:
        """Kill what a container without a shim left and write its exit record; False when something still lives.

        Raises StartError, and forgets the attempt, when the shim never began: then the payload never ran either.
        """
        if self._groups is not None:
            if self._groups.kill(attempt.pod_uid, attempt.id):
                return False
        elif _kill_marked(attempt.id):
            return False
        stored = self._known[attempt.id]
        words = (read_text(self._store.path(attempt.id, "shim.log")) or "").strip()[-300:]
        if stored.shim is None:
            self.forget(attempt)
            raise StartError("RunContainerError", f"its supervising process (shim) never began{words and f': {words}'}")
        record = ExitRecord(
            exit_code=SIGKILLED,
            signal=int(signal.SIGKILL),
            message="the container's supervising process (shim) was gone, so what it ran was killed"
            f"{words and f'; its last words: {words}'}",
            oom_kills=oom_kills(stored.config.oom_file),
            started_at=attempt.started_at,
            started_monotonic=stored.started.started_monotonic if stored.started else None,
            finished_at=time.time(),
            finished_monotonic=time.monotonic(),
            boot_id=self._boot_id,
        )
        self._store.note_exit(attempt.id, record)
        self._refresh(attempt.id)
        return True

    def remove_container_group(self, uid: PodUid, container_id: ContainerId) -> bool:
        """Remove a container's cgroup. False: not yet, try again. Raises KernelError."""
        return self._groups is None or self._groups.remove_container(uid, container_id)

    def remove_pod_group(self, uid: PodUid) -> bool:
        """Remove a pod's cgroup. False: not yet, try again. Raises KernelError."""
        return self._groups is None or self._groups.remove_pod(uid)

    def set_burstable_shares(self, shares: int) -> None:
        """Weight of the Burstable class. Raises KernelError."""
        if self._groups is not None:
            self._groups.set_class_shares("Burstable", shares)

    def forget(self, attempt: Attempt) -> None:
        """Remove an attempt's record."""
        self._store.remove(attempt.id)
        self._known.pop(attempt.id, None)

    def remove_logs(self, namespace: str, pod: str, uid: PodUid) -> None:
        """Remove the logs of a pod that is gone."""
        shutil.rmtree(os.path.join(self._logs.directory, f"{namespace}_{pod}_{uid}"), ignore_errors=True)

    def _with_stopping(self, attempt: Attempt) -> Attempt:
        stopping = self._unwritten.get(attempt.id)
        return replace(attempt, stopping=stopping) if stopping and attempt.stopping is None else attempt

    def _refresh(self, container_id: ContainerId) -> None:
        try:
            self._known[container_id] = self._store.read(container_id)
        except FileNotFoundError:
            self._known.pop(container_id, None)
        except CorruptRecord as error:
            self._known.pop(container_id, None)
            self.corrupt.append(f"{error}; set aside as {self._store.set_aside(container_id)}")
            if self._groups is None:
                # With cgroups the plan finds a group without a record and kills it; without, nobody would know.
                _kill_marked(container_id)

    def _config(self, start: Start, container_id: ContainerId, qos: str) -> Config:
        meta, container = start.pod.metadata, start.container
        env = environment(start.pod, container, container_id, os.environ, self._address)
        log = os.path.join(f"{meta.namespace}_{meta.name}_{meta.uid}", container.name, f"{start.number}.log")
        group = self._groups.container(qos, PodUid(meta.uid), container_id) if self._groups is not None else None
        return Config(
            id=container_id,
            pod_uid=PodUid(meta.uid),
            namespace=meta.namespace,
            pod=meta.name,
            container=container.name,
            number=start.number,
            crashes=start.crashes,
            created_at=time.time(),
            argv=command_line(container, env),
            env=env,
            cwd=container.working_dir,
            dirs=group.dirs if group else [],
            kill_file=group.kill_file if group else "",
            freezer=group.freezer if group else "",
            oom_file=group.oom_file if group else "",
            oom_score_adj=oom_score_adj(start.pod, container, self._memory_bytes),
            log_path=os.path.join(self._logs.directory, log),
            log_max_bytes=self._logs.max_bytes,
            log_keep=self._logs.keep,
            wake=self._store.wake_path,
        )

    def _spawn(self, container_id: ContainerId, lock: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", _SHIM, self._store.path(container_id), str(lock)]
        with open(self._store.path(container_id, "shim.log"), "wb") as errors:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,
            )

    def _signal_shim(self, container_id: ContainerId, number: int) -> bool:
        stored = self._known.get(container_id)
        if stored is None or stored.shim is None:
            return False
        try:
            descriptor = os.pidfd_open(stored.shim.pid)
        except OSError:
            return False
        try:
            # Opened first, compared second: the descriptor cannot come to mean another process in between.
            if proc.start_ticks(stored.shim.pid) != stored.shim.start_ticks:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _undo(self, uid: PodUid, container_id: ContainerId) -> None:
        with contextlib.suppress(KernelError):
            self.remove_container_group(uid, container_id)


def _kill_marked(container_id: ContainerId) -> int:
    """Kill processes that carry a container's mark; returns how many there were."""
    strays = proc.marked(container_id)
    for pid in strays:
        kill(pid)
    return len(strays)

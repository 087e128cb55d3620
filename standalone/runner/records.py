"""The runner's memory on disk: one directory an attempt, written so that a kill -9 at any point loses nothing.

```
STATE/runner.lock                  one runner a state directory
STATE/wake                         a FIFO: shims write a byte when something happened
STATE/containers/ID/config.json    what to run and for whom (runner, before the shim starts)
                   /lock           held by the shim as long as it lives; free = no shim, and none will come
                   /shim.json /started.json /exit.json   (shim; exit.json by the runner where the shim was killed)
                   /stopping.json  the grace period has begun (runner)
STATE/corrupt/ID                   a directory that could not be read, set aside
```
The lock makes liveness free of races: the runner takes it before the shim exists and hands the descriptor over, so
neither a reused process number nor a runner killed between two steps can mislead. Monotonic times are since boot
and hold across processes; each record that has one names the boot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from slacktide.disk import try_lock
from slacktide.errors import SlacktideError, StateError
from standalone.runner.attempts import Attempt, ContainerId, Exit, Phase, PodUid, Stopping
from standalone.runner.shim.files import write_json

FORMAT: Final = 1


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What every version of config.json begins with."""

    format: int = FORMAT


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """config.json: everything that the shim needs, and what the runner wants to know again after its own death."""

    format: int = FORMAT
    id: ContainerId
    pod_uid: PodUid
    namespace: str
    pod: str
    container: str
    number: int
    crashes: int
    created_at: float
    argv: list[str]
    env: dict[str, str]
    cwd: str
    dirs: list[str]
    kill_file: str
    freezer: str
    oom_file: str
    oom_score_adj: int
    log_path: str
    log_max_bytes: int
    log_keep: int
    wake: str


class ShimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """shim.json: process number and start time of the shim."""

    pid: int
    start_ticks: int | None


class StartedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """started.json: the payload has been executed."""

    pid: int
    start_ticks: int | None
    started_at: float
    started_monotonic: float


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """exit.json: how it ended, after the log was written to its last line. Start times are None if never seen."""

    exit_code: int
    signal: int | None = None
    reason: str = ""
    message: str = ""
    oom_kills: int | None = None
    started_at: float | None = None
    started_monotonic: float | None = None
    finished_at: float
    finished_monotonic: float
    boot_id: str
    left: int = 0
    lost_lines: int = 0


class StoppingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """stopping.json: when SIGTERM was sent (monotonic) and how long the payload may take."""

    signalled: float
    grace_seconds: float
    boot_id: str


class CorruptRecord(SlacktideError):
    """A record that cannot be read."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One directory as read: the pure value and the configuration behind it."""

    attempt: Attempt
    config: Config
    shim: ShimRecord | None
    started: StartedRecord | None


Record = TypeVar("Record", bound=msgspec.Struct)


class Store:
    """Reads and writes attempt directories below one state directory.

    Raises StateError when it is locked, or has records of a newer version: set aside, their containers would be lost.
    """

    def __init__(self, state_dir: str, boot_id: str) -> None:
        self._root = os.path.join(state_dir, "containers")
        self._corrupt = os.path.join(state_dir, "corrupt")
        self._boot_id = boot_id
        self.wake_path = os.path.join(state_dir, "wake")
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            self._lock = try_lock(os.path.join(state_dir, "runner.lock"))
            if not os.path.exists(self.wake_path):
                os.mkfifo(self.wake_path, 0o600)
        except OSError as error:
            raise StateError(
                f"the state directory {state_dir} cannot be used: {error}; free space or choose another"
                " with --state-dir"
            ) from error
        if self._lock is None:
            raise StateError(f"{state_dir} is used by another runner; stop it, or give each its own --state-dir")
        self._refuse_newer()
        for name in os.listdir(self._root):
            if name.startswith(".new-"):
                shutil.rmtree(os.path.join(self._root, name), ignore_errors=True)

    def _refuse_newer(self) -> None:
        for container_id in self.ids():
            with contextlib.suppress(OSError, CorruptRecord):
                found = self._decode(container_id, "config.json", _Header)
                if found is None or found.format <= FORMAT:
                    continue
                self.close()
                raise StateError(
                    f"{self.path(container_id)} has format {found.format}, this version reads up to {FORMAT}: "
                    "use the newer Slacktide that wrote it, or another state directory"
                )

    def close(self) -> None:
        """Let go of the state directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def path(self, container_id: ContainerId, name: str = "") -> str:
        """Directory of an attempt, or a file in it."""
        return os.path.join(self._root, container_id, name) if name else os.path.join(self._root, container_id)

    def ids(self) -> list[ContainerId]:
        """Attempts that have a directory."""
        return [ContainerId(name) for name in sorted(os.listdir(self._root)) if not name.startswith(".")]

    def create(self, config: Config) -> int:
        """Write a new attempt's directory in one step; returns its lock, held, to be handed to the shim.

        Raises OSError (ENOSPC and the like).
        """
        directory = os.path.join(self._root, f".new-{config.id}")
        try:
            os.mkdir(directory, 0o700)
            lock = try_lock(os.path.join(directory, "lock"))
            assert lock is not None, "nobody else knows this directory yet"
            try:
                write_json(os.path.join(directory, "config.json"), msgspec.to_builtins(config))
                os.rename(directory, self.path(config.id))
            except OSError:
                os.close(lock)
                raise
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return lock

    def read(self, container_id: ContainerId) -> Stored:
        """An attempt as its files describe it. Raises CorruptRecord, FileNotFoundError."""
        config = self._decode(container_id, "config.json", Config)
        if config is None:
            raise CorruptRecord(f"{self.path(container_id)} has no config.json")
        if config.format != FORMAT or config.id != container_id:
            raise CorruptRecord(f"{self.path(container_id)}: format {config.format} of container {config.id}")
        # The lock first: a shim that ends between the two reads has left its exit record by then.
        alive = self._locked(container_id)
        ended = self._decode(container_id, "exit.json", ExitRecord)
        started = self._decode(container_id, "started.json", StartedRecord)
        stopping = self._decode(container_id, "stopping.json", StoppingRecord)
        phase = _phase(alive=alive, started=started, ended=ended)
        start = started.started_at if started else None
        attempt = Attempt(
            id=config.id,
            pod_uid=config.pod_uid,
            namespace=config.namespace,
            pod=config.pod,
            container=config.container,
            number=config.number,
            crashes=config.crashes,
            phase=phase,
            created_at=config.created_at,
            started_at=start,
            exit=self._exit(ended) if ended else None,
            stopping=self._stopping(stopping),
        )
        return Stored(attempt, config, self._decode(container_id, "shim.json", ShimRecord), started)

    def set_aside(self, container_id: ContainerId) -> str:
        """Move a directory that cannot be read out of the way; returns where it is now."""
        os.makedirs(self._corrupt, mode=0o700, exist_ok=True)
        target = os.path.join(self._corrupt, container_id)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(self.path(container_id), target)
        return target

    def note_stopping(self, container_id: ContainerId, stopping: Stopping) -> None:
        """Remember that the grace period has begun. Raises OSError."""
        record = StoppingRecord(
            signalled=stopping.signalled, grace_seconds=stopping.grace_seconds, boot_id=self._boot_id
        )
        write_json(self.path(container_id, "stopping.json"), msgspec.to_builtins(record))

    def note_exit(self, container_id: ContainerId, record: ExitRecord) -> None:
        """Write the exit record where the shim could not. Raises OSError."""
        write_json(self.path(container_id, "exit.json"), msgspec.to_builtins(record))

    def remove(self, container_id: ContainerId) -> None:
        """Forget an attempt."""
        shutil.rmtree(self.path(container_id), ignore_errors=True)

    def _decode(self, container_id: ContainerId, name: str, kind: type[Record]) -> Record | None:
        path = self.path(container_id, name)
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptRecord(f"{path}: {error}") from error

    def _locked(self, container_id: ContainerId) -> bool:
        try:
            lock = try_lock(self.path(container_id, "lock"), create=False)
        except FileNotFoundError:
            return False
        if lock is None:
            return True
        os.close(lock)
        return False

    def _exit(self, record: ExitRecord) -> Exit:
        same_boot = record.boot_id == self._boot_id
        ran = None if record.started_monotonic is None else record.finished_monotonic - record.started_monotonic
        return Exit(
            code=record.exit_code,
            signal=record.signal,
            reason=record.reason,
            message=record.message,
            oom_kills=record.oom_kills,
            finished_at=record.finished_at,
            finished=record.finished_monotonic if same_boot else None,
            ran_seconds=ran,
            lost_lines=record.lost_lines,
        )

    def _stopping(self, record: StoppingRecord | None) -> Stopping | None:
        if record is None or record.boot_id != self._boot_id:
            return None
        return Stopping(signalled=record.signalled, grace_seconds=record.grace_seconds)


def _phase(*, alive: bool, started: StartedRecord | None, ended: ExitRecord | None) -> Phase:
    if ended is not None:
        return Phase.EXITED
    if not alive:
        return Phase.LOST
    return Phase.RUNNING if started is not None else Phase.STARTING

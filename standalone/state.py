"""The state directory of a standalone Slacktide: where everything lies, whose it is, who holds it.

    state.json            format, instance id, version that made it
    lock                  held (flock) by the supervisor; its text names the holder
    run/                  sockets, and supervisor.json: what runs
    config/NAME.yaml      optional settings file of a component, written by people
    api/ runner/ agent/ predictor/    what each component keeps
    logs/                 output of pods
    log/                  output of the daemons

A directory of a newer format is refused: an older program cannot know what it would break.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

import slacktide
from slacktide.disk import try_lock, write_atomically
from slacktide.errors import StateError
from standalone.process import ProcessId, alive, identify

FORMAT: Final = 1
STATE_VARIABLE: Final = "SLACKTIDE_STATE"
SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket: sun_path has 108 bytes with the closing zero, unix(7)."""
MINIMUM_FREE_BYTES: Final = 64 << 20
"""Less free space than this and nothing is started: history, objects and logs would fail one after another."""

_FOLDERS: Final = ("run", "api", "runner", "agent", "predictor", "logs", "log", "config")
_BEFORE_STATE: Final = {"lock", "log"}
"""What may be there before state.json: the lock that guards its making, the log of a supervisor that starts."""
_OBSERVED: Final = ("api", "runner", "predictor", "scheduler", "agent")
_INSTANCE: Final = re.compile(r"[0-9a-f]{8}")


class StateFile(msgspec.Struct, frozen=True):
    """Content of state.json."""

    format: int
    instance: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class StateDir:
    """A state directory that was found good. `instance` (8 hex digits) tells its cgroups from another's."""

    root: str
    instance: str

    @property
    def cgroup_root(self) -> str:
        """Name of this instance's own cgroup below each controller."""
        return f"slacktide-{self.instance}"

    @property
    def agent_cgroup(self) -> str:
        """Name of the cgroup that the agent puts itself into."""
        return f"{self.cgroup_root}-agent"

    @property
    def api_socket(self) -> str:
        """Socket of the embedded API server."""
        return os.path.join(self.root, "run", "api.sock")

    @property
    def predictor_socket(self) -> str:
        """Socket of the predictor's gRPC service."""
        return os.path.join(self.root, "run", "predictor.sock")

    @property
    def drill_socket(self) -> str:
        """Socket on which the agent serves drills."""
        return os.path.join(self.root, "run", "drill.sock")

    @property
    def database(self) -> str:
        """The API server's objects."""
        return os.path.join(self.root, "api", "objects.sqlite")

    @property
    def pod_logs(self) -> str:
        """Directory of what pods print."""
        return os.path.join(self.root, "logs")

    @property
    def supervisor_file(self) -> str:
        """What the supervisor runs, as JSON."""
        return os.path.join(self.root, "run", "supervisor.json")

    @property
    def lock_file(self) -> str:
        """The file whose flock the supervisor holds."""
        return os.path.join(self.root, "lock")

    def observe_socket(self, component: str) -> str:
        """Socket on which a component serves metrics, health and status."""
        return os.path.join(self.root, "run", f"{component}.observe.sock")

    def log_file(self, component: str) -> str:
        """What a daemon prints."""
        return os.path.join(self.root, "log", f"{component}.log")

    def config_file(self, component: str) -> str:
        """Settings file that a person may put there for a component."""
        return os.path.join(self.root, "config", f"{component}.yaml")

    def folder(self, component: str) -> str:
        """Directory that belongs to one component."""
        return os.path.join(self.root, component)

    def sockets(self) -> list[str]:
        """Every socket that a running instance has."""
        return [
            self.api_socket,
            self.predictor_socket,
            self.drill_socket,
            *(self.observe_socket(name) for name in _OBSERVED),
        ]


def resolve(option: str | None, environ: Mapping[str, str], euid: int) -> str:
    """Absolute path of the state directory: option, SLACKTIDE_STATE, or the default of this user."""
    chosen = option or environ.get(STATE_VARIABLE)
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    if euid == 0:
        return "/var/lib/slacktide"
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")
    return os.path.join(base, "slacktide")


def find(root: str) -> StateDir | None:
    """The state directory at `root`, read only; None when there is none. Raises StateError when it is unusable."""
    content = _read(root)
    return None if content is None else StateDir(root, content.instance)


class Lock:
    """Exclusive hold of a state directory. Context manager; the kernel lets go when the holder dies."""

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, "lock")
        self._descriptor = -1

    def __enter__(self) -> Lock:
        """Take it. Raises StateError that names the holder."""
        try:
            descriptor = try_lock(self._path)
        except OSError as error:
            raise _unusable(self._path, error) from None
        if descriptor is None:
            with open(self._path, encoding="ascii", errors="replace") as file:
                holder = file.read(64).split()
            raise StateError(
                f"{os.path.dirname(self._path)} is in use by `slacktide up`, pid {holder[0] if holder else 'unknown'}: "
                "stop it with `slacktide down`, or choose another directory with --state"
            )
        me = identify(os.getpid())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {me.start_time if me else 0}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._descriptor, 0)
        # Unlocked by name: a child that is just being executed still has a copy of the descriptor for a moment.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def holder(root: str) -> ProcessId | None:
    """The process that holds the directory; None when nobody does. Takes no lock, so it never disturbs `up`."""
    try:
        with open(os.path.join(root, "lock"), encoding="ascii", errors="replace") as file:
            words = file.read().split()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise StateError(f"{root} cannot be read: {error.strerror}; run as the user who started Slacktide") from None
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    process = ProcessId(int(words[0]), int(words[1]))
    return process if alive(process) else None


def create(root: str) -> None:
    """Make the directory itself, private to this user. Raises StateError when that is not possible.

    Whatever is not a state directory is left alone: a typing error must not fill somebody's home with sockets. A
    path in which nothing could listen is refused before anything is made.
    """
    check_socket_paths(root)
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        entries, facts = set(os.listdir(root)), os.stat(root)
    except OSError as error:
        raise _unusable(root, error) from None
    if entries - _BEFORE_STATE and "state.json" not in entries:
        raise StateError(f"{root} is no state directory and not empty: choose an empty or new one with --state")
    if facts.st_uid != os.geteuid():
        raise StateError(
            f"{root} belongs to user {facts.st_uid}, not to you ({os.geteuid()}): choose another directory"
        )
    if stat.S_IMODE(facts.st_mode) & 0o077:
        try:
            os.chmod(root, 0o700)
        except OSError as error:
            raise _unusable(root, error) from None


def prepare(root: str) -> StateDir:
    """Everything that a supervisor needs before it starts anything, in a directory whose lock it holds.

    Raises StateError: newer format, file system full or read-only.
    """
    content = _read(root)
    check_space(root)
    try:
        if content is None:
            # Only the making of one needs it, and commands that only read have answered sooner.
            import secrets

            content = StateFile(FORMAT, secrets.token_hex(4), slacktide.__version__)
            write_atomically(os.path.join(root, "state.json"), msgspec.json.encode(content))
        for folder in _FOLDERS:
            os.makedirs(os.path.join(root, folder), mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unusable(root, error) from None
    return StateDir(root, content.instance)


def check_socket_paths(root: str) -> None:
    """Raises StateError when the longest socket path below `root` does not fit a socket address."""
    longest = max((os.fsencode(path) for path in StateDir(root, "").sockets()), key=len)
    if len(longest) > SOCKET_PATH_BYTES:
        raise StateError(
            f"{os.fsdecode(longest)} has {len(longest)} bytes, a Unix socket may have {SOCKET_PATH_BYTES}: "
            f"choose a state directory with a path at least {len(longest) - SOCKET_PATH_BYTES} bytes shorter (--state)"
        )


def check_space(root: str, minimum: int = MINIMUM_FREE_BYTES) -> None:
    """Raises StateError when the file system of `root` is read-only, full, or nearly so."""
    probe = os.path.join(root, f".probe-{os.getpid()}")
    try:
        facts = os.statvfs(root)
        free = facts.f_bavail * facts.f_frsize
        if free < minimum:
            raise StateError(
                f"the file system of {root} has {free >> 20} MiB left, {minimum >> 20} MiB are needed for objects, "
                "history and logs: free some space, or choose another directory with --state"
            )
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        raise _unusable(root, error) from None


def _read(root: str) -> StateFile | None:
    path = os.path.join(root, "state.json")
    try:
        with open(path, "rb") as file:
            content = msgspec.json.decode(file.read(), type=StateFile)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}; run as the user who started Slacktide") from None
    except msgspec.MsgspecError as error:
        raise StateError(f"{path} is damaged ({error}): move the directory away, or choose another one") from None
    if content.format > FORMAT:
        raise StateError(
            f"{path} has format {content.format}, this version ({slacktide.__version__}) knows up to {FORMAT}: "
            "use the newer Slacktide that made it, or choose another directory with --state"
        )
    if not _INSTANCE.fullmatch(content.instance):
        raise StateError(f"{path} has no instance id of 8 hex digits: move the directory away, or choose another one")
    return content


def _unusable(root: str, error: OSError) -> StateError:
    where = error.filename or root
    advice = {
        errno.ENOSPC: "the file system is full: free some space",
        errno.EDQUOT: "the disk quota of this user is used up: free some space",
        errno.EROFS: "the file system is read-only: choose another directory with --state",
        errno.EACCES: "no permission: run as root, or choose a directory of your own with --state",
        errno.EPERM: "no permission: run as root, or choose a directory of your own with --state",
        errno.ENOTDIR: "a part of the path is a file: choose another directory with --state",
        errno.EEXIST: "it exists and is no directory: choose another one with --state",
    }.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
    return StateError(f"{where} cannot be used as state directory: {advice}")

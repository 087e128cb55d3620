"""Mount an emulated machine in a process of its own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib.util
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.emulators.resctrl.control import Control
from tests.emulators.resctrl.profiles import PROFILES, Profile
from tests.patience import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[3]
START_SECONDS = 20 * PATIENCE
STOP_SECONDS = 5 * PATIENCE
DEVICE = "/dev/fuse"
BINDING = "mfusepy"
_DETACH = 2
_CAP_SYS_ADMIN = 21
_LIBC = ctypes.CDLL(None, use_errno=True)


def _effective_capabilities() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))


@functools.cache
def missing() -> str | None:
    """Why nothing can be mounted here, None where it can."""
    if not _effective_capabilities() >> _CAP_SYS_ADMIN & 1:
        return "mounting needs CAP_SYS_ADMIN"
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{DEVICE} cannot be opened: {error.strerror}"
    if importlib.util.find_spec(BINDING) is None:
        return f"the package {BINDING} is not installed"
    found = subprocess.run(
        [sys.executable, "-c", f"import {BINDING}"], capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    return None if found.returncode == 0 else f"libfuse does not load: {found.stderr.strip().splitlines()[-1]}"


def unmount(path: str, lazy: bool = True) -> None:
    """Raises OSError EBUSY where something is open and `lazy` is not set; nothing mounted there is no error."""
    if _LIBC.umount2(os.fsencode(path), _DETACH if lazy else 0) != 0:
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOENT}:
            raise OSError(code, os.strerror(code), path)


def is_mounted(path: str) -> bool:
    """Whether something is mounted at `path`."""
    wanted = os.fsencode(path).replace(b"\\", rb"\134").replace(b" ", rb"\040").replace(b"\t", rb"\011")
    with open("/proc/self/mounts", "rb") as file:
        return any(line.split(b" ")[1] == wanted for line in file)


class Handle:
    """A mounted machine."""

    def __init__(
        self,
        profile: Profile,
        directory: Path,
        options: Iterable[str] | None = None,
        everyone: bool = False,
        read_only: bool = False,
    ) -> None:
        self.profile = profile
        self.path = str(directory / "resctrl")
        """The mount point, in place of /sys/fs/resctrl."""
        self.mounts_file = str(directory / "mounts")
        """A text as of /proc/mounts, where the file system is called resctrl and has its options."""
        self._directory = directory
        self._options = options
        self._flags = [*(["--everyone"] if everyone else []), *(["--read-only"] if read_only else [])]
        self._access = "ro" if read_only else "rw"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        os.makedirs(self.path, exist_ok=True)
        self.mount()

    @property
    def control(self) -> Control:
        """What the test makes the machine do; see control.Commands. Raises RuntimeError when unmounted."""
        if self._control is None:
            raise RuntimeError(f"{self.path} is not mounted")
        return self._control

    @property
    def log(self) -> str:
        """What the emulator's process wrote."""
        return (self._directory / "emulator.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The process that serves the file system. Raises RuntimeError when unmounted."""
        if self._process is None:
            raise RuntimeError(f"{self.path} is not mounted")
        return self._process.pid

    def mount(self) -> None:
        """Mount, without any group. Raises OSError EBUSY when mounted, RuntimeError with the log when it fails."""
        if self._process is not None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.path)
        file = self._directory / "profile"
        file.write_bytes(pickle.dumps(self.profile))
        ours, theirs = socket.socketpair()
        ours.settimeout(START_SECONDS)
        command = [sys.executable, "-m", "tests.emulators.resctrl", self.path, "--profile-file", str(file)]
        command += ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        if self._options is not None:
            command += ["--options", ",".join(self._options)]
        command += self._flags
        with theirs, open(self._directory / "emulator.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
            )
        self._control = Control(ours)
        try:
            self._control.receive()
            self.tell_mounts()
        except (OSError, ValueError) as error:
            self.close()
            raise RuntimeError(f"the emulator did not mount {self.path}: {error}; its log: {self.log}") from error

    def tell_mounts(self) -> None:
        """Write the mounts file anew: after a remount with other options."""
        lines = ["proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0", "sysfs /sys sysfs ro,relatime 0 0"]
        if self._control is not None:
            lines.append(
                f"resctrl {self.path} resctrl {','.join([self._access, 'relatime', *self.control.options()])} 0 0"
            )
        Path(self.mounts_file).write_text("".join(f"{line}\n" for line in lines))

    def unmount(self, lazy: bool = False) -> None:
        """Unmount as an administrator would. Raises OSError EBUSY where something is open and `lazy` is not set."""
        unmount(self.path, lazy)
        self.close()
        self.tell_mounts()

    def close(self) -> None:
        """Unmount, whatever is open, and end the process."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                unmount(self.path)
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            with contextlib.suppress(OSError):
                unmount(self.path)


@contextlib.contextmanager
def mounted(
    profile: str | Profile,
    directory: Path,
    options: Iterable[str] | None = None,
    everyone: bool = False,
    read_only: bool = False,
) -> Iterator[Handle]:
    """A machine below `directory`: its mount point, its mounts file and its log. Always unmounts.

    `options`: mount options instead of the profile's. `everyone`: other users may enter, as modes let them.
    `read_only`: as a container without rights sees it. The process that serves it notices when this one dies, and
    unmounts by itself. Raises RuntimeError where mounting fails, and at the end where the emulator itself went wrong.
    """
    handle = Handle(PROFILES[profile] if isinstance(profile, str) else profile, directory, options, everyone, read_only)
    try:
        yield handle
    finally:
        handle.close()
    if "Traceback" in handle.log:
        raise RuntimeError(f"the emulator at {handle.path} has a fault of its own; its log: {handle.log}")

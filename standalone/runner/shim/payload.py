"""Fork and exec of the payload: from the fork on, the child may only fail loudly into the report pipe."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

NOT_FOUND = 127
NOT_EXECUTABLE = 126
CANNOT_START = 128


def become_subreaper() -> None:
    """Orphans below this process become its children, also after a double fork. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def set_oom_score_adj(value: int) -> None:
    """Whom the OOM killer prefers; without the right to lower it the value of the parent stays."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(value))


def join(dirs: list[str]) -> None:
    """Move this process into cgroups. Raises OSError with the file that refused.

    0 means the writer itself, in whatever pid namespace it is.
    """
    for directory in dirs:
        path = f"{directory}/cgroup.procs"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error


class Report(Exception):
    """Why the payload did not start: exit code, reason as in a container status, sentence for people."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(message)


def start(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    dirs: list[str],
    oom_score_adj: int,
    stdout: int,
    stderr: int,
) -> tuple[int, int]:
    """Fork the payload; returns its pid and the read end of the report pipe.

    The pipe gives end of file when the exec worked, else one JSON object {code, reason, message}. The caller must
    hold all signals blocked: they stay pending for the child until its handlers are the default ones again. The child
    joins the cgroups itself, before exec, so that no instruction of the payload runs outside them; joining a frozen
    cgroup stops it there, which is why the caller must not wait for the pipe.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(CANNOT_START)
        set_oom_score_adj(oom_score_adj)
        _become(argv, env, cwd, dirs, stdout, stderr)
    except Report as report:
        _tell(writer, report.code, report.reason, report.message)
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the parent's stack
        _tell(writer, CANNOT_START, "ContainerCannotRun", f"{type(error).__name__}: {error}")
    os._exit(CANNOT_START)


def _tell(writer: int, code: int, reason: str, message: str) -> None:
    os.write(writer, json.dumps({"code": code, "reason": reason, "message": message[:1500]}).encode())
    os._exit(code)


def _become(argv: list[str], env: dict[str, str], cwd: str, dirs: list[str], stdout: int, stderr: int) -> None:
    os.setsid()
    try:
        join(dirs)
    except OSError as error:
        raise Report(
            CANNOT_START, "ContainerCannotRun", f"cannot join the cgroup {error.filename}: {error.strerror}"
        ) from error
    os.umask(0o022)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    try:
        os.chdir(cwd or "/")
    except OSError as error:
        raise Report(
            CANNOT_START, "StartError", f"cannot enter the working directory {cwd}: {error.strerror}"
        ) from error
    for number in signal.valid_signals():
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    execute(argv, env)


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Replace this process by the command; raises Report when no way leads there."""
    if not argv or not argv[0]:
        raise Report(NOT_FOUND, "StartError", "the container names no command, and images are not run here")
    command = argv[0]
    search = env.get("PATH", os.defpath)
    candidates = [command] if "/" in command else [os.path.join(part or ".", command) for part in search.split(":")]
    refused: OSError | None = None
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)  # noqa: S606 - running a command is the purpose
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                refused = refused or OSError(error.errno, error.strerror, candidate)
            elif os.path.exists(candidate):
                refused = refused or OSError(error.errno, "its interpreter was not found", candidate)
    if refused is not None:
        raise Report(NOT_EXECUTABLE, "ContainerCannotRun", f"cannot run {refused.filename}: {refused.strerror}")
    where = "" if "/" in command else f" on PATH {search}"
    raise Report(NOT_FOUND, "StartError", f"command {command!r} not found{where}")

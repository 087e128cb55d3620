"""Run a command that ends when its supervisor does: `python tether.py SUPERVISOR-PID COMMAND...`.

PR_SET_PDEATHSIG survives execve, so this process asks for SIGTERM at the death of its parent and becomes the
command: same pid, no process in between. Done here and not in a preexec hook, because code between fork and exec
of a threaded program may deadlock. Started by path with as little of Python as possible, hence no imports of ours.
Source: prctl(2); the signal follows the parent *thread*, so the supervisor starts its children from its main thread.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Tie this process to its parent, then become the command. Returns only on failure (exit code)."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.stderr.write(f"cannot be tied to the supervisor: {os.strerror(ctypes.get_errno())}\n")
        return 1
    if os.getppid() != parent:
        sys.stderr.write(f"supervisor {parent} ended before {command[:3]} could start\n")
        return 1
    # A SIGHUP before the daemon can handle it must not end it: it is about to read its settings anyway.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        os.execv(command[0], command)  # noqa: S606 - becoming the command without a shell is the purpose
    except OSError as error:
        sys.stderr.write(f"cannot execute {command[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main())

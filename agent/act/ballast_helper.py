"""The ballast process: one busy idle-class child a CPU, stopped until told. `ballast_helper.py TASKS-FILE CPU...`

Started by path with as little of Python as possible, hence no imports of ours. Children are forked before anything
grows, so that they share nearly all memory. Each puts itself into the cgroup, pins itself, takes SCHED_IDLE, asks to
be killed with its parent, and stops; only then its line `CPU PID` is printed. A child that cannot be made is a line
`CPU - REASON`. After the last one comes an empty line.

Then each line on stdin is the list of CPUs whose children shall run (`0,3`; empty: none). End of file ends it all,
also when the agent was killed: the kernel closes the pipe. The cgroup is removed at the end.
Source: prctl(2), sched(7), waitpid(2).
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
REMOVE_TRIES = 100
REMOVE_PAUSE_SECONDS = 0.02


def main() -> int:
    """Serve until stdin ends; returns the exit status."""
    tasks, cpus = sys.argv[1], [int(word) for word in sys.argv[2:]]
    # Ends by end of file alone, so that a signal meant for the agent's terminal leaves no half of it behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    children: dict[int, int] = {}
    try:
        for cpu in cpus:
            pid = fork_child(tasks, cpu)
            if pid:
                children[cpu] = pid
        say("")
        serve(children)
    finally:
        for pid in children.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        remove(os.path.dirname(tasks))
    return 0


def remove(directory: str) -> None:
    """The cgroup, which is busy for a moment after its last process was reaped."""
    for _ in range(REMOVE_TRIES):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(REMOVE_PAUSE_SECONDS)
        else:
            return


def say(line: str) -> None:
    """One line for the agent, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def fork_child(tasks: str, cpu: int) -> int:
    """A stopped child for `cpu`; says so. 0 when it could not be made."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            become_ballast(tasks, cpu, parent)
        except OSError as error:
            sys.stderr.write(f"{error.strerror}\n")
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        say(f"{cpu} - it ended before it was ready")
        return 0
    say(f"{cpu} {pid}")
    return pid


def become_ballast(tasks: str, cpu: int, parent: int) -> None:
    """Burn idle time on `cpu` until killed. Raises OSError when it cannot be made harmless first."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "it cannot be tied to its parent")
    if os.getppid() != parent:
        return
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {cpu})
    descriptor = os.open(tasks, os.O_WRONLY)
    os.write(descriptor, b"0")
    for number in (0, 1, descriptor):
        os.close(number)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        pass


def serve(children: dict[int, int]) -> None:
    """Run and stop children as told until stdin ends."""
    running: set[int] = set()
    for line in sys.stdin:
        wanted = {int(word) for word in line.strip().split(",") if word} & children.keys()
        for cpu in running ^ wanted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(children[cpu], signal.SIGCONT if cpu in wanted else signal.SIGSTOP)
        running = wanted


if __name__ == "__main__":
    sys.exit(main())

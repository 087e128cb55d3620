"""One container from start to exit record: a single thread around one selector.

Files in the container's directory: config.json (read), shim.json, started.json, exit.json (written), lock (held by an
inherited descriptor for as long as this process lives).
Signals: SIGTERM is passed on to the payload, SIGUSR1 kills the whole container.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time

from standalone.runner.shim import groups, payload, proc
from standalone.runner.shim.files import Reserved, write_json
from standalone.runner.shim.logfile import Lines, LogFile, stamp

KILL_SECONDS = 10.0
DRAIN_SECONDS = 2.0
_OWN_SCORE = -998
"""The shim is small, and its death takes the container along: the OOM killer shall look elsewhere first."""
_HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)


class Shim:
    """State of one container's shim."""

    def __init__(self, directory: str, config: dict[str, object]) -> None:
        self._directory = directory
        self._config = config
        self._dirs = [str(path) for path in _list(config["dirs"])]
        self._target = groups.Target(self._dirs, str(config["kill_file"]), str(config["freezer"]))
        self._log = LogFile(str(config["log_path"]), int(str(config["log_max_bytes"])), int(str(config["log_keep"])))
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, Lines] = {}
        self._pid = 0
        self._status: int | None = None
        self._report = b""
        self._report_fd = -1
        self._report_ended = False
        self._started: dict[str, object] = {}
        self._started_file = Reserved(os.path.join(directory, "started.json"))
        self._exit_file = Reserved(os.path.join(directory, "exit.json"))

    def run(self) -> int:
        """Start the payload, serve it until it ends, leave its exit record. Returns the shim's own exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        wake_reader = self._take_signals()
        payload.become_subreaper()
        payload.set_oom_score_adj(_OWN_SCORE)
        me = {"pid": os.getpid(), "start_ticks": proc.start_ticks(os.getpid())}
        write_json(os.path.join(self._directory, "shim.json"), me)
        self._report_fd = self._start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._selector.register(wake_reader, selectors.EVENT_READ, self._signalled)
        self._selector.register(self._report_fd, selectors.EVENT_READ, self._reported)
        while self._status is None:
            self._turn(None)
        self._finish()
        return 0

    def _take_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        for number in _HANDLED:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return reader

    def _start(self) -> int:
        ends = []
        for stream in ("stdout", "stderr"):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self._streams[reader] = Lines(stream)
            self._selector.register(reader, selectors.EVENT_READ, self._read)
            ends.append(writer)
        argv = [str(word) for word in _list(self._config["argv"])]
        env = {str(key): str(value) for key, value in _dict(self._config["env"]).items()}
        score = int(str(self._config["oom_score_adj"]))
        self._pid, report = payload.start(argv, env, str(self._config["cwd"]), self._dirs, score, *ends)
        for end in ends:
            os.close(end)
        self._started = {
            "pid": self._pid,
            "start_ticks": proc.start_ticks(self._pid),
            "started_at": time.time(),
            "started_monotonic": time.monotonic(),
        }
        return report

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data(key.fd)

    def _signalled(self, reader: int) -> None:
        for number in os.read(reader, 512):
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGTERM:
                self._pass_on(signal.SIGTERM)
            elif number == signal.SIGUSR1:
                # The payload by number as well: it may not have joined its cgroup yet.
                self._pass_on(signal.SIGKILL)
                self._kill_pass()

    def _pass_on(self, number: int) -> None:
        if self._status is not None:
            return
        # The payload is our child and not reaped yet, so its number cannot belong to anybody else.
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def _reported(self, reader: int) -> None:
        data = os.read(reader, 4096)
        self._report += data
        if data:
            return
        self._selector.unregister(reader)
        os.close(reader)
        self._report_ended = True
        if not self._report:
            # The exit record repeats the start; where this write fails the container counts as starting until then.
            with contextlib.suppress(OSError):
                self._started_file.write(self._started)
            self._wake()

    def _read(self, reader: int) -> None:
        try:
            data = os.read(reader, 1 << 16)
        except BlockingIOError:
            return
        lines, now = self._streams[reader], stamp(time.time_ns())
        if data:
            self._log.write(lines.feed(data, now))
            return
        self._log.write(lines.end(now))
        self._selector.unregister(reader)
        os.close(reader)
        del self._streams[reader]

    def _kill_pass(self) -> int:
        if self._dirs:
            return groups.kill_pass(self._target)
        strays = set(proc.descendants(os.getpid())) | (set(proc.marked(str(self._config["id"]))) - {os.getpid()})
        for pid in strays:
            groups.kill(pid)
        return len(strays)

    def _finish(self) -> None:
        left = self._kill_rest()
        end = time.monotonic() + DRAIN_SECONDS
        while self._streams and time.monotonic() < end:
            self._turn(0.05)
        for lines in self._streams.values():
            self._log.write(lines.end(stamp(time.time_ns())))
        while not self._report_ended:
            self._reported(self._report_fd)
        self._log.close()
        record = self._record(left)
        while True:
            try:
                self._exit_file.write(record)
                break
            except FileNotFoundError:
                # The directory was set aside or removed: nobody will read it.
                break
            except OSError:
                time.sleep(1.0)
        self._wake()

    def _kill_rest(self) -> int:
        end = time.monotonic() + KILL_SECONDS
        pause = 0.002
        while left := self._kill_pass():
            # A payload's child may block on a full pipe only while we read; keep reading while it dies.
            self._turn(pause)
            self._reap()
            pause = min(pause * 2, 0.1)
            if time.monotonic() >= end:
                return left
        return 0

    def _record(self, left: int) -> dict[str, object]:
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        number = -code if code < 0 else None
        report: dict[str, object] = json.loads(self._report) if self._report else {}
        kills = groups.oom_kills(str(self._config["oom_file"]))
        return {
            "exit_code": 128 + number if number else code,
            "signal": number,
            "reason": report.get("reason", ""),
            "message": report.get("message", ""),
            "oom_kills": kills,
            **{key: self._started[key] for key in ("started_at", "started_monotonic")},
            "finished_at": time.time(),
            "finished_monotonic": time.monotonic(),
            "boot_id": proc.boot_id(),
            "left": left,
            "lost_lines": self._log.lost,
        }

    def _wake(self) -> None:
        """Tell a runner that listens; one that does not will look by itself."""
        try:
            descriptor = os.open(str(self._config["wake"]), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, b".")
            finally:
                os.close(descriptor)
        except OSError:
            return


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _dict(value: object) -> dict[object, object]:
    assert isinstance(value, dict)
    return value


def main(arguments: list[str]) -> int:
    """`DIRECTORY [LOCK_FD]`: run that container. `--join DIR... -- COMMAND...`: run a probe inside its cgroups."""
    if arguments[:1] == ["--join"]:
        return _join(arguments[1:])
    if len(arguments) not in {1, 2}:
        print("usage: shim DIRECTORY [LOCK_FD] | shim --join DIR... -- COMMAND...", file=sys.stderr)  # noqa: T201 - own help
        return 2
    if len(arguments) == 2:
        os.set_inheritable(int(arguments[1]), False)
    with open(os.path.join(arguments[0], "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return Shim(arguments[0], config).run()


def _join(arguments: list[str]) -> int:
    split = arguments.index("--")
    try:
        payload.join(arguments[:split])
        payload.execute(arguments[split + 1 :], dict(os.environ))
    except (OSError, payload.Report) as error:
        print(error, file=sys.stderr)  # noqa: T201 - becomes the message of a failed probe
    return payload.CANNOT_START

"""The other side of the emulator: what a test makes the machine do. JSON lines over a socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.hardware import Demand
from tests.emulators.resctrl.model import Fault, Model


class Commands:
    """Every command by name, on a model. Arguments are plain JSON."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises ResctrlError, or ValueError for a command that is not there."""
        command: Callable[..., Any] | None = None if name.startswith("_") else getattr(self, name, None)
        if command is None or name == "run":
            raise ValueError(f"no command {name!r}; there are {', '.join(command_names())}")
        return command(**arguments)

    def demand(
        self,
        group: str,
        bytes_per_second: float,
        footprint_bytes: float,
        local_fraction: float = 0.8,
        domain: int | None = None,
    ) -> None:
        """The group asks for so much in one domain or in each; its masks and bandwidth hold it."""
        wanted = Demand(bytes_per_second, footprint_bytes, local_fraction)
        self._model.demand(group, wanted, domain)

    def rates(
        self,
        group: str,
        bytes_per_second: float,
        occupancy_bytes: float,
        local_fraction: float = 0.8,
        domain: int | None = None,
    ) -> None:
        """The group's counters follow these figures as they are."""
        wanted = Demand(bytes_per_second, occupancy_bytes, local_fraction, exact=True)
        self._model.demand(group, wanted, domain)

    def from_cpu_time(self, group: str) -> None:
        """The group's demand follows its threads' CPU time again."""
        self._model.demand(group, None)

    def count(self, group: str, domain: int, event: str, value: float) -> None:
        """Set a counter of the group itself, in bytes."""
        self._model.count(group, domain, event, value)

    def say(self, group: str, domain: int, event: str, text: str, times: int | None = None) -> None:
        """An event of the group reads as `text` (Unavailable, Error, Unassigned), so many times or always."""
        self._model.say(group, domain, event, text, times)

    def fail(self, path: str, operation: str, code: int, times: int | None = None) -> None:
        """An operation (open, read, write, mkdir, rmdir) on `path` fails with `code`, so many times or always."""
        self._model.faults.append(Fault(path, operation, code, times))

    def heal(self) -> None:
        """No operation fails on purpose any more."""
        self._model.faults.clear()

    def slow(self, path: str, seconds: float) -> None:
        """Every read and write of `path` takes so long; 0 ends that, for those that wait as well.

        Who waits cannot be killed meanwhile, as with a kernel that does not answer.
        """
        self._model.delay(path, seconds)

    def vanish_during_read(self, path: str, after_bytes: int) -> None:
        """The next read of `path` gets so many bytes, then its group is gone."""
        self._model.cuts[path.strip("/")] = after_bytes

    def gone(self, code: int) -> None:
        """What open files of removed groups answer: ENODEV or ENOENT."""
        self._model.gone_code = code

    def remount(self, options: list[str] | None = None) -> None:
        """Someone unmounted resctrl and mounted it again: all groups are gone. Paths stay as they are."""
        self._model.remount(options)

    def reset(self) -> None:
        """As at the start: mounted anew, no script, time that passes by itself."""
        self._model.reset()

    def domain_offline(self, domain: int) -> None:
        """The last CPU of a cache domain went away."""
        self._model.take_domain(domain)

    def plug(self, cpu: int, online: bool) -> None:
        """A CPU of the machine goes or comes back."""
        with self._model.lock:
            self._model.mounted.plug(cpu, online)

    def freeze(self) -> None:
        """From here on the hardware's time only moves by advance()."""
        with self._model.lock:
            self._model.tick()
            self._model.clock.freeze()

    def advance(self, seconds: float) -> None:
        """Let frozen time pass, in steps that the cache model can follow."""
        with self._model.lock:
            left = seconds
            while left > 0:
                step = min(left, 0.1)
                self._model.clock.advance(step)
                self._model.tick()
                left -= step

    def options(self) -> list[str]:
        """Mount options as /proc/mounts shows them."""
        return list(self._model.mount_options)

    def groups(self) -> dict[str, dict[str, Any]]:
        """Every group by path: closid, rmid, mode and threads."""
        with self._model.lock:
            mount = self._model.mounted
            mount.tasks.refresh()
            return {
                (f"{group.parent.name}/mon_groups/{group.name}" if group.parent else group.name).strip("/"): {
                    "closid": group.closid,
                    "rmid": group.rmid,
                    "mode": group.mode,
                    "tasks": mount.tasks.of(group),
                }
                for group in mount.groups()
            }

    def limbo(self) -> list[int]:
        """Monitoring ids that wait for their cache lines to go."""
        with self._model.lock:
            self._model.tick()
            return list(self._model.mounted.rmids.waiting)

    def proc_text(self, tid: int) -> str:
        """What /proc/TID/cpu_resctrl_groups would say."""
        with self._model.lock:
            return self._model.mounted.proc_text(tid)


def command_names() -> list[str]:
    """Names of all commands."""
    return sorted(name for name in vars(Commands) if not name.startswith("_") and name != "run")


def answer(commands: Commands, line: str) -> str:
    """One request to one reply."""
    try:
        request = json.loads(line)
        return json.dumps({"result": commands.run(request["command"], request.get("arguments", {}))})
    except ResctrlError as error:
        return json.dumps({"errno": error.errno})
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def serve_connection(commands: Commands, connection: socket.socket, greeting: Iterable[str] = ()) -> None:
    """Answer until the other side goes."""
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        try:
            for line in greeting:
                print(line, file=stream, flush=True)
            for line in stream:
                print(answer(commands, line), file=stream, flush=True)
        except (ConnectionError, BrokenPipeError):
            return


def listen(commands: Commands, path: str) -> socket.socket:
    """Take connections at `path`, each in a thread of its own. Raises OSError where it cannot be bound."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    os.chmod(path, 0o600)
    server.listen()

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve_connection, args=(commands, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


class Control:
    """A test's end of the socket: every method of Commands, by name and keyword arguments."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rw", encoding="utf-8")
        self._lock = threading.Lock()

    def receive(self) -> dict[str, Any]:
        """The next line. Raises ConnectionError when the emulator is gone, TimeoutError when it is silent."""
        line = self._stream.readline()
        if not line:
            raise ConnectionError("the emulator is gone")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """Hang up; the emulator unmounts itself then."""
        with contextlib.suppress(OSError):
            self._stream.close()
        self._connection.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(**arguments: Any) -> Any:
            """Raises ResctrlError where the machine refuses, ValueError where the request makes no sense."""
            with self._lock:
                print(json.dumps({"command": name, "arguments": arguments}), file=self._stream, flush=True)
                reply = self.receive()
            if "errno" in reply:
                raise ResctrlError(reply["errno"])
            if "error" in reply:
                raise ValueError(reply["error"])
            return reply["result"]

        return call

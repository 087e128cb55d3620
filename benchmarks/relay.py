"""Counts what goes over the connections to one port or Unix socket: a relay in a process of its own.

`python -m benchmarks.relay HOST:PORT` (or `unix:/path`) prints the port of loopback that it listens on, then, for each
line that it reads from its input, the bytes that clients sent and received so far. It ends with its input. Programs
that ask no Unix sockets, as Prometheus, ask a daemon through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slacktide.sockets import Listen, parse_listen

ROOT: Final = Path(__file__).resolve().parents[1]

_PIECE: Final = 1 << 16
_ENDS: Final = (OSError, asyncio.IncompleteReadError)


class Relay:
    """A running relay as its user sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    def total(self) -> int:
        """Bytes in both directions since the start."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return sum(int(word) for word in self._line().split())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def relay(target: int | str) -> Iterator[Relay]:
    """A relay to a port of loopback, or to `unix:/path`, that is gone afterwards."""
    address = f"127.0.0.1:{target}" if isinstance(target, int) else target
    command = [sys.executable, "-m", "benchmarks.relay", address]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Relay(process)
    finally:
        process.kill()
        process.communicate()


class _Counter:
    def __init__(self, target: Listen) -> None:
        self._target = target
        self.sent = 0
        self.received = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._copy(reader, far_writer, sent=True)),
            asyncio.create_task(self._copy(far_reader, writer, sent=False)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, far_writer):
            end.close()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.path:
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.host, self._target.port)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, sent: bool) -> None:
        with contextlib.suppress(*_ENDS):
            while piece := await reader.read(_PIECE):
                if sent:
                    self.sent += len(piece)
                else:
                    self.received += len(piece)
                writer.write(piece)
                await writer.drain()


async def _run(target: Listen) -> None:
    counter = _Counter(target)
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(counter.sent, counter.received, flush=True)
    server.close()


def main() -> int:
    """Relay until the input ends."""
    asyncio.run(_run(parse_listen(sys.argv[1], "address")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

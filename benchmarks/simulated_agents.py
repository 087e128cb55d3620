"""Many agents in one process, for the benchmark of the predictor: streams as an agent's, cheap to make.

Each agent sends a sample every period with ten LS pods in it, keeps what is not acknowledged, and sends it again on
its next stream. The constant part of its messages is made once. Prints one JSON line when it is told to end (SIGTERM).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import ctypes
import dataclasses
import random
import signal
import sys
import time
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from benchmarks.token_reviews import SERVER_NAME, token_of
from slacktide.transport.client import authorization
from slacktide.v1 import usage_pb2

METHOD: Final = "/slacktide.v1.UsageService/Report"
PODS: Final = 10
CORES: Final = 32
MEMORY: Final = 128 << 30

_RECONNECT_SECONDS: Final = 0.3
_DRAIN_SECONDS: Final = 60.0
_LATENCIES: Final = 200_000
_PARENT_DEATH: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class Outcome(msgspec.Struct):
    """What one process of agents saw. `acknowledged` is the highest sequence of each node."""

    sent: int
    samples: int
    waiting: int
    acknowledged: dict[str, int]
    ack_seconds: list[float]


@dataclasses.dataclass(slots=True)
class Agent:
    """One agent. `waiting` is what was not acknowledged: sequence, end of the window, when it was made."""

    node: str
    boot: str
    constant: bytes
    head: bytes
    sequence: int = 0
    acknowledged: int = 0
    waiting: collections.deque[tuple[int, int, float]] = dataclasses.field(default_factory=collections.deque)


def node_name(index: int) -> str:
    """Name of a simulated node."""
    return f"node-{index:05}"


def pod_uid(index: int, pod: int) -> str:
    """Uid of one of its pods."""
    return f"{index:08x}-{pod:04x}-4000-8000-{index * PODS + pod:012x}"


def pod_name(pod: int) -> str:
    """Name of a pod, without its node: it is alike on all of them."""
    return f"service-{pod}-7c9b5d8f6d-x2x4z"


def agent(index: int, boot: str) -> Agent:
    """A node with ten LS pods, and some best effort."""
    usage = usage_pb2.Usage(
        cpu_millis_mean=300, cpu_millis_max=450, memory_bytes_mean=2 << 30, memory_bytes_max=(2 << 30) + index
    )
    requested = usage_pb2.Resources(cpu_millis=1000, memory_bytes=4 << 30)
    constant = usage_pb2.Sample(
        window_millis=10_000,
        capacity=usage_pb2.Resources(cpu_millis=1000 * CORES, memory_bytes=MEMORY),
        be=usage_pb2.Usage(
            cpu_millis_mean=800, cpu_millis_max=900, memory_bytes_mean=4 << 30, memory_bytes_max=5 << 30
        ),
        system=usage_pb2.Usage(
            cpu_millis_mean=400, cpu_millis_max=700, memory_bytes_mean=3 << 30, memory_bytes_max=3 << 30
        ),
        ls_requested=usage_pb2.Resources(cpu_millis=1000 * PODS, memory_bytes=(4 << 30) * PODS),
        be_requested=usage_pb2.Resources(cpu_millis=2000, memory_bytes=8 << 30),
        pods=[
            usage_pb2.PodUsage(
                namespace="shop",
                name=pod_name(pod),
                uid=pod_uid(index, pod),
                tier=usage_pb2.TIER_LS,
                usage=usage,
                requested=requested,
            )
            for pod in range(PODS)
        ],
        ls_pressure=0.01,
    ).SerializeToString()
    head = usage_pb2.ReportRequest(node=node_name(index), boot_id=boot).SerializeToString()
    return Agent(node_name(index), boot, constant, head)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(agent: Agent, samples: list[tuple[int, int, float]]) -> bytes:
    """A request. Parts of a message that follow one another merge, so the constant part is made once."""
    parts = [agent.head]
    for sequence, end, _ in samples:
        cpu = 3000 + sequence * 37 % 500
        varying = usage_pb2.Sample(
            sequence=sequence,
            end_unix_millis=end,
            ls=usage_pb2.Usage(
                cpu_millis_mean=cpu, cpu_millis_max=cpu + 500, memory_bytes_mean=20 << 30, memory_bytes_max=20 << 30
            ),
        ).SerializeToString()
        parts += [b"\x1a", _varint(len(agent.constant) + len(varying)), agent.constant, varying]
    parts += [b"\x20", _varint(int(time.time() * 1000))]
    return b"".join(parts)


class Agents:
    """All agents of this process."""

    def __init__(
        self, address: str, first: int, count: int, channels: int, period: float, credentials: Any = None
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._period = period
        self._agents = [agent(index, f"boot-{index}") for index in range(first, first + count)]
        self._channels = channels
        self._stop = asyncio.Event()
        self._latencies: list[float] = []
        self._sent = 0

    async def run(self) -> Outcome:
        """Until SIGTERM, then until everything is acknowledged or a minute has passed."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        channels = [self._channel() for _ in range(self._channels)]
        calls: list[Any] = [
            channel.stream_stream(METHOD, response_deserializer=usage_pb2.ReportResponse.FromString)
            for channel in channels
        ]
        tasks = [
            asyncio.create_task(self._live(agent, calls[index % len(calls)]))
            for index, agent in enumerate(self._agents)
        ]
        await self._stop.wait()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(agent.waiting for agent in self._agents) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in channels:
            await channel.close()
        return Outcome(
            self._sent,
            sum(agent.sequence for agent in self._agents),
            sum(len(agent.waiting) for agent in self._agents),
            {agent.node: agent.acknowledged for agent in self._agents},
            self._latencies,
        )

    def _channel(self) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 500),
        ]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=options)
        options.append(("grpc.ssl_target_name_override", SERVER_NAME))
        return grpc.aio.secure_channel(self._address, self._credentials, options=options)

    async def _live(self, agent: Agent, report: Any) -> None:
        # Spread over the period, as agents that started at different times are.
        due = time.monotonic() + random.random() * self._period
        shown = None if self._credentials is None else (authorization(token_of(agent.node)),)
        while True:
            call = report(metadata=shown)
            reading = asyncio.create_task(self._read(agent, call))
            try:
                while time.monotonic() >= due and not self._stop.is_set():
                    # What an agent measures while the predictor is away.
                    self._sample(agent, due)
                    due += self._period
                if agent.waiting:
                    await self._send(agent, call, list(agent.waiting))
                while not reading.done():
                    # After the end nothing is measured any more: a stream only waits for its last answers.
                    left = None if self._stop.is_set() else max(0.0, due - time.monotonic())
                    await asyncio.wait({reading}, timeout=left)
                    if time.monotonic() >= due and not self._stop.is_set():
                        sample = self._sample(agent, due)
                        due += self._period
                        await self._send(agent, call, [sample])
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The call has ended, as the second of them says of a write; what waits is said again on the next.
                pass
            finally:
                reading.cancel()
                call.cancel()
            await asyncio.sleep(_RECONNECT_SECONDS * (0.5 + random.random()))

    def _sample(self, agent: Agent, due: float) -> tuple[int, int, float]:
        agent.sequence += 1
        sample = (agent.sequence, int((time.time() - time.monotonic() + due) * 1000), time.monotonic())
        agent.waiting.append(sample)
        return sample

    async def _send(self, agent: Agent, call: Any, samples: list[tuple[int, int, float]]) -> None:
        self._sent += len(samples)
        await call.write(message(agent, samples))

    async def _read(self, agent: Agent, call: Any) -> None:
        try:
            async for response in call:
                now = time.monotonic()
                agent.acknowledged = max(agent.acknowledged, response.durable_sequence)
                while agent.waiting and agent.waiting[0][0] <= response.durable_sequence:
                    made = agent.waiting.popleft()[2]
                    if len(self._latencies) < _LATENCIES:
                        self._latencies.append(now - made)
        except grpc.aio.AioRpcError:
            # The predictor was killed, or sends the agent elsewhere: the next stream says again what it lacks.
            return


def main() -> int:
    """Run until SIGTERM."""
    # They end with the benchmark or test that started them, also when that is killed.
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated_agents", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--period", type=float, default=10.0)
    parser.add_argument("--ca-file", help="over TLS, to a server that this signed; each agent shows its token")
    chosen = parser.parse_args()
    credentials = None
    if chosen.ca_file:
        with open(chosen.ca_file, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())

    async def run() -> Outcome:
        numbers = chosen.first, chosen.count, chosen.channels, chosen.period
        return await Agents(chosen.address, *numbers, credentials).run()

    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run())) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

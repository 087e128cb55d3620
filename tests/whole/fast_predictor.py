"""The predictor as it is, but for its clock, which runs `SCALE` times as fast: its hour is a minute.

`python -m tests.whole.fast_predictor BEGIN ...` is a program; `BEGIN` is the monotonic second at which both clocks said
the same, so that agents who know it can have the same time. Everything after it goes to the predictor, which knows one
model more: tests/whole/stuck_model.py.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time

import grpc

from predictor.clock import Instant
from slacktide.v1 import usage_pb2, usage_pb2_grpc
from tests.patience import PATIENCE
from tests.whole.quick_rules import SCALE

CORES = 1024
CALM_MILLIS = 100
CALL_SECONDS = 20.0 * PATIENCE


class FastClock:
    """Both clocks of a daemon, that much faster since `begin` (monotonic seconds); it was half past some hour then.

    Forecasts are judged once an hour: those of the first full hour come soon.
    """

    def __init__(self, begin):
        self._begin = begin
        self._wall = (time.time() - (time.monotonic() - begin)) // 3600 * 3600 + 1800

    def now(self):
        passed = (time.monotonic() - self._begin) * SCALE
        return Instant(self._begin + passed, self._wall + passed)


class FastAgents:
    """Agents of some nodes by that clock: each says once a second what it saw in the minute that has passed.

    `use` is what LS uses of each node, in millicores; a node that is in `silent` says nothing.
    """

    def __init__(self, socket, begin, nodes):
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._report = usage_pb2_grpc.UsageServiceStub(self._channel).Report
        self._clock = FastClock(begin)
        self._sequence = itertools.count(1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.nodes = nodes
        self.silent = set()
        self.use = lambda: CALM_MILLIS
        self._thread.start()

    def close(self):
        self._stop.set()
        self._thread.join(CALL_SECONDS)
        self._channel.close()

    def _run(self):
        while not self._stop.wait(1.0):
            sequence, use = next(self._sequence), self.use()
            for node in self.nodes:
                if node not in self.silent:
                    # What is lost while the predictor is away stays so: an agent's spool is not what is looked at.
                    with contextlib.suppress(grpc.RpcError):
                        list(self._report(iter([self._request(node, sequence, use)]), timeout=CALL_SECONDS))

    def _request(self, node, sequence, use):
        now = round(self._clock.now().wall * 1000)
        usage = usage_pb2.Usage(
            cpu_millis_mean=use, cpu_millis_max=use, memory_bytes_mean=1 << 30, memory_bytes_max=1 << 30
        )
        sample = usage_pb2.Sample(
            sequence=sequence,
            end_unix_millis=now,
            window_millis=1000 * SCALE,
            capacity=usage_pb2.Resources(cpu_millis=1000 * CORES, memory_bytes=64 << 30),
            ls=usage,
            be=usage_pb2.Usage(cpu_millis_mean=0, cpu_millis_max=0, memory_bytes_mean=0, memory_bytes_max=0),
            system=usage_pb2.Usage(cpu_millis_mean=0, cpu_millis_max=0, memory_bytes_mean=0, memory_bytes_max=0),
            ls_requested=usage_pb2.Resources(cpu_millis=1000, memory_bytes=1 << 30),
            be_requested=usage_pb2.Resources(cpu_millis=0, memory_bytes=0),
        )
        return usage_pb2.ReportRequest(node=node, boot_id=f"boot-{node}", samples=[sample], sent_unix_millis=now)


if __name__ == "__main__":
    from predictor.main import main
    from tests.whole import stuck_model

    stuck_model.register()
    sys.exit(main(sys.argv[2:], FastClock(float(sys.argv[1]))))

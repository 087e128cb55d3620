"""Drills of a running Slacktide, asked for and followed as any caller would."""

from __future__ import annotations

import contextlib
import threading

import grpc

from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc
from tests.patience import PATIENCE
from tests.whole.support import wait_until

CALL_SECONDS = 20.0 * PATIENCE


class Followed:
    """A drill and all that was said of it so far; read by a thread of its own."""

    def __init__(self, stub, drill_id, up):
        self.id = drill_id
        self.messages = []
        self._up = up
        self._stub = stub
        self._call = stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(grpc.RpcError):
            for message in self._call:
                self.messages.append(message)

    @property
    def phases(self):
        """Each phase once, in the order in which they came."""
        names = [pb.DrillPhase.Name(message.phase).removeprefix("DRILL_PHASE_") for message in self.messages]
        return list(dict.fromkeys(names))

    def went(self, phases):
        """Whether it went through these in this order, to the last; what was over when it was looked at is left out."""
        seen = self.phases
        return seen == [phase for phase in phases if phase in seen] and seen[-1] == phases[-1]

    @property
    def steps(self):
        """Steps of the timeline so far."""
        return [moment.step for message in self.messages for moment in message.moments]

    def reaches_step(self, step):
        """Wait for it."""
        wait_until(lambda: step in self.steps, self._up)

    def reaches(self, phase):
        """Wait for it."""
        wait_until(lambda: phase in self.phases, self._up)

    def result(self):
        """The last message, once there is one."""
        wait_until(lambda: not self._thread.is_alive(), self._up, seconds=90.0)
        assert self.messages[-1].HasField("result"), self.messages
        return self.messages[-1]

    def abort(self):
        """Ask for its end."""
        return self._stub.AbortDrill(pb.AbortDrillRequest(drill_id=self.id), timeout=CALL_SECONDS).message

    def close(self):
        """Stop following."""
        self._call.cancel()
        self._thread.join(CALL_SECONDS)


@contextlib.contextmanager
def drill(up, seconds, *, pressure=pb.PRESSURE_KIND_SIGNAL, **fields):
    """A followed drill, ended when left."""
    request = pb.StartDrillRequest(
        pressure=pressure,
        duration_millis=int(seconds * 1000),
        reason="test",
        **fields,
    )
    with grpc.insecure_channel(f"unix:{up.state.drill_socket}") as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        started = stub.StartDrill(request, timeout=CALL_SECONDS, wait_for_ready=True)
        followed = Followed(stub, started.drill_id, up)
        try:
            yield followed
        finally:
            with contextlib.suppress(grpc.RpcError):
                followed.abort()
            followed.close()

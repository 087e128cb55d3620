"""All that drills of this node need, wired: the board, who writes and tells of them, the server that takes callers.

Without `drill.listen` there is a board that nobody can start a drill on, and nothing runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from agent.act.drill_clerk import DrillClerk, Streams
from agent.act.drill_load import DrillLoad
from agent.act.drill_records import DrillRecords
from agent.act.guard import Guard
from agent.drill import KEEPS_SAMPLES, Drill, Kind
from agent.drill_board import DrillBoard
from agent.drill_callers import reviews_by
from agent.drill_metrics import DrillMetrics
from agent.drill_plan import Standing
from agent.drill_server import DrillServer
from agent.drill_service import DrillService
from agent.loop import Turn
from agent.policy.base import Plan
from agent.settings import AgentSettings
from slacktide.cluster import Client, EventRecorder
from slacktide.observe import Daemon, get_logger

_LOG: Final = get_logger("agent.drill")
_STOP_SECONDS: Final = 2.0


class Drilling:
    """`board` is for the control thread. `guard` is None where nothing is written, `load` where none was asked for."""

    def __init__(
        self,
        daemon: Daemon[AgentSettings],
        node: str,
        client: Client,
        recorder: EventRecorder,
        load: DrillLoad | None,
        guard: Guard | None,
        streams: Streams,
    ) -> None:
        self._daemon = daemon
        self._load = load
        self._guard = guard
        self._turn: Turn | None = None
        settings = daemon.settings
        records = DrillRecords(settings.state_dir)
        if records.problem:
            _LOG.warning("earlier drills are not known", problem=records.problem)
        self.clerk = DrillClerk(node, client, recorder, records, streams)
        """Looks beyond the node."""
        self._metrics = DrillMetrics(daemon.registry)
        self.board = DrillBoard(time.monotonic, self._news)
        self._service = DrillService(
            node,
            self.board,
            lambda: daemon.settings,
            self._standing,
            lambda: self.clerk.records(self.board.current()),
            reviews_by(client, settings.drill.audience, node),
        )
        self._server: DrillServer | None = None

    def start(self) -> None:
        """Take callers where an address was given. Raises SettingsError where drills cannot be served."""
        if not self._daemon.settings.drill.listen:
            return
        self.clerk.start()
        self._server = DrillServer(self._daemon.settings.drill, self._service)
        self._server.start()

    def refuse(self) -> None:
        """Take no callers any more."""
        if self._server is not None:
            self._server.stop()

    def stop(self) -> None:
        """Write down what is left."""
        if not self.clerk.stop(_STOP_SECONDS):
            _LOG.warning("the record of the last drill could not be written in time")

    def look(self, turn: Turn) -> None:
        """What the last turn saw, for those who want to drill."""
        self._turn = turn

    def lifted(self) -> int:
        """How often the watchdog lifted hard limits."""
        return self._guard.fired if self._guard is not None else 0

    def counters(self) -> Mapping[str, int]:
        """Totals since start."""
        return {"drills_refused": self._service.refused, **self.board.counters}

    def _standing(self, kind: Kind) -> Standing:
        """How the node stands for a drill; asks the API where that matters."""
        turn, load, guard = self._turn, self._load, self._guard
        why_no_load = "drill.load is off on this node" if load is None else load.why_not()
        return Standing(
            snapshot=turn.snapshot if turn is not None else None,
            plan=turn.plan if turn is not None else Plan(),
            held=turn.held if turn is not None else "",
            watchdog=guard.why_not() if guard is not None else "it was not started",
            load=why_no_load if kind is Kind.LOAD else "",
            reports=bool(self._daemon.settings.predictor),
            outside=self.clerk.look() if kind in KEEPS_SAMPLES else None,
        )

    def _news(self, before: Drill | None, after: Drill) -> None:
        """A drill began, went on or ended."""
        self._metrics.news(before, after)
        self.clerk.news(before, after)

"""The order that an agent gets, and how kinds and phases are called on the wire and here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cli.drillkinds import Kind
from slacktide.v1 import drill_pb2 as pb

DEAD_MAN_SECONDS: Final = 10.0
"""A drill whose caller has vanished ends after this long."""

_ON_THE_WIRE: Final = {
    Kind.PRESSURE: pb.PRESSURE_KIND_SIGNAL,
    Kind.MEMORY: pb.PRESSURE_KIND_MEMORY,
    Kind.BANDWIDTH: pb.PRESSURE_KIND_BANDWIDTH,
    Kind.AGENT_LOSS: pb.PRESSURE_KIND_AGENT_LOSS,
    Kind.PREDICTOR_LOSS: pb.PRESSURE_KIND_PREDICTOR_LOSS,
    Kind.STALE: pb.PRESSURE_KIND_STALE,
}
_FROM_THE_WIRE: Final = {value: kind for kind, value in _ON_THE_WIRE.items()} | {
    pb.PRESSURE_KIND_LOAD: Kind.PRESSURE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One drill. `load_percent` of the CPU that is idle is burned for real; None: the signal alone is raised."""

    node: str
    kind: Kind
    duration_seconds: float
    load_percent: int | None = None
    victims_max: int = 0
    dry_run: bool = False
    reason: str = ""

    @property
    def evicts(self) -> bool:
        """Whether pods may really go."""
        return self.victims_max > 0 and not self.dry_run

    def request(self) -> pb.StartDrillRequest:
        """What the agent is asked."""
        return pb.StartDrillRequest(
            node=self.node,
            pressure=pb.PRESSURE_KIND_LOAD if self.load_percent else _ON_THE_WIRE[self.kind],
            intensity_percent=self.load_percent or 0,
            duration_millis=round(self.duration_seconds * 1000),
            dry_run=self.dry_run,
            victim_budget=self.victims_max,
            reason=self.reason,
            dead_man_millis=round(DEAD_MAN_SECONDS * 1000),
        )


def kind_name(pressure: int) -> str:
    """Name of a kind as an agent says it; a number for one that this command does not know."""
    kind = _FROM_THE_WIRE.get(pb.PressureKind.ValueType(pressure))
    return str(pressure) if kind is None else kind.value


def phase_name(phase: int) -> str:
    """Name of a phase as an agent says it, in lower case; a number for one that this command does not know."""
    try:
        return pb.DrillPhase.Name(pb.DrillPhase.ValueType(phase)).removeprefix("DRILL_PHASE_").lower()
    except ValueError:
        return str(phase)

"""What is known about a model's residuals before a fleet has any of its own: shipped sketches.

`predictor/training` fills them with out-of-fold residuals of public traces: forecasts of models that had not seen the
series. One sketch for each resource, model, horizon, group of history length, level that the model was asked at, and
trace, because traces differ: a fleet of the operator's is most likely like one of them, and which one shows soon.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from predictor.models import weights
from predictor.sketch import Packed, Sketch
from slacktide.errors import SlacktideError

FORMAT: Final = 1
_FILE: Final = "prior.json"

YOUNG_SOURCES: Final = frozenset({"planetlab"})
"""Traces whose nodes are young by nature. Where they say something of young nodes, the others do not count: cutting the
history of a machine that has run for months makes no newcomer of it."""

Resource = Literal["cpu", "memory"]


class PriorError(SlacktideError):
    """A prior file that cannot be used."""


class Group(enum.StrEnum):
    """How much history a node had when the forecast was made."""

    DAY = "day"
    """Under one day."""
    WEEK = "week"
    """From one day to under seven."""
    LONG = "long"
    """Seven days or more."""


class Entry(msgspec.Struct, frozen=True):
    """Residuals of one model in one setting.

    level    the risk that the model was asked at: residuals of a model that states risk belong to that risk alone.
             0 for a model whose answer does not depend on it.
    source   name of the trace.
    """

    resource: Resource
    model: str
    horizon_seconds: Annotated[float, Meta(gt=0)]
    group: Group
    level: Annotated[float, Meta(ge=0, lt=1)]
    source: str
    sketch: Packed


class _File(msgspec.Struct, frozen=True):
    version: int
    made_by: str
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Prior:
    """The entries of one resource."""

    entries: tuple[Entry, ...]

    def levels(self, model: str, horizon_seconds: float) -> tuple[float, ...]:
        """Levels that sketches of `model` exist for at the horizon that stands for `horizon_seconds`, rising."""
        return tuple(sorted({entry.level for entry in self._standing_for(model, horizon_seconds)}))

    def sketches(self, model: str, horizon_seconds: float, group: Group, level: float) -> dict[str, Sketch]:
        """Sketch of each source, {} when nothing is known.

        A horizon without sketches takes those of the next longer one, or else of the longest: a peak over longer
        is never lower.
        """
        found = {
            entry.source: Sketch.unpack(entry.sketch)
            for entry in self._standing_for(model, horizon_seconds)
            if entry.group == group and entry.level == level
        }
        young = {source: sketch for source, sketch in found.items() if source in YOUNG_SOURCES}
        return young if group == Group.DAY and young else found

    def _standing_for(self, model: str, horizon_seconds: float) -> list[Entry]:
        of_model = [entry for entry in self.entries if entry.model == model]
        horizons = {entry.horizon_seconds for entry in of_model}
        longer = [known for known in horizons if known >= horizon_seconds]
        standing = min(longer) if longer else max(horizons, default=math.nan)
        return [entry for entry in of_model if entry.horizon_seconds == standing]


def encode(entries: Iterable[Entry], made_by: str) -> bytes:
    """Bytes of a prior file; `made_by` names the script and what it read. The same entries give the same bytes.

    One entry a line, so that a change can be reviewed.
    """
    ordered = sorted(entries, key=lambda e: (e.resource, e.model, e.horizon_seconds, e.group, e.level, e.source))
    lines = b",\n".join(msgspec.json.encode(entry) for entry in ordered)
    head = b'{"version":%d,"made_by":%s,"entries":[\n' % (FORMAT, msgspec.json.encode(made_by))
    return head + lines + b"\n]}\n"


def decode(raw: bytes) -> dict[Resource, Prior]:
    """Priors by resource. Raises PriorError when the file is damaged or of another version."""
    try:
        file = msgspec.json.decode(raw, type=_File)
        for entry in file.entries:
            Sketch.unpack(entry.sketch)
    except (msgspec.MsgspecError, ValueError) as error:
        raise PriorError(f"prior of residuals cannot be read: {error}; make it anew with predictor.training") from error
    if file.version != FORMAT:
        raise PriorError(f"prior of residuals has version {file.version}, this build reads {FORMAT}; make it anew")
    by_resource: dict[Resource, list[Entry]] = {}
    for entry in file.entries:
        by_resource.setdefault(entry.resource, []).append(entry)
    return {resource: Prior(tuple(entries)) for resource, entries in by_resource.items()}


def shipped(resource: Resource) -> Prior | None:
    """The prior in the package, None when it has none for `resource`. Raises PriorError when it is damaged."""
    file = weights.directory().joinpath(_FILE)
    if not file.is_file():
        return None
    return decode(file.read_bytes()).get(resource)

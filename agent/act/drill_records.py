"""The last drills of this node, in a small file that outlives the agent.

One that had not ended when the agent did is a failed one. A file that cannot be read is set aside: no drill is worth
an agent that does not start.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any, Final

from google.protobuf import json_format

from agent.drill_wire import ENDED
from slacktide.disk import write_atomically
from slacktide.v1 import drill_pb2 as pb

FILE_NAME: Final = "drills.json"
MOST: Final = 20
_VERSION: Final = 1
_LARGEST_BYTES: Final = 4 << 20


class DrillRecords:
    """Thread-safe. `problem` is what was wrong with the file, empty when nothing was; `lost` counts failed writes."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, FILE_NAME)
        self._lock = threading.Lock()
        self.problem = ""
        self.lost = 0
        self._records = self._load()

    def _load(self) -> list[pb.DrillRecord]:
        try:
            with open(self._path, "rb") as file:
                records = _decoded(file.read(_LARGEST_BYTES + 1))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            self._set_aside(str(error))
            return []
        for record in records:
            if record.phase not in ENDED:
                record.phase, record.message = pb.DRILL_PHASE_FAILED, "the agent ended"
        return records[:MOST]

    def _set_aside(self, why: str) -> None:
        aside = f"{self._path}.bad"
        self.problem = f"{self._path} cannot be used ({why}); set aside as {aside}"
        with contextlib.suppress(OSError):
            os.replace(self._path, aside)

    def all(self) -> list[pb.DrillRecord]:
        """The drills, newest first."""
        with self._lock:
            return list(self._records)

    def put(self, record: pb.DrillRecord) -> None:
        """Add a drill, or replace what was known of it. A disk that refuses is counted; memory still has it."""
        with self._lock:
            kept = [one for one in self._records if one.drill_id != record.drill_id]
            self._records = [record, *kept][:MOST]
            try:
                write_atomically(self._path, _encoded(self._records))
            except OSError:
                self.lost += 1


def _encoded(records: list[pb.DrillRecord]) -> bytes:
    drills = [json_format.MessageToDict(record, preserving_proto_field_name=True) for record in records]
    return json.dumps({"version": _VERSION, "drills": drills}, indent=1).encode()


def _decoded(data: bytes) -> list[pb.DrillRecord]:
    """Raises ValueError for anything but what `_encoded` makes."""
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"it is larger than {_LARGEST_BYTES} bytes")
    found: Any = json.loads(data)
    if not isinstance(found, dict) or found.get("version") != _VERSION or not isinstance(found.get("drills"), list):
        raise ValueError("it is no list of drills of version 1")
    try:
        return [json_format.ParseDict(one, pb.DrillRecord(), ignore_unknown_fields=True) for one in found["drills"]]
    except (json_format.ParseError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no list of drills: {error}") from error

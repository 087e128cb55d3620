"""Which column means what. Names are compared without case, blanks, `-` and `_`."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from predictor.backtest.trace import BadInput

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("time", "timestamp", "ts", "datetime", "date", "at", "epoch", "epoch_seconds", "time_seconds", "time_ms",
             "timestamp_ms", "epoch_ms", "slot_start", "start", "start_time"),
    "series": ("series", "series_id", "pod", "pod_name", "vm", "vm_id", "container", "job", "job_id", "task", "task_id",
               "workload", "id", "uid", "name", "instance"),
    "node": ("node", "node_name", "node_id", "host", "hostname", "machine", "machine_id", "server"),
    "usage": ("usage", "use", "used", "value", "cpu", "cpu_usage", "usage_cores", "cpu_cores", "cores", "cpu_used",
              "memory", "memory_usage", "memory_used", "mem"),
    "request": ("request", "requests", "requested", "cpu_request", "request_cores", "memory_request", "limit"),
}  # fmt: skip
"""Names by meaning; of several that a file has, the first listed counts."""

DAY: Final = "day"
"""Of a wide file: the day that a row is about, 1 being the first."""

_NUMBER: Final = re.compile(r"\d+(\.0*)?$")
_LEAST_EPOCH: Final = 1e8
_INDEX_STEP: Final = 10
_UNITS: Final = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))


@dataclasses.dataclass(frozen=True, slots=True)
class Wide:
    """Columns of a wide file: ids name the row, slots are (column, its number as it stands) in the file's order."""

    ids: tuple[str, ...]
    slots: tuple[tuple[str, float], ...]

    @property
    def counted(self) -> bool:
        """Whether slots are counted from the start instead of dated."""
        numbers = sorted(number for _, number in self.slots)
        steps = [later - earlier for earlier, later in itertools.pairwise(numbers)]
        return numbers[0] < _LEAST_EPOCH and min(steps, default=1) < _INDEX_STEP


def plain(name: str) -> str:
    """A column's name as it is compared."""
    return re.sub(r"[\s_-]", "", name).casefold()


def find(names: Sequence[str], meaning: str) -> str | None:
    """The column that means `meaning`, None when there is none."""
    by_plain = {plain(name): name for name in reversed(names)}
    return next((by_plain[plain(alias)] for alias in ALIASES[meaning] if plain(alias) in by_plain), None)


def wide(names: Sequence[str]) -> Wide | None:
    """The columns of a wide file; None when these are no such columns."""
    slots = [(name, number) for name in names if (number := _slot_number(name)) is not None]
    if len(slots) < 2:
        return None
    dated = {name for name, _ in slots}
    return Wide(tuple(name for name in names if name not in dated), tuple(slots))


def long(path: str, names: Sequence[str]) -> dict[str, str]:
    """Column by meaning, for those that are there. Raises BadInput when time or usage is not."""
    found = {meaning: column for meaning in ALIASES if (column := find(names, meaning)) is not None}
    for meaning in ("time", "usage"):
        if meaning not in found:
            raise BadInput(
                f"{path}: no column for the {meaning}; it has {_listed(names)}. Name it {meaning!r} (or one of"
                f" {', '.join(ALIASES[meaning][1:])}). A wide file has a column a slot, named by number or epoch second"
            )
    return found


def micros_per_unit(number: float) -> int:
    """Microseconds that one unit of a time such as `number` lasts: seconds, ms or us since the epoch, by its size.

    0 for nanoseconds, which are less.
    """
    return next((micros for most, micros in _UNITS if abs(number) < most), 0)


def to_micros(number: float) -> int:
    """Microseconds since the epoch of a time in seconds, milli-, micro- or nanoseconds."""
    unit = micros_per_unit(number)
    return round(number * unit) if unit else round(number / 1000)


def _slot_number(name: str) -> float | None:
    if _NUMBER.match(name.strip()):
        return float(name)
    if re.match(r"\d{4}-\d\d-\d\d", name):
        try:
            moment = datetime.fromisoformat(name)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"

"""Pods that come and go, from a table: time,name,namespace,cpu,memory,batch-cpu,batch-memory,lifetime_seconds."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_plugins.dump import DumpError
from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements
from slacktide.settings import ResourceNames

COLUMNS: Final = (
    "time",
    "name",
    "namespace",
    "cpu",
    "memory",
    "batch-cpu",
    "batch-memory",
    "lifetime_seconds",
    "priority",
)
"""`time` (seconds since the start) and `name` must be there; an empty cell asks for nothing, or lives for ever."""

_NEEDED: Final = ("time", "name")
_MOST_TOLD: Final = 10


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that appears `at` seconds after the start, and ends so long after it was placed; None: never."""

    at: float
    pod: Pod
    lifetime_seconds: float | None


def read_arrivals(path: str, scheduler_name: str, batch: ResourceNames) -> list[Arrival]:
    """All rows, in the order of their times. Raises DumpError that names file and rows of what cannot be used."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            _check_header(rows.fieldnames, path)
            return _arrivals(rows, path, scheduler_name, batch)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DumpError(f"{path}: no table of comma-separated values: {error}") from error


def _check_header(names: object, path: str) -> None:
    found = list(names) if isinstance(names, list | tuple) else []
    problems = [f"column {name} is missing" for name in _NEEDED if name not in found]
    problems += [f"column {name!r} is not known" for name in found if name not in COLUMNS]
    if problems:
        raise DumpError(f"{path}: {'; '.join(problems)}; the first line names the columns: {','.join(COLUMNS)}")


def _arrivals(rows: csv.DictReader[str], path: str, scheduler_name: str, batch: ResourceNames) -> list[Arrival]:
    found: dict[tuple[str, str], Arrival] = {}
    problems: list[str] = []
    for row in rows:
        where = f"line {rows.line_num}"
        try:
            arrival = _arrival(row, scheduler_name, batch)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        metadata = arrival.pod.metadata
        key = (metadata.namespace, metadata.name)
        if key in found:
            problems.append(f"{where}: pod {'/'.join(key)} is there already")
        found[key] = arrival
    if problems:
        more = f"\n  and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise DumpError(f"{path}: " + "\n  ".join(problems[:_MOST_TOLD]) + more)
    return sorted(found.values(), key=lambda arrival: arrival.at)


def _arrival(row: Mapping[str | None, str | list[str] | None], scheduler_name: str, batch: ResourceNames) -> Arrival:
    """Raises ValueError that says which cell is wrong."""
    if None in row or None in row.values():
        raise ValueError("has more or fewer cells than the first line names columns")
    cells = {str(name): str(text).strip() for name, text in row.items()}
    if not cells["name"]:
        raise ValueError("name is empty")
    at, lifetime = _seconds(cells, "time"), _seconds(cells, "lifetime_seconds")
    if at is None:
        raise ValueError("time is empty")
    name, namespace = cells["name"], cells.get("namespace") or "default"
    container = Container(name="main", resources=ResourceRequirements(requests=dict(_requests(cells, batch))))
    spec = PodSpec(scheduler_name=scheduler_name, containers=[container], priority=_priority(cells))
    metadata = ObjectMeta(name=name, namespace=namespace, uid=f"arrival:{namespace}/{name}")
    return Arrival(at, Pod(metadata=metadata, spec=spec, status=PodStatus(phase="Pending")), lifetime)


def _requests(cells: Mapping[str, str], batch: ResourceNames) -> Iterator[tuple[str, str]]:
    names = {"cpu": "cpu", "memory": "memory", "batch-cpu": batch.cpu, "batch-memory": batch.memory}
    for column, resource in names.items():
        text = cells.get(column, "")
        if not text:
            continue
        try:
            amount = quantity.batch_cpu(text) if column == "batch-cpu" else quantity.parse(text).value()
        except QuantityError as error:
            raise ValueError(f"{column}: {error}") from error
        if amount < 0:
            raise ValueError(f"{column} is {text}; it must be 0 or more")
        yield resource, text


def _seconds(cells: Mapping[str, str], column: str) -> float | None:
    text = cells.get(column, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < math.inf):
        raise ValueError(f"{column} is {text!r}; it must be a number of seconds, 0 or more")
    return seconds


def _priority(cells: Mapping[str, str]) -> int | None:
    text = cells.get("priority", "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ValueError(f"priority is {text!r}; it must be a whole number") from None

"""Where drills are remembered: a ConfigMap of the cluster, or files in the state directory of this machine.

What is kept is bounded in number and size: the oldest go first, and before them what cannot be read. The node's own
memory stands in for a record that is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

import msgspec

from cli.drillfacts import needed
from cli.drillreport import Moment, Report
from cli.exits import CommandError
from slacktide.cluster.errors import AlreadyExists, Conflict, NotFound
from slacktide.disk import write_atomically

if TYPE_CHECKING:
    from slacktide.cluster import Client

CONFIG_MAP: Final = "slacktide-drills"
KEPT: Final = 50
RECORD_BYTES: Final = 16 * 1024
ALL_BYTES: Final = 512 * 1024
"""A ConfigMap may have 1 MiB."""

_TEXTS: Final = ("node", "kind", "caller", "phase", "message", "reason", "restored")
_TEXT_CHARACTERS: Final = 200
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_TRIES: Final = 10
_WAIT_SECONDS: Final = 0.05


class Records(Protocol):
    """A memory of drills."""

    def put(self, report: Report) -> None:
        """Keep it, in place of what was kept under its id. Raises CommandError."""
        ...  # a protocol member has no body

    def all(self) -> list[Report]:
        """Those that can be read, newest first. Raises CommandError."""
        ...  # a protocol member has no body


def encoded(report: Report) -> str:
    """JSON of at most RECORD_BYTES: the middle of a timeline that is too long goes, then victims, then long texts."""
    while len(text := msgspec.json.encode(report)) > RECORD_BYTES:
        if len(report.timeline) > 2:
            report = msgspec.structs.replace(report, timeline=_thinned(report.timeline))
        elif report.victims:
            report = msgspec.structs.replace(report, victims=report.victims[: len(report.victims) // 2])
        else:
            # Few and short enough to fit however they are escaped.
            texts = {name: str(getattr(report, name))[:_TEXT_CHARACTERS] for name in _TEXTS}
            misses = tuple(one[:_TEXT_CHARACTERS] for one in report.misses[:3])
            report = msgspec.structs.replace(report, timeline=(), targets=(), refusals=(), misses=misses, **texts)
    return text.decode()


def _thinned(timeline: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """The first and the last quarter."""
    kept = len(timeline) // 4
    gap = msgspec.structs.replace(timeline[kept], step="...", detail="lines left out here")
    return (*timeline[:kept], gap, *timeline[len(timeline) - kept :])


def decoded(text: str | bytes) -> Report | None:
    """A record; None for what is none, or of a version that this command does not know."""
    with contextlib.suppress(msgspec.MsgspecError):
        report = msgspec.json.decode(text, type=Report)
        return report if report.version == 1 and _ID.fullmatch(report.id) else None
    return None


def bounded(data: Mapping[str, str]) -> dict[str, str]:
    """The newest records that fit; `data` is JSON by key. Pure."""
    read = {key: decoded(text) for key, text in data.items()}
    newest = sorted(data, key=lambda key: -_started(read[key]))
    kept: dict[str, str] = {}
    left = ALL_BYTES
    for key in newest[:KEPT]:
        left -= len(data[key].encode())
        if left < 0:
            break
        kept[key] = data[key]
    return kept


def _started(report: Report | None) -> int:
    return -1 if report is None or report.started_unix_millis is None else report.started_unix_millis


def _newest_first(found: list[Report]) -> list[Report]:
    return sorted(found, key=lambda one: -_started(one))


def check_id(drill_id: str) -> str:
    """The id, if it can be one. Raises CommandError."""
    if not _ID.fullmatch(drill_id):
        raise CommandError(f"{drill_id!r} is no id of a drill: see `slacktide drill list`")
    return drill_id


class ClusterRecords:
    """Records in the ConfigMap `slacktide-drills`, one key a drill; several callers may write at once."""

    def __init__(self, client: Client, namespace: str, wait: Callable[[float], object] = time.sleep) -> None:
        self._client = client
        self._where = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._namespace = namespace
        self._wait = wait

    def put(self, report: Report) -> None:
        """See `Records`."""
        key, text = check_id(report.id), encoded(report)
        with needed(f"to keep the record of the drill in ConfigMap {self._namespace}/{CONFIG_MAP}"):
            for attempt in range(_TRIES):
                try:
                    self._write(key, text)
                except (Conflict, AlreadyExists, NotFound):
                    # Written, made or taken away by somebody else meanwhile.
                    self._wait(_WAIT_SECONDS * 2 ** min(attempt, 5) * (0.5 + random.random()))
                else:
                    return
        raise CommandError(f"ConfigMap {self._namespace}/{CONFIG_MAP} is written by others all the time")

    def all(self) -> list[Report]:
        """See `Records`."""
        with needed("to read the records of drills"):
            data = self._read().get("data") or {}
        return _newest_first([one for text in data.values() if (one := decoded(text)) is not None])

    def _read(self) -> dict[str, Any]:
        """The ConfigMap as it is; empty where there is none."""
        try:
            found: dict[str, Any] = json.loads(self._client.request("GET", f"{self._where}/{CONFIG_MAP}"))
            return found
        except NotFound:
            return {}

    def _write(self, key: str, text: str) -> None:
        now = self._read()
        body = now or {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}}
        body = {**body, "data": bounded({**(now.get("data") or {}), key: text})}
        method, path = ("PUT", f"{self._where}/{CONFIG_MAP}") if now else ("POST", self._where)
        # With the resourceVersion that was read, so that nobody's record is lost.
        self._client.request(method, path, body=msgspec.json.encode(body))


class FileRecords:
    """Records in `directory`, a file each; made when the first one is kept."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def put(self, report: Report) -> None:
        """See `Records`."""
        path = os.path.join(self._directory, f"{check_id(report.id)}.json")
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            write_atomically(path, encoded(report).encode())
            texts = self._texts()
            for name in texts.keys() - bounded(texts).keys():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, name))
        except OSError as error:
            raise CommandError(f"the record of the drill cannot be kept in {path}: {error.strerror}") from None

    def all(self) -> list[Report]:
        """See `Records`."""
        try:
            texts = self._texts()
        except OSError as error:
            raise CommandError(f"records in {self._directory} cannot be read: {error.strerror}") from None
        return _newest_first([one for text in texts.values() if (one := decoded(text)) is not None])

    def _texts(self) -> dict[str, str]:
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if name.endswith(".json"):
                    with open(os.path.join(self._directory, name), encoding="utf-8", errors="replace") as file:
                        found[name] = file.read(2 * RECORD_BYTES)
        return found


def merged(*sources: list[Report]) -> list[Report]:
    """Each drill once, newest first: the first source that knows its end wins, else the first that knows it. Pure."""
    found: dict[str, Report] = {}
    for source in sources:
        for report in source:
            known = found.get(report.id)
            if known is None:
                found[report.id] = report
            elif not known.ended and report.ended:
                found[report.id] = completed(known, report)
    return _newest_first(list(found.values()))


def completed(ours: Report, theirs: Report) -> Report:
    """An end that the node tells, with what only the caller knew. Pure."""
    return msgspec.structs.replace(theirs, skew_millis=ours.skew_millis)

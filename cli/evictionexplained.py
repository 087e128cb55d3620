"""Why pods had to go: decisions of the agents' audits as rows and words. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from cli.happenings import EventLine
from cli.output import MISSING
from cli.podview import show_age, show_bytes, show_cpu
from slacktide.explaining import Decision, Evictions

COLUMNS: Final = ("AGE", "NODE", "POD", "WAY", "OUTCOME", "REASON")
NUMBER_COLUMNS: Final = ("NUMBER", "VALUE", "WHAT")

OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sent": "evicted: the API took it",
        "gone": "was gone already",
        "blocked": "not evicted: a disruption budget protects it",
        "refused": "not evicted: the API refuses",
        "retry": "not evicted yet: the API asks to wait",
        "unreachable": "not evicted yet: the API does not answer",
        "dry-run": "only said: nothing was sent",
        "killed": "its processes were killed",
        "frozen": "frozen in place",
        "thawed": "thawed",
        "overdue": "still there after its grace period",
        "over-budget": "held back: the evictor's own budget is used up",
    }
)

_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "priority": "of the pod: the lowest goes first",
        "created_at": "when the pod was made: of like pods the newest goes first",
        "cpu_millis": "CPU that the pod used",
        "memory_bytes": "memory that the pod used",
        "requested_cpu_millis": "batch CPU that the pod asked for",
        "gap": "what was missing, and how much of it",
        "frees": "what this pod gives towards that",
        "freed_before": "what pods before it in the same choice give",
        "available_bytes": "memory that was available",
        "memory_percent": "eviction begins with less memory available than this",
        "memory_target_percent": "and goes on until so much is",
        "leaving_bytes": "memory of pods that were on their way out",
        "be_limit_millis": "CPU that BE as a whole could get",
        "be_requested_millis": "CPU that BE as a whole asked for",
        "be_used_millis": "CPU that BE as a whole used",
        "satisfaction_percent": "the first of these as a share of the second",
        "satisfaction_upper_percent": "pods go until the rest gets so much",
        "shortage": "why LS was short",
        "rung": "level of the rung that cut BE before",
        "emergency_percent": "a kill comes with less memory available than this",
        "psi_memory_full": "share of the time in which all waited for memory",
    }
)


class NodeEvictions(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node: the agent's own record, or why there is none."""

    node: str
    source: str
    evictions: Evictions | None
    problem: str = ""


class EvictionsExplained(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `explain eviction`. `pod` is empty for all; `silent` says who could not be asked.

    `events` are what the cluster was told, where no agent's record can be had.
    """

    pod: str
    nodes: list[NodeEvictions]
    silent: list[str]
    events: list[EventLine] = []

    @property
    def known(self) -> bool:
        """Whether anything is known of anybody."""
        return bool(self.events) or any(one.evictions and one.evictions.decisions for one in self.nodes)


def ordered(nodes: Sequence[NodeEvictions]) -> list[tuple[str, Decision]]:
    """Decisions of all nodes, each with its node, newest first."""
    every = [(one.node, decision) for one in nodes if one.evictions for decision in one.evictions.decisions]
    return sorted(every, key=lambda pair: -pair[1].at)


def rows(found: Sequence[tuple[str, Decision]], now: float) -> list[list[str]]:
    """A row a decision."""
    return [
        [
            show_age(max(0.0, now - one.at)),
            node or MISSING,
            f"{one.namespace}/{one.name}",
            one.way,
            _outcome(one),
            f"{one.reason}{f' (drill {one.drill})' if one.drill else ''}",
        ]
        for node, one in found
    ]


def _outcome(one: Decision) -> str:
    if not one.detail or one.detail.startswith(one.outcome):
        return one.detail or one.outcome
    return f"{one.outcome}: {one.detail}"


def sentence(node: str, one: Decision, now: float) -> str:
    """One decision in words."""
    where = f" on {node}" if node else ""
    outcome = OUTCOMES.get(one.outcome, one.outcome)
    detail = f" ({one.detail})" if one.detail else ""
    drill = f" for drill {one.drill}" if one.drill else ""
    ago = show_age(max(0.0, now - one.at))
    return f"{one.namespace}/{one.name}{where}, {ago} ago{drill}: {outcome}{detail}; {one.reason}"


def number_rows(one: Decision) -> list[list[str]]:
    """The numbers that decided, in words."""
    return [[name, _shown(name, value), _WORDS.get(name, "")] for name, value in one.numbers.items()]


def _shown(name: str, value: str) -> str:
    cause, _, amount = value.partition(" ")
    if name == "gap" and cause == "memory" and amount.isdigit():
        return f"{cause} {show_bytes(int(amount))}"
    if not value.isdigit():
        return value
    if name == "created_at":
        return dt.datetime.fromtimestamp(int(value), dt.UTC).isoformat(timespec="seconds")
    if name.endswith("_bytes"):
        return show_bytes(int(value))
    return show_cpu(int(value)) if name.endswith("_millis") else value


def budgets(evictions: Evictions) -> list[str]:
    """What is used of the budgets of the hour, and what of the record is missing."""
    said = []
    if evictions.evicted_in_hour is not None:
        said.append(f"{evictions.evicted_in_hour} of {evictions.evictions_per_hour} evictions of this hour are used")
    if evictions.killed_in_hour:
        said.append(f"{evictions.killed_in_hour} of {evictions.kills_per_hour} kills of this hour are used")
    if evictions.lost:
        said.append(f"the disk refused {evictions.lost} lines of the record since the agent started")
    if evictions.unreadable:
        said.append(f"{evictions.unreadable} lines of the record cannot be read")
    return said


def nothing(pod: str, one: NodeEvictions, now: float) -> str:
    """That a record has no decision, and how far back it goes."""
    whom = f"{pod} was not told to go" if pod else "nobody was told to go"
    kept = one.evictions.since if one.evictions else None
    back = "its record is empty" if kept is None else f"its record goes back {show_age(max(0.0, now - kept))}"
    return f"{one.node or 'this machine'}: {whom} by {one.source}; {back}"

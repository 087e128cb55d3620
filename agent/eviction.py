"""Evictions as plain values: who shall go and why, and what became of it. Shared by policy, evictor and status."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec


class Way(enum.StrEnum):
    """How a pod is made to give way, mildest first."""

    EVICT = "evict"
    """Through the Eviction API: PodDisruptionBudget, grace period and controller as ever."""
    FREEZE = "freeze"
    """Stopped in place while the API is away: nothing is lost, it is thawed or evicted later."""
    KILL = "kill"
    """Its processes killed, then evicted: for a memory emergency only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """One pod that shall go. `numbers` are those that decided, as `name value` pairs in words, for the audit line."""

    namespace: str
    name: str
    uid: str
    group: str
    way: Way
    reason: str
    numbers: tuple[tuple[str, str], ...] = ()
    drill: str = ""
    """Id of the drill that asked for it, empty in earnest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOrder:
    """The drill that presses now, for policies: its id, and how many more pods it may take or (dry run) name.

    presses_ls       LS pressure makes gaps on its account
    memory_percent   what is to count as available, of the node's memory; None: what is measured
    takes_bandwidth  LS is to count as losing cache and bandwidth to BE
    """

    id: str
    victims_left: int = 0
    dry_run: bool = False
    presses_ls: bool = True
    memory_percent: float | None = None
    takes_bandwidth: bool = False


class Outcome(enum.StrEnum):
    """What became of an attempt."""

    SENT = "sent"
    """The API took it; the pod is terminating."""
    GONE = "gone"
    """It was not there any more, or is another pod under the same name: nothing more to do."""
    BLOCKED = "blocked"
    """A PodDisruptionBudget forbids it now: another victim is taken."""
    REFUSED = "refused"
    """The API refuses for good (rights, several budgets): another victim is taken, and people are told."""
    RETRY = "retry"
    """The API asks to wait or failed; tried again later."""
    UNREACHABLE = "unreachable"
    """No answer from the API."""
    DRY = "dry-run"
    """Nothing was sent, on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt on one pod. `at` is monotonic seconds; `retry_after_seconds` what the API asked for."""

    uid: str
    way: Way
    outcome: Outcome
    at: float
    detail: str = ""
    retry_after_seconds: float | None = None
    drill: str = ""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """One eviction or kill that counts against a budget. `at` is monotonic seconds; those before a restart count."""

    uid: str
    at: float
    way: Way
    drill: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictorView:
    """What the evictor has done, as the policy sees it. `attempts` has the last one of each pod that still matters.

    `spent` is what counts against the budgets, a pod once. `api_away_seconds` is how long the API has not answered
    (None: it answers). `frozen` are UIDs that we froze. `serial` grows with every attempt, so that a list of victims
    says by it what was known when it was made.
    """

    attempts: tuple[Attempt, ...] = ()
    spent: tuple[Spent, ...] = ()
    frozen: frozenset[str] = frozenset()
    api_away_seconds: float | None = None
    serial: int = 0

"""How long plugins take: each call is timed, one over the budget is reported, one that hangs can be named.

A plugin cannot be stopped from outside; one that never answers keeps its thread. What can be done is to say so, which
`PluginClock.hung` is for: the process then reports that it is not alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.status import SUCCESS, Status
from slacktide.observe import traces

P = TypeVar("P", bound=api.Plugin)
Q = ParamSpec("Q")
R = TypeVar("R")

BUDGET_SECONDS: Final = 0.25
"""What one call of a plugin may take before it is reported."""

HUNG_SECONDS: Final = 60.0
"""A call that takes longer is taken never to end."""

WAITING_POINTS: Final = frozenset({"PreBind", "Bind"})
"""Points that wait for the API server or for volumes; they keep no cycle waiting."""

_HUNG_WAITING_SECONDS: Final = 1200.0


class TimingObserver(Protocol):
    """Told about calls of plugins."""

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """A call of a sampled cycle took that long."""
        ...

    def over_budget(self, plugin: str, point: str, seconds: float) -> None:
        """A call took longer than the budget."""
        ...


class Turn:
    """Calls of one extension point, one after the other, on one thread: the end of each is the start of the next.

    What the framework does between two calls is a microsecond and counts with the later one. A context manager.
    `asked` are the plugins so far.
    """

    __slots__ = ("_clock", "_outer", "_point", "_sampled", "_thread", "asked", "at")

    def __init__(self, clock: PluginClock, point: str, sampled: bool) -> None:
        self._clock = clock
        self._point = point
        self._sampled = sampled
        self._thread = threading.get_ident()
        # A PostFilter asks Filters: its own call goes on after theirs.
        self._outer = clock.calls.get(self._thread)
        self.asked: list[str] = []
        self.at = clock.monotonic()

    def ask(self, call: Callable[Concatenate[P, Q], R], plugin: P, *args: Q.args, **kwargs: Q.kwargs) -> R:
        """`call(plugin, ...)`, timed. Runs dozens of times a cycle, hence so plain."""
        clock, started = self._clock, self.at
        self.asked.append(plugin.name)
        clock.calls[self._thread] = (plugin.name, self._point, started)
        answer = call(plugin, *args, **kwargs)
        self.at = now = clock.monotonic()
        if self._sampled:
            clock.observer.plugin_took(plugin.name, self._point, label_of(answer), now - started)
        if now - started > clock.budget_seconds and self._point not in WAITING_POINTS:
            clock.observer.over_budget(plugin.name, self._point, now - started)
        return answer

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.calls[self._thread] = self._outer


class _TracedTurn(Turn):
    """The same as a span of its extension point."""

    __slots__ = ("_span",)

    def __enter__(self) -> Turn:
        self._span = traces.span(self._point)
        self._span.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        traces.note(plugins=len(self.asked))
        self._span.__exit__(*raised)


class PluginClock:
    """Times the calls of one profile. Thread safe: each thread has its own call under way."""

    def __init__(self, observer: TimingObserver, monotonic: Callable[[], float], budget_seconds: float) -> None:
        self.observer = observer
        self.monotonic = monotonic
        self.budget_seconds = budget_seconds
        self.calls: dict[int, tuple[str, str, float] | None] = {}

    def turn(self, point: str, *, sampled: bool) -> Turn:
        """Calls of one extension point on this thread; `sampled` tells the observer of each."""
        return (_TracedTurn if traces.on() else Turn)(self, point, sampled)

    def hung(self, limit_seconds: float = HUNG_SECONDS) -> Sequence[str]:
        """A sentence about each call that has taken longer than `limit_seconds`; much longer at WAITING_POINTS."""
        now = self.monotonic()
        calls = tuple(self.calls.copy().values())
        return [
            f"plugin {plugin} has not answered in {point} for {now - started:.0f} s"
            for plugin, point, started in (call for call in calls if call is not None)
            if now - started > (_HUNG_WAITING_SECONDS if point in WAITING_POINTS else limit_seconds)
        ]


def label_of(answer: object) -> str:
    """Value of the `status` label for what an extension point answered: a status, or one with something beside it."""
    if isinstance(answer, tuple) and answer:
        answer = answer[0]
    status = getattr(answer, "status", answer)
    return status.label if isinstance(status, Status) else SUCCESS.label

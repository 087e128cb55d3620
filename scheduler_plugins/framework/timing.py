"""How long plugins take: each call is timed, one over the budget is reported, one that hangs can be named.

A plugin cannot be stopped from outside; one that never answers keeps its thread. What can be done is to say so, which
`PluginClock.hung` is for: the process then reports that it is not alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from scheduler_plugins.framework import interfaces as api
from scheduler_plugins.framework.status import SUCCESS, Status

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


class PluginClock:
    """Times the calls of one profile. Thread safe: each thread has its own call under way."""

    def __init__(self, observer: TimingObserver, monotonic: Callable[[], float], budget_seconds: float) -> None:
        self._observer = observer
        self._monotonic = monotonic
        self._budget = budget_seconds
        self._calls: dict[int, tuple[str, str, float] | None] = {}

    def ask(
        self,
        point: str,
        sampled: bool,
        call: Callable[Concatenate[P, Q], R],
        plugin: P,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> R:
        """`call(plugin, ...)`, timed. Runs dozens of times a cycle, hence so plain."""
        thread = threading.get_ident()
        # A PostFilter asks Filters: its own call goes on after theirs.
        outer = self._calls.get(thread)
        started = self._monotonic()
        self._calls[thread] = (plugin.name, point, started)
        try:
            answer = call(plugin, *args, **kwargs)
        except BaseException:
            self._calls[thread] = outer
            raise
        seconds = self._monotonic() - started
        self._calls[thread] = outer
        if sampled:
            self._observer.plugin_took(plugin.name, point, label_of(answer), seconds)
        if seconds > self._budget and point not in WAITING_POINTS:
            self._observer.over_budget(plugin.name, point, seconds)
        return answer

    def hung(self, limit_seconds: float = HUNG_SECONDS) -> Sequence[str]:
        """A sentence about each call that has taken longer than `limit_seconds`; much longer at WAITING_POINTS."""
        now = self._monotonic()
        calls = tuple(self._calls.copy().values())
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

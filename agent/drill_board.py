"""The one drill of this node between its callers (gRPC threads) and the control thread; thread-safe.

The control thread never waits here: it takes a reference, and puts one back. A drill without a watcher for its
dead-man time is aborted by the next decision; so is one whose caller says so.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.drill import Drill, Hold, Order, Seen, abort
from agent.drill_steps import advance
from agent.eviction import Victim


class Busy(Exception):
    """Another drill runs."""


class Unknown(Exception):
    """There is no drill with this id."""


class DrillBoard:
    """`on_news` is called with the drill before and after each change that people want to know of (before: None at
    its start), on the control thread (the start: on a caller's), and must not block.

    `counters`: drills, drills_aborted, drills_failed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_news: Callable[[Drill | None, Drill], None] = lambda _before, _after: None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._clock = clock
        self._on_news = on_news
        self._new_id = new_id
        self._news = threading.Condition()
        self._drill: Drill | None = None
        self._watchers = 0
        self._unwatched_since = 0.0
        self._abort = ""
        self.counters = {"drills": 0, "drills_aborted": 0, "drills_failed": 0}

    def start(self, make: Callable[[str], Order]) -> str:
        """Begin the drill that `make` gives for a fresh id. Raises Busy."""
        with self._news:
            if self._drill is not None and not self._drill.phase.ended:
                raise Busy(f"drill {self._drill.order.id} runs: {self._drill.message}")
            drill_id = self._new_id()
            self._drill = drill = Drill(order=make(drill_id))
            self._watchers, self._unwatched_since, self._abort = 0, self._clock(), ""
            self.counters["drills"] += 1
            self._news.notify_all()
        self._on_news(None, drill)
        return drill_id

    def abort(self, drill_id: str, why: str) -> str:
        """Ask for an end with the next decision. Returns a sentence. Raises Unknown."""
        with self._news:
            drill = self._named(drill_id)
            if drill.phase.ended:
                return f"drill {drill_id} had ended already: {drill.message}"
            self._abort = why
            return f"drill {drill_id} ends with the next beat; BE gets its room back as the ladder opens"

    @contextmanager
    def watching(self, drill_id: str) -> Iterator[None]:
        """While somebody watches the dead-man timer does not run. Raises Unknown."""
        with self._news:
            self._named(drill_id)
            self._watchers += 1
        try:
            yield
        finally:
            with self._news:
                self._watchers -= 1
                self._unwatched_since = self._clock()

    def after(self, drill_id: str, seen: Drill | None, timeout_seconds: float) -> Drill:
        """The drill as soon as there is news beside `seen`, or as it is after the timeout. Raises Unknown."""
        with self._news:
            self._news.wait_for(
                lambda: (
                    _news_of(self._drill) != _news_of(seen) or (self._drill is not None and self._drill.phase.ended)
                ),
                timeout_seconds,
            )
            return self._named(drill_id)

    def current(self) -> Drill | None:
        """The drill that runs or ran last."""
        return self._drill

    def active(self) -> Drill | None:
        """The drill that runs."""
        drill = self._drill
        return None if drill is None or drill.phase.ended else drill

    def hold(self) -> Hold:
        """What the streams of samples are to do now; for any thread."""
        drill = self.active()
        return Hold.NOTHING if drill is None else drill.hold

    def observe(self, seen: Seen) -> None:
        """What one decision led to; called on the control thread."""
        with self._news:
            drill = self._drill
            if drill is None or drill.phase.ended:
                return
            after = advance(self._ended_by_people(drill, seen.at), seen)
            if after is drill:
                return
            self._drill = after
            if _news_of(after) == _news_of(drill):
                return
            self._news.notify_all()
        if after.phase.ended:
            name = f"drills_{after.phase.value}"
            if name in self.counters:
                self.counters[name] += 1
        self._on_news(drill, after)

    def _ended_by_people(self, drill: Drill, at: float) -> Drill:
        if self._abort:
            return abort(drill, self._abort, at)
        alone = 0.0 if self._watchers else at - self._unwatched_since
        if alone >= drill.order.dead_man_seconds:
            return abort(drill, f"nobody watched for {drill.order.dead_man_seconds:g} s", at)
        return drill

    def _named(self, drill_id: str) -> Drill:
        if self._drill is None or self._drill.order.id != drill_id:
            raise Unknown(f"no drill {drill_id!r} on this node")
        return self._drill


def _news_of(drill: Drill | None) -> object:
    """What people want to know of; measured pressure alone is no news."""
    return None if drill is None else (drill.order.id, drill.phase, drill.message, len(drill.timeline), drill.victims)


def for_real(victims: tuple[Victim, ...], drill: Drill | None) -> tuple[Victim, ...]:
    """Those that may be sent: none of a drill that only says whom it would evict, or that has ended."""
    allowed = drill is not None and drill.pressing and not drill.order.dry_run
    return tuple(victim for victim in victims if not victim.drill or allowed)

"""What `events` prints: those of our components, once or as they come."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from cli.grid import plain
from cli.podview import age, show_age
from slacktide.cluster import EVENTS, Informer
from slacktide.objects import Event

if TYPE_CHECKING:
    from cli.app import App

COLUMNS: Final = ("AGE", "TYPE", "REASON ", "ABOUT", "FROM", "MESSAGE")
WIDE: Final = ("FIRST SEEN", "COUNT", "NAME")
OURS: Final = "slacktide"
"""How the names of our components begin."""

_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events; None is any."""

    namespace: str | None = None
    about: str | None = None
    type: str | None = None
    reason: str | None = None

    def holds(self, event: Event) -> bool:
        """Whether one of our components made it, and it is asked for."""
        return (
            maker(event).startswith(OURS)
            and self.about in (None, event.involved_object.name)
            and self.type in (None, event.type)
            and self.reason in (None, event.reason)
        )


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event as it is printed. `at` and `first_at` are RFC 3339 text, empty where nobody wrote a time.

    `event` is the name of the event itself.
    """

    at: str
    type: str
    reason: str
    kind: str
    namespace: str
    name: str
    component: str
    message: str
    count: int
    first_at: str = ""
    event: str = ""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """What `events` prints for programs."""

    events: list[EventLine]


def maker(event: Event) -> str:
    """Name of the component that made it."""
    return event.source.component or event.reporting_component


def line(event: Event) -> EventLine:
    """What is printed of it."""
    about = event.involved_object
    return EventLine(
        at=event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp or "",
        type=event.type,
        reason=event.reason,
        kind=about.kind,
        namespace=about.namespace,
        name=about.name,
        component=maker(event),
        message=event.message,
        count=max(1, event.count),
        first_at=event.first_timestamp or event.metadata.creation_timestamp or "",
        event=event.metadata.name,
    )


def columns(*, wide: bool) -> tuple[str, ...]:
    """Columns of the table; with `wide` also those that few need."""
    return (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS


def cells(item: EventLine, now: float, *, wide: bool = False) -> list[str]:
    """One row."""
    name = f"{item.namespace}/{item.name}" if item.namespace else item.name
    message = item.message + (f" (x{item.count})" if item.count > 1 and not wide else "")
    more = [show_age(age(item.first_at or None, now)), str(item.count), item.event] if wide else []
    return [
        show_age(age(item.at or None, now)),
        item.type,
        item.reason,
        f"{item.kind.lower()}/{name}",
        item.component,
        *more,
        message,
    ]


def print_events(app: App, wanted: Wanted) -> None:
    """Once, oldest first."""
    listed = app.client().list(EVENTS, namespace=wanted.namespace).items
    found = sorted((line(event) for event in listed if wanted.holds(event)), key=lambda item: item.at)
    if app.out.json:
        app.out.document(Events(events=found))
    elif found:
        now = app.now()
        wide = app.out.wide
        names = [f"{item.namespace or 'default'}/{item.event}" for item in found]
        app.out.listing("event", names, columns(wide=wide), [cells(item, now, wide=wide) for item in found])
    else:
        app.out.say("no events of Slacktide; the API server forgets them after an hour")


def follow_events(app: App, wanted: Wanted) -> None:
    """Those that are there, then each that comes or is repeated, until Ctrl-C."""
    news: queue.SimpleQueue[Event] = queue.SimpleQueue()
    informer = Informer(
        app.client(),
        EVENTS,
        namespace=wanted.namespace,
        on_add=news.put,
        on_update=lambda _, new: news.put(new),
        name="events",
    )
    informer.start()
    try:
        while True:
            batch = _taken(news)
            for item in sorted((line(event) for event in batch if wanted.holds(event)), key=lambda item: item.at):
                _print(app, item)
    finally:
        informer.stop()


def _taken(news: queue.SimpleQueue[Event]) -> list[Event]:
    """What has come; waits a moment for the first."""
    try:
        batch = [news.get(timeout=_POLL_SECONDS)]
    except queue.Empty:
        return []
    while not news.empty():
        batch.append(news.get())
    return batch


def _print(app: App, item: EventLine) -> None:
    if app.out.json:
        app.out.line(item)
        return
    when = item.at[11:19] or "--:--:--"
    app.out.text("  ".join([when, *map(plain, cells(item, app.now(), wide=app.out.wide)[1:])]))

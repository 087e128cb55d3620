"""A `Picture` drawn for people. Pure: picture in, rich renderable out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from cli.gather import Picture, Room
from cli.grid import Grid
from cli.output import MISSING
from cli.podview import PodLine, show_age, show_bytes, show_cpu, show_share
from slacktide.forecast import Amount, closed_words
from slacktide.status import Usage
from slacktide.tier import Tier

POD_COLUMNS = ("POD", "TIER", "STATUS", "CPU", "REQUEST", "QUOTA", "THROTTLED", "MEMORY", "AGE", "REASON")
POD_WIDE = ("MEMORY REQUEST", "RESTARTS", "EXIT", "UID")


def draw(picture: Picture, *, components: bool, max_pods: int | None = None, wide: bool = False) -> Group:
    """The whole screen. `components` adds the daemons even when all is well, `wide` what few need of pods."""
    parts: list[RenderableType] = [_headline(picture)]
    if picture.supervisor is not None and (components or picture.supervisor.phase != "ready"):
        parts += [Text(), _components(picture)]
    parts += [Text(), _node(picture)]
    if picture.room is not None:
        parts += [Text(), _room(picture.room)]
    if picture.pods:
        parts += [Text(), _pods(picture, max_pods, wide=wide)]
    if picture.events:
        parts += [Text(), _events(picture)]
    parts += [Text(f"! {text}", style="yellow") for text in picture.silent]
    return Group(*parts)


def _headline(picture: Picture) -> Text:
    supervisor = picture.supervisor
    text = Text("Slacktide", style="bold cyan")
    text.append(f" on {picture.node or (supervisor.node if supervisor else MISSING)}", style="bold")
    text.append(f"  {supervisor.phase if supervisor else 'no supervisor'}")
    if picture.agent is not None and picture.agent.line:
        text.append(f"\n{picture.agent.line}", style="dim")
    return text


def _components(picture: Picture) -> Grid:
    assert picture.supervisor is not None
    rows = [
        [
            item.name,
            item.status,
            str(item.restarts),
            str(item.pid or MISSING),
            show_age(picture.at - item.since),
            item.detail,
        ]
        for item in picture.supervisor.components
    ]
    return Grid(("COMPONENT", "STATUS", "RESTARTS", "PID", "SINCE", "DETAIL"), rows)


def _node(picture: Picture) -> Grid:
    agent = picture.agent
    if agent is None:
        return Grid(("TIER", "CPU", "MEMORY"), [["node", MISSING, MISSING]])
    rows = [_usage_row("node", agent.node_usage, agent.capacity)]
    rows += [_usage_row(tier.value, agent.tiers[tier], agent.capacity) for tier in Tier if tier in agent.tiers]
    return Grid(("TIER", "CPU", "OF NODE", "MEMORY", "OF NODE "), rows)


def _usage_row(name: str, usage: Usage, capacity: Usage) -> list[str]:
    return [
        name,
        show_cpu(usage.cpu_millis),
        show_share(_ratio(usage.cpu_millis, capacity.cpu_millis)),
        show_bytes(usage.memory_bytes),
        show_share(_ratio(usage.memory_bytes, capacity.memory_bytes)),
    ]


def _room(room: Room) -> Grid:
    state = (
        closed_words(room.closed) if room.closed else f"{room.freshness}, {show_age(max(0.0, room.age_seconds))} old"
    )
    rows = [
        ["expected peak", *_amount(room.peak), ""],
        ["reclaimable", *_amount(room.reclaimable), room.terms.model],
        ["sold", *_amount(room.sold), ""],
        ["room", *_amount(room.left), state],
    ]
    return Grid(("FORECAST", "CPU", "MEMORY", "DETAIL"), rows)


def _pods(picture: Picture, limit: int | None, *, wide: bool) -> Grid:
    shown = (picture.pods or [])[:limit]
    rows = [
        [
            item.name if item.namespace == "default" else f"{item.namespace}/{item.name}",
            item.tier,
            item.status,
            show_cpu(item.cpu_used_millis),
            show_cpu(item.cpu_request_millis),
            show_cpu(item.quota_millis),
            show_share(item.throttled_ratio),
            show_bytes(item.memory_used_bytes),
            show_age(item.age_seconds),
            *(_rarely_wanted(item) if wide else ()),
            item.reason,
        ]
        for item in shown
    ]
    columns = (*POD_COLUMNS[:-1], *POD_WIDE, POD_COLUMNS[-1]) if wide else POD_COLUMNS
    hidden = len(picture.pods or []) - len(shown)
    return Grid(columns, rows, note=f"... {hidden} more, see `slacktide ps`" if hidden else "")


def _rarely_wanted(item: PodLine) -> list[str]:
    exit_code = MISSING if item.exit_code is None else str(item.exit_code)
    return [show_bytes(item.memory_request_bytes), str(item.restarts), exit_code, item.uid]


def _events(picture: Picture) -> Grid:
    rows = [
        [
            item.at[11:19],
            item.type,
            item.reason,
            item.about,
            item.message + (f" (x{item.count})" if item.count > 1 else ""),
        ]
        for item in picture.events
    ]
    return Grid(("EVENT", "TYPE", "REASON ", "ABOUT", "MESSAGE"), rows)


def _amount(amount: Amount) -> list[str]:
    return [show_cpu(amount.cpu_millis), show_bytes(amount.memory_bytes)]


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None

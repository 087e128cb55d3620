"""What `top` does: one picture, or one after the other until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Group
from rich.text import Text

from cli.fleet import BARS, PLAIN_BARS, Fleet, Trends, cells, check_order, chosen, columns, fleet, headline
from cli.gather import picture
from cli.grid import Grid
from cli.output import takes_unicode
from cli.screen import draw
from slacktide.cluster import NODES, PODS, Informer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.app import App
    from cli.forecasts import Standing

_FIRST_SECONDS: Final = 30.0
_CHROME: Final = 5
"""Lines of the screen that are no nodes."""


def watch_node(app: App, interval: float | None, *, everything: bool) -> None:
    """This machine; once without `interval`."""
    state, client = app.state(), app.client()
    if interval is None:
        now = picture(app, state, client, app.now())
        if app.out.json:
            app.out.document(now)
        else:
            app.out.draw(draw(now, components=everything, wide=app.out.wide))
    elif app.out.json:
        while True:
            app.out.line(picture(app, state, client, app.now()))
            time.sleep(interval)
    else:
        console = app.out.console()
        _live(
            app,
            interval,
            lambda: draw(
                picture(app, state, client, app.now()),
                components=everything,
                max_pods=max(3, console.height - 22),
                wide=app.out.wide,
            ),
        )


def watch_fleet(app: App, order: str, wanted: str, only: str, interval: float | None) -> None:
    """A cluster; once without `interval`. Nodes and pods are watched, not listed again for each picture."""
    check_order(order)
    client, trends = app.client(), Trends()

    def selected(now: Fleet) -> list[Standing]:
        return chosen(now.nodes, order, wanted, only)

    if interval is None:
        now = fleet(client.list(NODES).items, client.list(PODS).items, app.now())
        _show(app, now, selected(now))
        return
    nodes, pods = Informer(client, NODES, name="top"), Informer(client, PODS, name="top")
    nodes.start()
    pods.start()
    try:
        nodes.wait_synced(_FIRST_SECONDS)
        pods.wait_synced(_FIRST_SECONDS)

        def look() -> Fleet:
            now = fleet(nodes.items(), pods.items(), app.now())
            trends.add(now.nodes)
            return now

        if app.out.json:
            while True:
                app.out.line(look())
                time.sleep(interval)
        console = app.out.console()

        def drawn() -> RenderableType:
            now = look()
            return _drawn(now, selected(now), trends, max(3, console.height - _CHROME), wide=app.out.wide)

        _live(app, interval, drawn)
    finally:
        nodes.stop()
        pods.stop()


def _show(app: App, now: Fleet, rows: list[Standing]) -> None:
    if app.out.json:
        app.out.document(msgspec.structs.replace(now, nodes=rows))
        return
    if app.out.format != "name":
        app.out.text(headline(now.totals))
    names = [one.node for one in rows]
    shown = columns(wide=app.out.wide)
    # A single picture has no trend.
    keep = [index for index, column in enumerate(shown) if column != "TREND"]
    made = (cells(one, now.pods[one.node], "", wide=app.out.wide) for one in rows)
    table = [[row[index] for index in keep] for row in made]
    app.out.listing("node", names, [shown[index] for index in keep], table)


def _drawn(now: Fleet, rows: list[Standing], trends: Trends, most: int, *, wide: bool) -> Group:
    bars = BARS if takes_unicode() else PLAIN_BARS
    shown = rows[:most]
    lines = [cells(one, now.pods[one.node], trends.line(one.node, bars), wide=wide) for one in shown]
    table = Grid(columns(wide=wide), lines)
    parts: list[RenderableType] = [Text(headline(now.totals), style="bold"), Text(), table]
    if len(rows) > len(shown):
        parts.append(Text(f"... {len(rows) - len(shown)} more nodes: --match, --only and --sort choose", style="dim"))
    return Group(*parts)


def _live(app: App, interval: float, drawn: Callable[[], RenderableType]) -> None:
    from rich.live import Live

    with Live(console=app.out.console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn(), refresh=True)
            time.sleep(interval)

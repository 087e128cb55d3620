"""Extension points of a profile: which plugins take part where, and whether they can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from scheduler_plugins.framework import interfaces as api

P = TypeVar("P", bound=api.Plugin)

POINTS: Final[Mapping[str, type[api.Plugin]]] = {
    "preEnqueue": api.PreEnqueuePlugin,
    "queueSort": api.QueueSortPlugin,
    "preFilter": api.PreFilterPlugin,
    "filter": api.FilterPlugin,
    "postFilter": api.PostFilterPlugin,
    "preScore": api.PreScorePlugin,
    "score": api.ScorePlugin,
    "reserve": api.ReservePlugin,
    "permit": api.PermitPlugin,
    "preBind": api.PreBindPlugin,
    "bind": api.BindPlugin,
    "postBind": api.PostBindPlugin,
}
"""Extension points under the names that configuration uses."""


class PluginLists:
    """Plugins by extension point. `points` gives their names in order; None means each one everywhere it can be."""

    def __init__(self, plugins: Sequence[api.Plugin], points: Mapping[str, Sequence[str]] | None) -> None:
        self._plugins = tuple(plugins)
        self._points = points
        self.problems: list[str] = self._check()

    def at(self, point: str, able: Sequence[P]) -> tuple[P, ...]:
        """Of the plugins that can take part at one point those that do, in the order in which they are asked."""
        if self._points is None:
            return tuple(able)
        by_name = {plugin.name: plugin for plugin in able}
        return tuple(by_name[name] for name in self._points.get(point, ()) if name in by_name)

    def _check(self) -> list[str]:
        names = [plugin.name for plugin in self._plugins]
        problems = [f"plugin {name} is enabled twice" for name in sorted({n for n in names if names.count(n) > 1})]
        by_name: dict[str, Any] = {plugin.name: plugin for plugin in self._plugins}
        for point, listed in (self._points or {}).items():
            if point not in POINTS:
                problems.append(f"there is no extension point {point!r}; known: {', '.join(POINTS)}")
                continue
            for name in listed:
                if name not in by_name:
                    problems.append(f"{point} names {name}, which is no plugin of this profile")
                elif not isinstance(by_name[name], POINTS[point]):
                    problems.append(f"{point} names {name}, which takes no part there")
                elif list(listed).count(name) > 1:
                    problems.append(f"{point} names {name} twice")
        return list(dict.fromkeys(problems))

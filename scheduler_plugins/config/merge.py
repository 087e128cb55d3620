"""What a file changes of the default profile, and which plugins then run at which extension point.

The rules are those of the stock scheduler: a plugin that the file names again keeps its place in the default order
with the file's weight, other enabled ones follow; what a single point lists comes before what multiPoint brings there.
Source: kubernetes pkg/scheduler/apis/config/v1/default_plugins.go (mergePlugins) and
pkg/scheduler/framework/runtime/framework.go (expandMultiPointPlugins), 1.35.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from scheduler_plugins.config.types import POINTS, ChosenProfile, PluginRef, PluginSet

ALL: Final = "*"


def merged(default: Sequence[PluginRef], custom: PluginSet) -> tuple[PluginRef, ...]:
    """The default list with the file's changes."""
    off = {ref.name for ref in custom.disabled}
    own = {ref.name: ref for ref in custom.enabled}
    kept = [] if ALL in off else [own.get(ref.name, ref) for ref in default if ref.name not in off]
    there = {ref.name for ref in kept}
    return (*kept, *(ref for ref in custom.enabled if ref.name not in there))


def expanded(profile: ChosenProfile, takes_part: Callable[[str, str], bool]) -> dict[str, tuple[str, ...]]:
    """Names of the plugins at each point in the order in which they run; `takes_part(plugin, point)`."""
    return {point: _at(profile, point, takes_part) for point in POINTS}


def _at(profile: ChosenProfile, point: str, takes_part: Callable[[str, str], bool]) -> tuple[str, ...]:
    chosen = profile.points.get(point, PluginSet())
    off = {ref.name for ref in chosen.disabled}
    listed = [ref.name for ref in chosen.enabled if takes_part(ref.name, point)]
    multi = [] if ALL in off else [r.name for r in profile.multi if r.name not in off and takes_part(r.name, point)]
    both = [name for name in listed if name in multi]
    return (*both, *(name for name in multi if name not in both), *(name for name in listed if name not in both))


def weights(profile: ChosenProfile) -> dict[str, int]:
    """Weight of each plugin that states one or is at point score; a weight there goes before that of multiPoint."""
    chosen = {ref.name: ref.weight or 1 for ref in profile.multi}
    return chosen | {ref.name: ref.weight or 1 for ref in profile.points.get("score", PluginSet()).enabled}

"""Signatures: which pods the plugins of a profile judge and rate alike; see `reusable`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from scheduler_plugins.framework.interfaces import Plugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Snapshot
from slacktide.observe import get_logger

_log = get_logger("scheduler.signing")

_NONE: Final = "none"
"""Stands in a pod's memo for a key that there is not."""

_numbers = itertools.count()


class Signer:
    """Asks the plugins of one profile for their keys; `plugins` may name one twice."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        different = tuple({plugin.name: plugin for plugin in plugins}.values())
        self._plugins = tuple(plugin for plugin in different if isinstance(plugin, Reusable))
        self._able = len(self._plugins) == len(different)
        self._changing = tuple(one for one in self._plugins if type(one).reuse_now is not Reusable.reuse_now)
        self._memo = f"Signer/{next(_numbers)}"

    def sign(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """Equal for pods with equal keys; None where any plugin has none, or raises."""
        if not self._able:
            return None
        keys = pod.memo.get(self._memo)
        if keys is None:
            found = _keys(self._plugins, lambda plugin: plugin.reuse_key(pod))
            keys = pod.memo[self._memo] = _NONE if found is None else found
        if keys is _NONE:
            return None
        now = _keys(self._changing, lambda plugin: plugin.reuse_now(pod, snapshot))
        return None if now is None else (keys, now)


def _keys(plugins: Sequence[Reusable], ask: Callable[[Reusable], Hashable | None]) -> Hashable | None:
    keys: list[Hashable] = []
    for plugin in plugins:
        try:
            key = ask(plugin)
        except Exception as error:  # noqa: BLE001  # the cycle goes on, over all nodes
            _log.warning("key of a plugin failed", plugin=type(plugin).__name__, error=repr(error))
            return None
        if key is None:
            return None
        keys.append(key)
    return tuple(keys)

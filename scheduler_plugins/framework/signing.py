"""Signatures: which pods the plugins of a profile judge and rate alike; see `reusable`."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Final

from scheduler_plugins.framework.interfaces import Plugin
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.reusable import Reusable
from scheduler_plugins.framework.snapshot import Snapshot
from slacktide.observe import get_logger

_log = get_logger("scheduler.signing")

_NONE: Final = "none"
"""Stands in a pod's memo for a key that there is not."""

_MOST_SAID: Final = 20

_numbers = itertools.count()


class Signer:
    """Asks the plugins of one profile for their keys; `plugins` may name one twice."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        different = tuple({plugin.name: plugin for plugin in plugins}.values())
        self._plugins = tuple(plugin for plugin in different if isinstance(plugin, Reusable))
        self._able = len(self._plugins) == len(different)
        self._changing = tuple(one for one in self._plugins if type(one).reuse_now is not Reusable.reuse_now)
        self._memo = f"Signer/{next(_numbers)}"
        self._said: set[str] = set()

    def sign(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        """Equal for pods with equal keys; None where any plugin has none, or raises."""
        if not self._able:
            return None
        try:
            return self._sign(pod, snapshot)
        except Exception as error:  # noqa: BLE001  # the cycle goes on, over all nodes
            problem = repr(error)
            if problem not in self._said and len(self._said) < _MOST_SAID:
                self._said.add(problem)
                _log.warning("a plugin's key failed; its pods are judged one by one", pod=pod.key, error=problem)
            return None

    def _sign(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:
        keys = pod.memo.get(self._memo)
        if keys is None:
            found = tuple([plugin.reuse_key(pod) for plugin in self._plugins])
            keys = pod.memo[self._memo] = _NONE if None in found else found
        if keys is _NONE:
            return None
        now = tuple([plugin.reuse_now(pod, snapshot) for plugin in self._changing])
        return None if None in now else (keys, now)

"""Which controller pods belong to, and the highest use that a group ever had, whether its pods still are or not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from predictor.models.base import Integers
from predictor.pod_rows import Peak
from predictor.pods import KnownPod, guess_group

_MOST_GONE: Final = 50_000
"""Groups without a pod whose peak is remembered; the oldest go first."""


class PodGroups:
    """Groups of the pods that are known; a pod whose controller nobody named has a group by its name."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        """The controllers that were named, by uid."""
        self._gone: dict[str, Peak] = {}
        self._index: dict[str, list[int]] | None = None

    def name(self, groups: Mapping[str, str], known: Mapping[str, KnownPod]) -> None:
        """Say what controllers pods have, by uid; of those that are `known`."""
        # Those that are not named any more keep theirs: a pod that has just ended says what the next of it will need.
        self.named.update((uid, sys.intern(group)) for uid, group in groups.items() if uid in known)
        self.renumber()

    def restore(self, uid: str, group: str) -> None:
        """The history remembers the controller of a pod; what was said since counts more."""
        self.named.setdefault(uid, sys.intern(group))
        self.renumber()

    def of(self, pod: KnownPod) -> str:
        """The group of a pod."""
        known = self.named.get(pod.uid)
        if known is not None:
            return known
        if not pod.guessed:
            pod.guessed = sys.intern(guess_group(pod.namespace, pod.name))
        return pod.guessed

    def arrived(self, pod: KnownPod) -> None:
        """A pod is new."""
        if self._index is not None:
            # Pods come all the time: the index of a large fleet is not made anew for each.
            self._index.setdefault(self.of(pod), []).append(pod.column)

    def left(self, pod: KnownPod) -> None:
        """A pod is known no more."""
        self.named.pop(pod.uid, None)
        self.renumber()

    def remember(self, group: str, peak: Peak) -> None:
        """What a pod of `group` had before it left."""
        self._gone[group] = self._gone.pop(group, Peak()).or_higher(peak)
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def renumber(self) -> None:
        """Pods have other columns, or other groups."""
        self._index = None

    def peak(self, group: str, pods: Iterable[KnownPod], highest: Callable[[Integers], Peak]) -> Peak:
        """The highest hour of any pod of `group`, among `pods` or gone; `highest` says it of columns."""
        if self._index is None:
            self._index = {}
            for pod in pods:
                self._index.setdefault(self.of(pod), []).append(pod.column)
        columns = self._index.get(group)
        gone = self._gone.get(group, Peak())
        return gone if not columns else gone.or_higher(highest(np.asarray(columns, dtype=np.int64)))

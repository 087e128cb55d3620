"""Wakers: which plugins of which profiles are to be asked about an event."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_plugins.framework.events import ClusterEvent, Registration
from scheduler_plugins.framework.pod_info import PodInfo


@dataclass(frozen=True, slots=True, eq=False)
class Waker:
    """One registration of one plugin of one profile; told apart by identity."""

    profile: str
    plugin: str
    registration: Registration

    def kind_of(self, pod: PodInfo) -> Hashable:
        """Pods of one kind get one answer. A pod that the plugin cannot read is a kind of its own."""
        if self.registration.hint is None:
            return ""
        if self.registration.alike is None:
            return pod.uid
        try:
            kind = self.registration.alike(pod)
            hash(kind)
        except Exception:  # noqa: BLE001  # a plugin's mistake costs needless questions, never a pod
            return pod.uid
        return kind


class Wakers:
    """All registrations of a process, by profile and plugin. Extenders are registered like plugins, for everything."""

    def __init__(self, registrations: Mapping[str, Mapping[str, Sequence[Registration]]]) -> None:
        self._by_plugin = {
            (profile, plugin): tuple(Waker(profile, plugin, registration) for registration in given)
            for profile, of_profile in registrations.items()
            for plugin, given in of_profile.items()
        }
        self._covering: dict[ClusterEvent, tuple[Waker, ...]] = {}

    def of(self, profile: str, plugin: str) -> tuple[Waker, ...]:
        """Registrations of one plugin; none for one that nobody knows."""
        return self._by_plugin.get((profile, plugin), ())

    def covering(self, event: ClusterEvent) -> tuple[Waker, ...]:
        """Registrations that are asked when `event` happens."""
        known = self._covering.get(event)
        if known is None:
            everyone = (waker for wakers in self._by_plugin.values() for waker in wakers)
            known = self._covering[event] = tuple(w for w in everyone if w.registration.event.covers(event))
        return known

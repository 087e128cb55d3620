"""CycleState: what the plugins of one scheduling cycle remember between extension points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from scheduler_plugins.framework.pod_info import PodInfo

T = TypeVar("T")


@dataclass(frozen=True)
class StateKey(Generic[T]):
    """Names one value of type T in the state; `name` is `PluginName/what`, unique over all plugins."""

    name: str


@runtime_checkable
class Clonable(Protocol):
    """A value that changes within a cycle and therefore must be copied with the state."""

    def clone(self) -> Clonable:
        """A copy that shares nothing mutable."""
        ...


class StateMissing(KeyError):
    """Nothing was written under the key: the plugin's earlier extension point did not run."""

    def __str__(self) -> str:
        return f"cycle state has no {self.args[0]!r}; the extension point that writes it did not run"


class CycleState:
    """Typed values of one cycle, and which plugins take no further part in it.

    `sampled`: how long each plugin takes in this cycle goes to the metrics.
    """

    __slots__ = ("_values", "sampled", "skip_filter", "skip_score")

    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self.sampled = False
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()

    def write(self, key: StateKey[T], value: T) -> None:
        """Set the value under `key`."""
        self._values[key.name] = value

    def read(self, key: StateKey[T]) -> T:
        """Value under `key`. Raises StateMissing."""
        if key.name not in self._values:
            raise StateMissing(key.name)
        value: T = self._values[key.name]  # type: ignore[assignment]  # written under the same typed key
        return value

    def __contains__(self, key: StateKey[Any]) -> bool:
        return key.name in self._values

    def delete(self, key: StateKey[T]) -> None:
        """Forget the value under `key`, if any."""
        self._values.pop(key.name, None)

    def clear(self) -> None:
        """Forget all that plugins wrote."""
        self._values.clear()
        self.skip_filter = self.skip_score = frozenset()

    def share(self, other: CycleState) -> None:
        """Take over what the plugins wrote to `other`, and which of them take no further part there."""
        self._values.update(other._values)
        self.skip_filter = other.skip_filter
        self.skip_score = other.skip_score

    def clone(self) -> CycleState:
        """A copy for what-if questions: values that can clone themselves are copied, all others are shared."""
        copy = CycleState()
        copy._values = {
            name: value.clone() if isinstance(value, Clonable) else value for name, value in self._values.items()
        }
        copy.skip_filter = self.skip_filter
        copy.skip_score = self.skip_score
        return copy


PODS_TO_ACTIVATE: Final[StateKey[Mapping[str, PodInfo]]] = StateKey("kubernetes.io/pods-to-activate")
"""Pods, by namespace/name, that the queue is to let try at the end of the cycle, whatever comes of it."""

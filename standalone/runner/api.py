"""The part of the API client that the runner uses, so that tests can hand in a twin that lives in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from slacktide.cluster.kinds import Kind
from slacktide.objects import Pod, View

PatchType = Literal["merge", "strategic", "json"]


class Api(Protocol):
    """Calls as in `slacktide.cluster.Client`; each raises ClusterError."""

    def get(self, kind: Kind[Any], name: str, namespace: str | None = None) -> Any:
        """One object."""
        ...  # a protocol member has no body

    def get_dict(self, kind: Kind[Any], name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object with every field."""
        ...  # a protocol member has no body

    def create(self, kind: Kind[Any], body: dict[str, Any] | View, namespace: str | None = None) -> Any:
        """Create an object."""
        ...  # a protocol member has no body

    def replace(self, kind: Kind[Any], body: dict[str, Any]) -> Any:
        """Put a whole object back, guarded by its resourceVersion."""
        ...  # a protocol member has no body

    def patch(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None,
        body: dict[str, Any] | Sequence[dict[str, Any]],
        subresource: str | None = None,
        patch_type: PatchType = "merge",
    ) -> Any:
        """Change named fields."""
        ...  # a protocol member has no body

    def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        """Delete an object."""
        ...  # a protocol member has no body


class PodSource(Protocol):
    """Pods bound to this node, as an informer keeps them."""

    @property
    def synced(self) -> bool:
        """Whether the API has answered a list."""
        ...  # a protocol member has no body

    def items(self) -> tuple[Pod, ...]:
        """The pods now."""
        ...  # a protocol member has no body


class Recorder(Protocol):
    """Takes events; never blocks."""

    def record(self, involved: Pod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An event about a pod."""
        ...  # a protocol member has no body

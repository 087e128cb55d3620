"""What the Eviction API answers, as values.

An eviction that does not happen is an everyday outcome, not an exception. Sources: Kubernetes documentation
"API-initiated eviction"; the statuses that carry a cause are told apart by it, never by status code alone.
"""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec

from slacktide.cluster.errors import ApiError, Conflict, Forbidden, NotFound, ServerError, TooManyRequests
from slacktide.names import EVICTED_BY_LABEL
from slacktide.objects import Pod

_OTHER_POD: Final = re.compile(r"UID in (the )?precondition", re.IGNORECASE)
"""Both wordings of the API server: that of its storage and, with "the", that of the check before a deletion."""


class Outcome(enum.Enum):
    """How an eviction ended."""

    EVICTED = "evicted"
    """Deletion has begun (or would have, in a dry run)."""
    BLOCKED = "blocked by a disruption budget"
    """A PodDisruptionBudget has no disruption left now; try later."""
    THROTTLED = "throttled"
    """The API server is busy; try later."""
    SEVERAL_BUDGETS = "more than one disruption budget"
    """Several budgets select the pod; the API refuses until an operator changes that."""
    BUDGET_BROKEN = "disruption budget unusable"
    """The budget's status is out of bounds, its controller is behind or absent."""
    GONE = "gone"
    """No pod of that name."""
    UID_MISMATCH = "another pod of that name"
    """The pod was replaced; the one we meant is gone."""
    CONFLICT = "conflict"
    """The pod or a budget changed while the server worked; try again."""
    NAMESPACE_TERMINATING = "namespace terminating"
    """The namespace is being deleted, and the pod with it."""


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an eviction; `retry_after` in seconds where the server named a time."""

    outcome: Outcome
    message: str = ""
    retry_after: float | None = None

    @property
    def evicted(self) -> bool:
        """Whether the pod is on its way out by our doing."""
        return self.outcome is Outcome.EVICTED

    @property
    def gone(self) -> bool:
        """Whether the pod that we meant does not exist any more."""
        return self.outcome in (Outcome.GONE, Outcome.UID_MISMATCH)


def eviction_body(pod: Pod, grace_period_seconds: int | None, dry_run: bool) -> dict[str, Any]:
    """The body to post; the uid is always sent, so that a pod of the same name is never hit.

    Raises ValueError for a pod without uid: it never came from the API.
    """
    if not pod.metadata.uid:
        raise ValueError(f"pod {pod.metadata.namespace}/{pod.metadata.name} has no uid, refusing to evict by name")
    options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
    if grace_period_seconds is not None:
        options["gracePeriodSeconds"] = grace_period_seconds
    if dry_run:
        options["dryRun"] = ["All"]
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "labels": {EVICTED_BY_LABEL: "agent"},
        },
        "deleteOptions": options,
    }


def eviction_of(error: ApiError) -> Eviction | None:
    """The outcome that an error stands for; None where it is a real error (rights, body, server)."""
    outcome = _outcome_of(error)
    if outcome is None:
        return None
    return Eviction(outcome=outcome, message=error.message, retry_after=error.retry_after)


def _outcome_of(error: ApiError) -> Outcome | None:
    if isinstance(error, (Forbidden, NotFound)) and error.has_cause("NamespaceTerminating"):
        return Outcome.NAMESPACE_TERMINATING
    if isinstance(error, TooManyRequests):
        return Outcome.BLOCKED if error.has_cause("DisruptionBudget") else Outcome.THROTTLED
    if isinstance(error, ServerError):
        # The only 500 that the API documents for evictions has no cause or reason of its own.
        return Outcome.SEVERAL_BUDGETS if "more than one PodDisruptionBudget" in error.message else None
    if isinstance(error, NotFound):
        # A 404 that names no object means that the server has no Eviction API.
        return Outcome.GONE if error.details.name else None
    if isinstance(error, Conflict):
        return Outcome.UID_MISMATCH if _OTHER_POD.search(error.message) else Outcome.CONFLICT
    if isinstance(error, Forbidden) and error.details.kind.startswith("poddisruptionbudget"):
        return Outcome.BUDGET_BROKEN
    return None

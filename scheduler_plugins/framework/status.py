"""What a plugin answers: a code with a meaning for preemption and requeue, and the reasons in words.

Codes have the numeric order of the Kubernetes scheduling framework, so that logs and metrics read alike.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final


class Code(enum.IntEnum):
    """Meaning of a status.

    UNSCHEDULABLE and UNRESOLVABLE both refuse; only the first may be cured by preempting pods of the node. PENDING
    refuses like UNRESOLVABLE, but a hint of its plugin that says Queue lets the pod skip its backoff.
    """

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3
    WAIT = 4
    SKIP = 5
    PENDING = 6


CODE_NAMES: Final = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.WAIT: "Wait",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}
"""Names as kube-scheduler writes them into metric labels."""

_REJECTED: Final = frozenset({Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING})


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node or pod was refused.

    `text` says the kind without numbers, so that equal refusals of many nodes can be counted; `detail` has the
    numbers of this one; `miss` says how far it was from fitting (0 = nearly, inf = no such measure), so that of
    many refusals the nearest one can be shown.
    """

    text: str
    detail: str = ""
    miss: float = math.inf

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True, slots=True)
class Status:
    """Answer of one plugin. `plugin` is filled by the runtime; `error` is what was raised, for code ERROR."""

    code: Code = Code.SUCCESS
    parts: tuple[Reason, ...] = ()
    plugin: str = ""
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether the plugin agrees."""
        return self.code is Code.SUCCESS

    @property
    def skipped(self) -> bool:
        """Whether the plugin has nothing to say in this cycle."""
        return self.code is Code.SKIP

    @property
    def rejected(self) -> bool:
        """Whether this is a refusal, as opposed to a failure."""
        return self.code in _REJECTED

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons as text, numbers included."""
        return tuple(str(part) for part in self.parts)

    @property
    def message(self) -> str:
        """All reasons joined by a comma and a blank."""
        return ", ".join(self.reasons)

    @property
    def label(self) -> str:
        """Value of the `status` label of metrics."""
        return CODE_NAMES[self.code]

    def by(self, plugin: str) -> Status:
        """The same answer, signed by `plugin` unless it is signed already."""
        if self.plugin:
            return self
        if self.parts or self.error is not None:
            return Status(self.code, self.parts, plugin, self.error)
        return _signed(self.code, plugin)


@cache
def _signed(code: Code, plugin: str) -> Status:
    """An answer without reasons, of which a cycle has dozens."""
    return Status(code, (), plugin)


class PluginFailure(Exception):
    """A plugin that could not answer, on its way up as an exception."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(f"{status.plugin}: {status.message}" if status.plugin else status.message)


SUCCESS: Final = Status()
SKIP: Final = Status(Code.SKIP)


def _parts(reasons: Iterable[str | Reason]) -> tuple[Reason, ...]:
    return tuple(Reason(reason) if isinstance(reason, str) else reason for reason in reasons)


def unschedulable(*reasons: str | Reason) -> Status:
    """Refused for now; removing pods of the node may help."""
    return Status(Code.UNSCHEDULABLE, _parts(reasons))


def unresolvable(*reasons: str | Reason) -> Status:
    """Refused, and removing pods of the node would not help."""
    return Status(Code.UNRESOLVABLE, _parts(reasons))


def pending(*reasons: str | Reason) -> Status:
    """Refused until something that the plugin itself waits for happens."""
    return Status(Code.PENDING, _parts(reasons))


def failed(reason: str, error: BaseException | None = None) -> Status:
    """The plugin could not answer."""
    return Status(Code.ERROR, (Reason(reason),), error=error)

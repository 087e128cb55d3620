"""Verdicts: what one Filter says about many nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.snapshot import Bools
from scheduler_plugins.framework.status import SUCCESS, Code, Reason, Status

Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One code a node, in the order asked. `explain(i)` is called only for a refused node, and only if somebody asks.

    `error` is what went wrong on a node whose code is ERROR. Where `kinds` is given, nodes of one kind are refused in
    the same words (`Reason.text`), and `miss` says how far each was from fitting, 0 for nearly: then only the nearest
    node of a kind is explained to people, which keeps the refusal of thousands of nodes cheap.
    """

    codes: Codes
    explain: Callable[[int], tuple[Reason, ...]]
    error: BaseException | None = None
    kinds: NDArray[Any] | None = None
    miss: NDArray[Any] | None = None

    @classmethod
    def of(cls, statuses: Sequence[Status]) -> Verdicts:
        """From one status a node."""
        codes = np.fromiter((status.code for status in statuses), dtype=np.int8, count=len(statuses))
        error = next((status.error for status in statuses if status.error is not None), None)
        return cls(codes, lambda i: statuses[i].parts, error)

    @classmethod
    def where(
        cls,
        refused: Bools,
        code: Code | NDArray[np.int8],
        explain: Callable[[int], tuple[Reason, ...]],
        kinds: NDArray[Any] | None = None,
        miss: NDArray[Any] | None = None,
    ) -> Verdicts:
        """`code` (one, or one a node) where `refused`, Success elsewhere. `kinds` and `miss` are one a node."""
        # A flag is the byte 0 or 1 and Success is 0: a product is several times faster than a choice.
        given = code if isinstance(code, np.ndarray) else np.int8(code)
        codes = refused.view(np.int8) * given
        return cls(codes, explain, None, kinds, miss)

    @classmethod
    def passed(cls, count: int) -> Verdicts:
        """Success for all of `count` nodes."""
        return cls(np.zeros(count, dtype=np.int8), lambda _: ())

    def status(self, i: int) -> Status:
        """The verdict on the i-th node that was asked about."""
        code = Code(int(self.codes[i]))
        if code is Code.SUCCESS:
            return SUCCESS
        return Status(code, self.explain(i), error=self.error if code is Code.ERROR else None)

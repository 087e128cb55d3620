"""How long a pod says that it lives, from its annotation."""

from __future__ import annotations

import math
from typing import Final

from scheduler_plugins.framework.pod_info import PodInfo
from slacktide.names import EXPECTED_LIFE_ANNOTATION

_MEMO: Final = "ExpectedLife/seconds"
_MOST_SECONDS: Final = 10 * 366 * 86_400.0


def expected_life(pod: PodInfo) -> float | str | None:
    """Seconds; None where the pod does not say, a sentence where what it says cannot be read."""
    if _MEMO not in pod.memo:
        pod.memo[_MEMO] = _parse(pod.pod.metadata.annotations.get(EXPECTED_LIFE_ANNOTATION))
    life: float | str | None = pod.memo[_MEMO]
    return life


def _parse(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MOST_SECONDS:
        return f"annotation {EXPECTED_LIFE_ANNOTATION} is {text[:40]!r}; it must be seconds from 0 to ten years"
    return seconds

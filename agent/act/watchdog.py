"""Lifts BE's hard limits when the control loop is silent: a dead agent must not leave work throttled for ever.

Quotas get their originals back; weight and idle stay, since they cost BE nothing that LS does not need. A loop that
comes back finds the kernel changed and puts its limits in force again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.watchdog")


class Watchdog:
    """Calls `relax` (returns how many limits it lifted) once for each silence of `limit_seconds`.

    `last_sign` tells the monotonic time of the loop's last sign of life.
    """

    def __init__(
        self,
        last_sign: Callable[[], float],
        relax: Callable[[], int],
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last_sign = last_sign
        self._relax = relax
        self._limit = limit_seconds
        self._clock = clock
        self._stop = threading.Event()
        self._fired_for: float | None = None
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.fired = 0

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(self._limit + 1.0)

    def check(self) -> bool:
        """Relax if the loop is silent and this silence was not acted on yet; whether it did."""
        sign = self._last_sign()
        if self._clock() - sign < self._limit or sign == self._fired_for:
            return False
        self._fired_for = sign
        self.fired += 1
        lifted = self._relax()
        _LOG.error("the control loop is silent: quotas of BE are lifted", seconds=self._clock() - sign, lifted=lifted)
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._limit / 4):
            try:
                self.check()
            except Exception:  # noqa: BLE001 - the last guard must survive anything
                _LOG.exception("the watchdog could not lift limits; it tries again at the next silence")

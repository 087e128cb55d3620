"""How many writes may go out now: a token bucket. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """`tokens` writes were left at monotonic time `at`; None: nothing was ever taken, the bucket is full."""

    tokens: float = 0.0
    at: float | None = None

    def refilled(self, now: float, per_second: float, burst: int) -> Budget:
        """The budget at `now`: what came in since, never more than `burst`."""
        if self.at is None:
            return Budget(float(burst), now)
        return Budget(min(float(burst), self.tokens + max(0.0, now - self.at) * per_second), now)

    def spent(self) -> Budget | None:
        """The budget after one more write; None when there is none left."""
        return Budget(self.tokens - 1.0, self.at) if self.tokens >= 1.0 else None

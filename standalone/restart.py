"""When a component that ended is started again: at once the first time, ever later while it keeps failing. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays in seconds. A component that lived `stable_seconds` has its earlier failures forgiven."""

    first_seconds: float = 0.2
    factor: float = 2.0
    longest_seconds: float = 30.0
    stable_seconds: float = 30.0
    loop_after: int = 5
    """This many failures in a row are a crash loop, and are called so."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from one exit: failures in a row so far, delay before the next start, crash loop or not."""

    failures: int
    delay: float
    looping: bool


def after_exit(failures: int, lived: float, policy: RestartPolicy) -> Verdict:
    """Judge an exit after `lived` seconds that follows `failures` earlier ones in a row."""
    count = 1 if lived >= policy.stable_seconds else failures + 1
    # The exponent is bounded so that a week of failures does not overflow a float.
    delay = min(policy.longest_seconds, policy.first_seconds * policy.factor ** min(count - 1, 60))
    return Verdict(count, delay, count >= policy.loop_after)

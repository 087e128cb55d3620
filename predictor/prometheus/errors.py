"""What can be wrong with a Prometheus. Each error says what, where and what to do."""

from __future__ import annotations

from slacktide.errors import SlacktideError


class PrometheusError(SlacktideError):
    """The server cannot be used as it is; trying the same again does not help."""


class Away(PrometheusError):
    """No usable answer within all attempts; the same may work later."""


class TooHeavy(PrometheusError):
    """The server can answer, but not that much at once. `series`: fewer series help, else less time."""

    def __init__(self, message: str, *, series: bool = False) -> None:
        self.series = series
        super().__init__(message)


class Partial(PrometheusError):
    """The server answered and said that data is missing: what came is lower than the truth and is not used."""

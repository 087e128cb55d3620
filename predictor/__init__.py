"""Predictor: history of usage, forecast of the peak, and what it publishes on each node.

`from predictor import forecast` forecasts arrays, see predictor.backtest.library. It is loaded when it is asked for:
the running predictor never needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.backtest.library import forecast as forecast

__all__ = ["forecast"]


def __getattr__(name: str) -> Any:
    if name == "forecast":
        from predictor.backtest.library import forecast

        return forecast
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

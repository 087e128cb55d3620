"""Answers of the Prometheus query API as arrays. Pure.

Source: Prometheus documentation, "HTTP API", "Expression queries" and "Format overview". Values are text there, and
`NaN`, `+Inf` and `-Inf` are among them: all three are gaps here, since none of them is an amount of use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from predictor.prometheus.errors import Partial, PrometheusError

Labels = dict[str, str]
Points = npt.NDArray[np.float64]

_ANNOTATION: Final = "PromQL "
"""Prometheus 3 puts remarks about the expression itself among the warnings; they do not mean that data is missing."""


class Series(msgspec.Struct, frozen=True):
    """One series: `value` of an instant query, `values` of a range query, as (epoch seconds, text)."""

    metric: Labels
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class Data(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a query; `result_type` is vector or matrix for all that is asked here."""

    result_type: str = ""
    result: list[Series] = []


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer. `is_partial` is VictoriaMetrics' word for what Thanos puts among the warnings."""

    status: str
    data: Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []
    is_partial: bool = False


class Trouble(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an answer that says what went wrong; `data` may be anything then."""

    status: str = ""
    error_type: str = ""
    error: str = ""


class Answer(NamedTuple):
    """Series of one query, and what the server says is missing from them (empty: nothing)."""

    series: list[Series]
    missing: tuple[str, ...]


def read(body: bytes, where: str) -> Answer:
    """The answer in `body`. Raises PrometheusError when it is no successful answer of the query API."""
    try:
        envelope = msgspec.json.decode(body, type=Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PrometheusError(
            f"{where} does not answer as a Prometheus does ({error}): is this its address, with the path it is "
            f"served under? The answer begins {body[:60]!r}"
        ) from error
    if envelope.status != "success" or envelope.data is None:
        raise PrometheusError(f"{where}: {envelope.error_type or envelope.status}: {envelope.error or 'no data'}")
    missing = [warning for warning in envelope.warnings if not warning.startswith(_ANNOTATION)]
    if envelope.is_partial:
        missing.append("the answer is marked as partial")
    return Answer(envelope.data.result, tuple(missing))


def complete(answer: Answer) -> list[Series]:
    """The series of an answer. Raises Partial when the server says that some are missing."""
    if answer.missing:
        raise Partial(f"the server answered in part only: {'; '.join(answer.missing[:3])}")
    return answer.series


def trouble(body: bytes) -> str:
    """What the body of a refusal says, in one line."""
    try:
        found = msgspec.json.decode(body, type=Trouble)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return " ".join(body[:300].decode("utf-8", "replace").split())
    return " ".join(f"{found.error_type}: {found.error}".strip(": ").split())


def grid(series: Sequence[Series], start: float, step: float, count: int) -> Points:
    """(series, count) values at start, start + step, ...; NaN where there is none or no finite number."""
    lengths = [len(one.values) for one in series]
    total = sum(lengths)
    times = np.fromiter((at for one in series for at, _ in one.values), dtype=np.float64, count=total)
    values = np.fromiter((float(text) for one in series for _, text in one.values), dtype=np.float64, count=total)
    places = np.rint((times - start) / step).astype(np.int64)
    rows = np.repeat(np.arange(len(series)), lengths)
    kept = (places >= 0) & (places < count) & np.isfinite(values)
    points = np.full((len(series), count), np.nan)
    points[rows[kept], places[kept]] = values[kept]
    return points


def newest(series: Series) -> float:
    """Value of an instant query; NaN where there is none or no finite number."""
    value = float("nan") if series.value is None else float(series.value[1])
    return value if math.isfinite(value) else float("nan")

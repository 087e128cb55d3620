"""What an engine has learned, as bytes: MessagePack, versioned, a few megabytes for 10,000 nodes. No I/O, no clock."""

from __future__ import annotations

import math
import zlib
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from predictor.champion import Champion, Tally
from predictor.confidence import GROUPS
from predictor.drift import Alarm
from predictor.engine_settings import EngineSettings
from predictor.learning import Learning
from predictor.pending import Decision
from predictor.sketch import Packed, Sketch

_Float = TypeVar("_Float", np.float32, np.float64)

VERSION: Final = 1
_CHECKSUM_BYTES: Final = 4


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A numpy array: type, shape, bytes in little-endian C order."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


class LearnedModel(msgspec.Struct, frozen=True):
    """One candidate's calibration and score.

    asked_level  the risk that its residuals were asked at.
    feedback     violations of late, allowed and met; a single number, as earlier builds kept it, says nothing.
    """

    asked_level: float
    feedback: tuple[float, float] | float
    days: tuple[tuple[int, int, Packed], ...]
    tally: Tally
    failures: int


class LearnedDecision(msgspec.Struct, frozen=True):
    """A forecast whose outcome is not known yet; fields of predictor.pending.Decision in their order."""

    at: float
    arrays: tuple[Array, ...]


class _Version(msgspec.Struct, frozen=True):
    version: int


class Learned(msgspec.Struct, frozen=True):
    """All that an engine has learned."""

    version: int
    horizon_seconds: float
    models: tuple[str, ...]
    learned: tuple[LearnedModel, ...]
    champion: Champion
    alarm: Alarm
    recent: tuple[tuple[float, float, float], ...]
    last_at: float
    nodes: tuple[str, ...]
    roster: tuple[Array, ...]
    pending: tuple[LearnedDecision, ...]


def encode(learned: Learned) -> bytes:
    """The bytes: a checksum of four bytes, then MessagePack."""
    payload = msgspec.msgpack.encode(learned)
    return zlib.crc32(payload).to_bytes(_CHECKSUM_BYTES, "big") + payload


def decode(raw: bytes) -> Learned:
    """What was encoded. Raises ValueError with the reason when it is damaged or of another version."""
    payload = raw[_CHECKSUM_BYTES:]
    if zlib.crc32(payload).to_bytes(_CHECKSUM_BYTES, "big") != raw[:_CHECKSUM_BYTES]:
        raise ValueError("it is damaged: its checksum does not fit")
    try:
        version = msgspec.msgpack.decode(payload, type=_Version).version
        if version != VERSION:
            raise ValueError(f"it has version {version}, this build reads {VERSION}")
        learned = msgspec.msgpack.decode(payload, type=Learned)
    except msgspec.MsgspecError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    if len(learned.learned) != len(learned.models):
        raise ValueError("it does not hold one record a model")
    return learned


def pack_array(array: npt.NDArray[Any]) -> Array:
    """As stored."""
    plain = np.ascontiguousarray(array)
    little = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return Array(little.dtype.str, plain.shape, little.tobytes())


def unpack_array(stored: Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A writable array of `dtype`. Raises ValueError when what is stored is not one."""
    if np.dtype(stored.kind) != np.dtype(dtype) or any(size < 0 for size in stored.shape):
        raise ValueError(f"an array of {stored.kind} stands where one of {np.dtype(dtype)} belongs")
    return np.frombuffer(stored.data, dtype=stored.kind).reshape(stored.shape).astype(dtype)


_DECISION_TYPES: Final = (np.int64, np.float32, np.int64, *[np.float32] * 4, np.bool_)


def pack_decision(decision: Decision) -> LearnedDecision:
    """As stored."""
    arrays = (
        decision.rows,
        decision.scale,
        decision.groups,
        decision.raw,
        decision.shadow,
        decision.peak,
        decision.limit,
        decision.over,
    )
    return LearnedDecision(decision.at, tuple(pack_array(array) for array in arrays))


def unpack_decision(stored: LearnedDecision, models: int, nodes: int) -> Decision:
    """The decision of `models` candidates on some of `nodes` rows. Raises ValueError when it does not fit."""
    if len(stored.arrays) != len(_DECISION_TYPES):
        raise ValueError("a pending forecast lacks a part")
    arrays = [unpack_array(array, kind) for array, kind in zip(stored.arrays, _DECISION_TYPES, strict=True)]
    rows, scale, groups, raw, shadow, peak, limit, over = arrays
    count = rows.shape
    if any(array.shape != count for array in (scale, groups, peak, limit, over)) or len(count) != 1:
        raise ValueError("a pending forecast does not fit together")
    if any(array.shape != (models, *count) for array in (raw, shadow)):
        raise ValueError("a pending forecast is not of these models")
    if len(rows) and (rows.min() < 0 or rows.max() >= nodes):
        raise ValueError("a pending forecast names nodes that are not known")
    return Decision(stored.at, rows, scale, groups, raw, shadow, peak, limit, over)


def save(learning: Learning, settings: EngineSettings, last_at: float) -> bytes:
    """All that `learning` holds, as bytes."""
    roster = learning.roster
    exceptions = roster.exceptions
    return encode(
        Learned(
            version=VERSION,
            horizon_seconds=settings.horizon_seconds,
            models=learning.models,
            learned=tuple(_learned_model(learning, index) for index in range(len(learning.models))),
            champion=learning.champion,
            alarm=learning.alarm,
            recent=tuple(learning.recent),
            last_at=last_at,
            nodes=roster.names,
            roster=(
                pack_array(roster.before),
                pack_array(roster.measured),
                pack_array(np.vstack([roster.risen, roster.seen])),
                pack_array(np.vstack([exceptions.decisions, exceptions.violations, exceptions.extra])),
            ),
            pending=tuple(pack_decision(decision) for decision in learning.pending),
        )
    )


def _learned_model(learning: Learning, index: int) -> LearnedModel:
    calibration = learning.calibrations[index]
    return LearnedModel(
        asked_level=float(learning.levels[index]),
        feedback=(calibration.allowed, calibration.met),
        days=tuple((day, group, sketch.pack()) for (day, group), sketch in sorted(calibration.days.items())),
        tally=learning.tallies[index],
        failures=learning.failures[index],
    )


def restore(learning: Learning, settings: EngineSettings, raw: bytes) -> tuple[float, list[str]]:
    """Fill a new `learning` with what was saved; the time of the last step (-inf for none), and what to tell.

    What was learned of another horizon, of a model that no longer runs, or of a model that is now asked at another
    level, says nothing about this one and is left out. Nothing of a damaged state is used.
    """
    try:
        learned = decode(raw)
        if learned.horizon_seconds != settings.horizon_seconds:
            return -math.inf, [f"what was learned is of a horizon of {learned.horizon_seconds:g} s: starting anew"]
        source = np.array([learned.models.index(name) if name in learned.models else -1 for name in learning.models])
        before = unpack_array(learned.roster[0], np.float64)
        pending = [unpack_decision(entry, len(learned.models), len(learned.nodes)) for entry in learned.pending]
        sketches = [_sketches(entry) for entry in learned.learned]
        learning.roster.restore(
            learned.nodes,
            _reordered(before, np.append(source, len(learned.models))),
            *(unpack_array(array, kind) for array, kind in zip(learned.roster[1:], _ROSTER_TYPES, strict=True)),
        )
    except (ValueError, IndexError) as error:
        return -math.inf, [f"what was learned cannot be used and starts anew from the prior: {error}"]
    for decision in pending:
        decision.raw, decision.shadow = _reordered(decision.raw, source), _reordered(decision.shadow, source)
    learning.pending = pending
    learning.recent = list(learned.recent)
    learning.alarm = learned.alarm
    return learned.last_at, _restore_models(learning, learned, sketches, source)


_ROSTER_TYPES: Final = (np.float32, np.float64, np.float32)


def _restore_models(
    learning: Learning, learned: Learned, sketches: list[dict[tuple[int, int], Sketch]], source: npt.NDArray[np.int64]
) -> list[str]:
    notes = []
    for index, name in enumerate(learning.models):
        if source[index] < 0:
            continue
        entry = learned.learned[source[index]]
        learning.failures[index] = entry.failures
        if entry.asked_level != learning.levels[index]:
            notes.append(f"model {name} is asked at another risk than before: its calibration starts anew")
            _clear(learning.pending, index)
            continue
        learning.calibrations[index].days = sketches[source[index]]
        if isinstance(entry.feedback, tuple):
            counts = (max(0.0, count) if math.isfinite(count) else 0.0 for count in entry.feedback)
            learning.calibrations[index].allowed, learning.calibrations[index].met = counts
        learning.tallies[index] = entry.tally
    names = learned.models
    champion = learned.champion
    if 0 <= champion.index < len(names) and names[champion.index] in learning.contenders:
        learning.champion = Champion(learning.models.index(names[champion.index]), -1, champion.since, champion.reason)
        if 0 <= champion.challenger < len(names) and names[champion.challenger] in learning.contenders:
            learning.champion.challenger = learning.models.index(names[champion.challenger])
    return notes


def _clear(pending: list[Decision], model: int) -> None:
    for decision in pending:
        decision.raw[model] = np.nan
        decision.shadow[model] = np.nan


def _sketches(entry: LearnedModel) -> dict[tuple[int, int], Sketch]:
    if any(group not in range(len(GROUPS)) for _, group, _ in entry.days):
        raise ValueError("residuals of an unknown group")
    return {(day, group): Sketch.unpack(packed) for day, group, packed in entry.days}


def _reordered(values: npt.NDArray[_Float], source: npt.NDArray[np.int64]) -> npt.NDArray[_Float]:
    """Rows in the order of today's models; NaN for those that were not there."""
    if values.ndim != 2 or len(values) <= source.max(initial=-1):
        raise ValueError("answers of models do not fit together")
    answer = values[source]
    answer[source < 0] = np.nan
    return answer

"""Asking the extenders of the configuration: after the plugins, about the nodes that these left.

An extender that fails ends the cycle with an Error, unless it is ignorable. Scores are a wish: one that cannot be had
is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.extending import Extender, ExtenderError, ExtenderFilter
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Indices, Snapshot
from scheduler_plugins.framework.status import SUCCESS, Code, Reason, Status, failed
from scheduler_plugins.framework.verdicts import Verdicts
from slacktide.observe import get_logger

_log = get_logger("scheduler.extenders")


def in_order(extenders: Sequence[Extender]) -> tuple[Extender, ...]:
    """Ignorable extenders last, otherwise as configured."""
    return tuple(sorted(extenders, key=lambda extender: extender.ignorable))


def filter_by(
    extenders: Sequence[Extender], pod: PodInfo, snapshot: Snapshot, rows: Indices, diagnosis: Diagnosis
) -> tuple[Status, Indices]:
    """(Success or Error, rows that every interested extender keeps); refusals go to `diagnosis`."""
    for extender in extenders:
        if not len(rows):
            break
        if not extender.filters or not extender.interested(pod):
            continue
        names = [snapshot.names[row] for row in rows]
        try:
            answer = extender.filter(pod, [snapshot.nodes[row] for row in rows])
            _check_known(extender, answer, names)
        except Exception as error:  # noqa: BLE001  # foreign code behind a wire; the scheduler goes on
            if extender.ignorable:
                _log.warning("ignorable extender left out", extender=extender.name, pod=pod.key, error=str(error))
                continue
            return _failure(extender, error), rows
        rows = _keep(extender.name, answer, names, rows, diagnosis)
    return SUCCESS, rows


def _failure(extender: Extender, error: Exception) -> Status:
    text = str(error) if isinstance(error, ExtenderError) else f"extender {extender.name} failed: {error!r}"
    return failed(text, error).by(extender.name)


def _check_known(extender: Extender, answer: ExtenderFilter, asked: Sequence[str]) -> None:
    unknown = sorted(answer.kept.difference(asked))
    if unknown:
        raise ExtenderError(f"{extender.name} kept {', '.join(unknown[:3])}, which it was not asked about")


def _keep(name: str, answer: ExtenderFilter, asked: Sequence[str], rows: Indices, diagnosis: Diagnosis) -> Indices:
    kept = np.fromiter((node in answer.kept for node in asked), dtype=np.bool_, count=len(asked))
    if kept.all():
        return rows
    lost = Reason(f"node(s) were left out by extender {name}")
    kinds: dict[str, int] = {}
    texts: list[Reason] = []
    codes = np.zeros(len(asked), dtype=np.int8)
    kind = np.zeros(len(asked), dtype=np.int32)
    positions = np.flatnonzero(~kept)
    for i in positions.tolist():
        node = asked[i]
        unresolvable = answer.unresolvable.get(node)
        text = answer.failed.get(node) if unresolvable is None else unresolvable
        codes[i] = Code.UNSCHEDULABLE if unresolvable is None else Code.UNRESOLVABLE
        reason = Reason(text) if text else lost
        kind[i] = kinds.setdefault(reason.text, len(texts))
        if kind[i] == len(texts):
            texts.append(reason)
    verdicts = Verdicts(codes, lambda i: (texts[kind[i]],), None, kind)
    diagnosis.refusals.append(Refusals(name, rows[positions], positions, verdicts))
    diagnosis.unschedulable_plugins.add(name)
    return rows[kept]


def score_by(
    extenders: Sequence[Extender], pod: PodInfo, snapshot: Snapshot, rows: Indices
) -> Mapping[str, NDArray[np.int64]]:
    """What each interested extender adds to the totals of `rows`. All are asked at once; a failure adds nothing."""
    asked = [extender for extender in extenders if extender.prioritizes and extender.interested(pod)]
    if not asked:
        return {}
    nodes = [snapshot.nodes[row] for row in rows]
    answers: dict[str, Mapping[str, int]] = {}

    def ask(extender: Extender) -> None:
        try:
            answers[extender.name] = extender.prioritize(pod, nodes)
        except Exception as error:  # noqa: BLE001  # foreign code behind a wire; scores are a wish
            _log.warning("no scores from extender", extender=extender.name, pod=pod.key, error=str(error))

    others = [threading.Thread(target=ask, args=(one,), daemon=True, name="extender") for one in asked[1:]]
    for thread in others:
        thread.start()
    ask(asked[0])
    for thread in others:
        thread.join()
    return {
        extender.name: np.fromiter(
            (answers[extender.name].get(node.name, 0) for node in nodes), dtype=np.int64, count=len(nodes)
        )
        for extender in asked
        if extender.name in answers
    }


def bind_by(extenders: Sequence[Extender], pod: PodInfo, node_name: str) -> Status | None:
    """Answer of the extender that binds this pod; None where the plugins are to do it."""
    for extender in extenders:
        if not extender.binds or not extender.interested(pod):
            continue
        try:
            status = extender.bind(pod, node_name)
        except Exception as error:  # noqa: BLE001  # foreign code behind a wire
            status = _failure(extender, error)
        if status.ok or not extender.ignorable:
            return status.by(extender.name)
        _log.warning("ignorable extender did not bind", extender=extender.name, pod=pod.key, error=status.message)
    return None

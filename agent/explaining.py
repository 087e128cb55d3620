"""What the agent tells of its decisions, made when somebody asks: the ladder, one pod, the last evictions.

It keeps the last turn and nothing else, so that a turn costs no more for it. What is asked for is worked out on the
thread of the request, from values that do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from agent.act.audit import decisions, read_tail
from agent.changes import Changes
from agent.eviction import EvictorView, Way
from agent.loop import Turn
from agent.policy.base import Request
from agent.policy.rung import RungStatus
from agent.policy.victims import spent_within
from agent.settings import AgentSettings
from agent.signals import signals
from agent.snapshot import PodSnapshot
from slacktide.explaining import Evictions, HeldPod, Hold, Ladder, RungLine

SHOWN_DECISIONS: Final = 200
_SHOWN_CHANGES: Final = 60


class Explainer:
    """Bodies of the agent's `/debug` routes. `look` is for the control thread, the rest for any.

    `settings` are those in force; `writes` says whether what is decided is carried out; `lost` how many audit lines
    the disk refused; `audit` reads the newest lines about a pod (None: any). Raises what reading the file raises.
    """

    def __init__(
        self,
        node: str,
        settings: Callable[[], AgentSettings],
        *,
        writes: Callable[[], bool],
        lost: Callable[[], int],
        since: float,
    ) -> None:
        self._node = node
        self._settings = settings
        self._writes = writes
        self._lost = lost
        self._changes = Changes(since)
        self._turn: Turn | None = None

    def look(self, turn: Turn) -> None:
        """After each turn."""
        self._changes.look(turn.plan.rungs, turn.snapshot.at, turn.wall)
        self._turn = turn

    def ladder(self) -> bytes:
        """`slacktide.explaining.Ladder`. Raises RuntimeError before the first turn."""
        turn, settings = self._seen(), self._settings()
        snapshot, plan = turn.snapshot, turn.plan
        return msgspec.json.encode(
            Ladder(
                node=self._node,
                at=turn.wall,
                line=turn.line,
                held=turn.held,
                writes=self._writes(),
                shortage=snapshot.shortage.reason if snapshot.shortage else "",
                closed=plan.closed,
                be_limit_millis=plan.be_limit_millis,
                be_limit_reason=plan.be_limit_reason,
                rungs=tuple(_rung(name, turn, settings) for name in settings.policies),
                changes=self._changes.newest(_SHOWN_CHANGES),
                since=self._changes.since,
            )
        )

    def pod(self, query: Mapping[str, str]) -> bytes:
        """`slacktide.explaining.HeldPod` of the pod with `uid`. Raises RuntimeError before the first turn."""
        turn, uid = self._seen(), query.get("uid", "")
        pod = next((one for one in turn.snapshot.pods if uid and one.identity.uid == uid), None)
        if pod is None:
            return msgspec.json.encode(HeldPod(node=self._node, at=turn.wall, known=False))
        return msgspec.json.encode(
            HeldPod(
                node=self._node,
                at=turn.wall,
                known=True,
                tier=pod.tier.value,
                cpu_millis=pod.usage.cpu_millis,
                memory_bytes=pod.usage.memory_bytes,
                quota_millis=pod.knobs.quota_millis if pod.knobs else None,
                throttled_ratio=pod.throttled_ratio,
                memory_high_rate=pod.memory_high_rate,
                frozen=pod.frozen,
                holds=tuple(_holds(pod, turn)) if self._writes() else (),
            )
        )

    def evictions(self, query: Mapping[str, str]) -> bytes:
        """`slacktide.explaining.Evictions`, of the pod NAMESPACE/NAME in `pod` alone where it is named."""
        settings, turn = self._settings(), self._turn
        tail = read_tail(settings.state_dir, SHOWN_DECISIONS, query.get("pod", ""))
        evictor = None if turn is None else turn.snapshot.evictor
        now = None if turn is None else turn.snapshot.at
        return msgspec.json.encode(
            Evictions(
                node=self._node,
                decisions=decisions(tail),
                since=tail.since,
                lost=self._lost(),
                unreadable=tail.skipped,
                evicted_in_hour=_spent(evictor, now, Way.EVICT),
                evictions_per_hour=settings.evict.max_per_hour,
                killed_in_hour=_spent(evictor, now, Way.KILL),
                kills_per_hour=settings.kill.max_per_hour,
            )
        )

    def _seen(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("no turn was done yet")
        return self._turn


def _rung(name: str, turn: Turn, settings: AgentSettings) -> RungLine:
    status: RungStatus | None = turn.plan.rungs.get(name)
    reason = turn.plan.reasons.get(name, turn.held or "not asked yet")
    if status is None:
        return RungLine(name=name, reason=reason)
    own = getattr(settings, name)
    return RungLine(
        name=name,
        reason=reason,
        level=status.level,
        top=status.top,
        for_seconds=None if status.since is None else max(0.0, turn.snapshot.at - status.since),
        opens_when=status.opens_when,
        quiet_seconds=getattr(own, "quiet_seconds", None),
        dwell_seconds=getattr(own, "min_dwell_seconds", None),
        signals=signals(name, turn.snapshot, settings),
    )


def _holds(pod: PodSnapshot, turn: Turn) -> Iterator[Hold]:
    names = {container.group: container.name or container.id for container in pod.containers}
    places = {pod.group: "", **names}
    requests: Iterator[tuple[tuple[str, str], Request]] = (
        ((group, knob.value), request) for (group, knob), request in turn.plan.settings.items() if group in places
    )
    for (group, knob), request in requests:
        yield Hold(
            knob=knob,
            value=str(request.value),
            policy=request.policy,
            reason=request.reason,
            container=places[group],
        )


def _spent(evictor: EvictorView | None, now: float | None, way: Way) -> int | None:
    return None if evictor is None or now is None else spent_within(evictor.spent, now, {way})

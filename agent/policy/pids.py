"""Policy *pids*: BE cannot use up the tasks (threads) that the node may have, so LS can always make its own.

    always   pids.max of every BE pod is `pod_max`, or all of BE's share of the node where that is less
    level 1  BE has `tighten_percent` of its share, or the node `node_percent` of all it may have: each pod keeps what
             it has and gets an equal part of what is left of the share, at least `headroom`

BE's share is `be_percent` of what the node may have (the lower of pid_max and threads-max). A limit ends nothing that
runs: fork and clone fail. A pod that had more than its limit when it was first looked at keeps that, and `headroom`, so
that its work goes on. It grows no more, and shrinks to the limit with its use. What the workload or the kubelet
(podPidsLimit) has set stays where it is lower. After a lost journal nothing tells their limit from ours: what the
kernel holds then counts as theirs until the pod ends.

A pod is measured some seconds after its tasks came, the node each turn. A pod that was not measured yet may have
`pod_min` while the rung is tight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Context, Desired, Request
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

_MOST: Final = 1 << 22


class PidsSettings(Settings, frozen=True, kw_only=True):
    """Settings of the pids policy. Tasks are threads."""

    pod_max: Annotated[
        int, Meta(ge=16, le=_MOST, description="tasks that a BE pod may have", extra={"reloadable": True})
    ] = 4096
    pod_min: Annotated[
        int, Meta(ge=16, le=_MOST, description="no BE pod is held to fewer tasks", extra={"reloadable": True})
    ] = 128
    be_percent: Annotated[
        float,
        Meta(
            ge=0.1,
            le=100,
            description="share of BE as a whole in the tasks that the node may have",
            extra={"reloadable": True},
        ),
    ] = 25.0
    tighten_percent: Annotated[
        float,
        Meta(ge=1, le=100, description="with so much of that share used, pods grow little", extra={"reloadable": True}),
    ] = 80.0
    node_percent: Annotated[
        float,
        Meta(
            ge=1,
            le=100,
            description="likewise with so much of the node's tasks used, whoever has them",
            extra={"reloadable": True},
        ),
    ] = 80.0
    hold_percent: Annotated[
        float,
        Meta(ge=0, le=100, description="they are held until so much less is used", extra={"reloadable": True}),
    ] = 15.0
    headroom: Annotated[
        int,
        Meta(
            ge=1,
            le=_MOST,
            description="tasks that a pod may always make beyond what it has",
            extra={"reloadable": True},
        ),
    ] = 64
    quiet_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="calm before they are let go", extra={"reloadable": True})
    ] = 30.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="they are held for at least this long", extra={"reloadable": True})
    ] = 30.0

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError."""
        if self.pod_min > self.pod_max:
            raise ValueError(f"pod_min {self.pod_min} is above pod_max {self.pod_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PidsState:
    """By group: `over` is what pods may have that had more than the limit at first, `tight` the limit of the rung.

    `seen` are the groups that were measured once.
    """

    rung: RungState = field(default_factory=RungState)
    seen: frozenset[str] = frozenset()
    over: Mapping[str, int] = field(default_factory=dict)
    tight: Mapping[str, int] = field(default_factory=dict)


class Pids:
    """See the module."""

    name = "pids"
    urgent = False
    prompt = True

    def start(self, context: Context) -> PidsState:  # noqa: ARG002 - the same on every node
        """Begin open; the first turn measures all."""
        return PidsState()

    def decide(
        self, snapshot: NodeSnapshot, state: PidsState, settings: PidsSettings, context: Context
    ) -> tuple[Desired, PidsState]:
        """pids.max of BE pods."""
        if Knob.PIDS_MAX not in context.capabilities.writable:
            return Desired(reason="pids.max cannot be set on this node"), PidsState()
        pods = snapshot.pods_of(Tier.BE)
        share = _share(snapshot, settings)
        limit = settings.pod_max if share is None else min(settings.pod_max, max(share, settings.pod_min))
        if not snapshot.urgent:
            state = _looked(snapshot, pods, state, settings, limit)
        rung = state.rung
        reason = rung.reason or (f"each BE pod may have {limit} tasks" if pods else "no BE pod is here")
        requests = tuple(
            Request(
                policy=self.name,
                group=pod.group,
                knob=Knob.PIDS_MAX,
                value=_value(pod.group, state, settings, limit),
                reason=reason,
            )
            for pod in pods
        )
        less = settings.tighten_percent - settings.hold_percent
        status = status_of(
            self.name,
            rung,
            1,
            f"BE has less than {max(0.0, less):g} % of its share of the node's tasks, the node less than "
            f"{max(0.0, settings.node_percent - settings.hold_percent):g} % of all",
        )
        return Desired(requests=requests, reason=reason, rung=status), state


def _share(snapshot: NodeSnapshot, settings: PidsSettings) -> int | None:
    """Tasks that BE as a whole may have."""
    return None if snapshot.tasks_max is None else int(snapshot.tasks_max * settings.be_percent / 100)


def _value(group: str, state: PidsState, settings: PidsSettings, limit: int) -> int:
    """The limit of one pod."""
    wide = max(limit, state.over.get(group, 0))
    return min(wide, state.tight.get(group, settings.pod_min)) if state.rung.level else wide


def _looked(
    snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], state: PidsState, settings: PidsSettings, limit: int
) -> PidsState:
    """The state after a turn."""
    rules = RungRules(top=1, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds)
    rung = advance(state.rung, _judge(snapshot, pods, settings), snapshot.at, rules)
    seen = frozenset(pod.group for pod in pods if pod.pids is not None or pod.group in state.seen)
    over = {pod.group: mark for pod in pods if (mark := _over(pod, state, settings, limit)) > limit}
    return PidsState(
        rung=rung, seen=seen, over=over, tight=_tight(snapshot, pods, state, settings) if rung.level else {}
    )


def _judge(snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], settings: PidsSettings) -> Verdict:
    share, most, tasks = _share(snapshot, settings), snapshot.tasks_max, snapshot.tasks
    if not pods:
        return Verdict(needed=0, calm=True, reason="no BE pod is here")
    if share is None or not most:
        return Verdict(needed=None, calm=False, reason="held: it is not known how many tasks the node may have")
    known = [pod.pids for pod in pods if pod.pids is not None]
    used, percent = sum(known), 100 * sum(known) / max(1, share)
    if percent >= settings.tighten_percent:
        return Verdict(needed=1, calm=False, reason=f"BE has {used} of the {share} tasks that are its share")
    if tasks is not None and 100 * tasks / most >= settings.node_percent:
        return Verdict(needed=1, calm=False, reason=f"the node has {tasks} of {most} tasks")
    if len(known) < len(pods) or tasks is None:
        return Verdict(needed=None, calm=False, reason="held: it is not known how many tasks there are")
    calm = percent < settings.tighten_percent - settings.hold_percent
    calm = calm and 100 * tasks / most < settings.node_percent - settings.hold_percent
    said = f"BE has {used} of {share} tasks, the node {tasks} of {most}"
    return Verdict(needed=0, calm=calm, reason=said if calm else f"held: {said}")


def _over(pod: PodSnapshot, state: PidsState, settings: PidsSettings, limit: int) -> int:
    """What a pod may have that had more than the limit when it was first measured; 0 for others."""
    before = state.over.get(pod.group, 0)
    if pod.pids is None:
        return before
    now = pod.pids + settings.headroom
    if pod.group in state.seen:
        return min(before, now)
    return now if pod.pids > limit else 0


def _tight(
    snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], state: PidsState, settings: PidsSettings
) -> dict[str, int]:
    """Limits while the rung is engaged. Those that were given stay; what is left of the share goes to the others."""
    share = _share(snapshot, settings) or 0
    given = {pod.group: state.tight[pod.group] for pod in pods if pod.group in state.tight}
    new = {pod.group: pod.pids for pod in pods if pod.group not in given and pod.pids is not None}
    left = max(0, share - sum(given.values()) - sum(new.values()))
    more = max(settings.headroom, left // max(1, len(new)))
    return given | {group: max(settings.pod_min, use + more) for group, use in new.items()}

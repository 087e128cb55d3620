"""What all policies want now, and what of it was accepted: asked one by one, in the order of the ladder.

One policy must never take the others with it. One that raises keeps what it wanted last; one whose wish the executor
refuses is set aside for what it wanted when a plan was last accepted. Either is told once a reason, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from agent.act.check import PlanError
from agent.eviction import Victim
from agent.policy.base import Context, Desired, Glimpse, Plan, Policy, UrgentPolicy, arbitrate
from agent.policy.rung import RungStatus
from agent.policy.shortage import NOTHING_LEARNED, CpiBaselines, judge, learned, shortage
from agent.pressure import Pressure, Shortage
from agent.settings import AgentSettings
from agent.snapshot import NodeSnapshot
from slacktide.observe import get_logger, traces

_LOG: Final = get_logger("agent.loop")


def everyone(_policy: Policy) -> bool:
    """All policies."""
    return True


class Decisions:
    """Keeps the states of policies. `counters` gets what they count, and `errors`. The control thread uses it."""

    def __init__(self, policies: tuple[Policy, ...], context: Context, counters: Counter[str]) -> None:
        self._policies = policies
        self._urgent = tuple(cast("UrgentPolicy", policy) for policy in policies if policy.urgent)
        self._context = context
        self._counters = counters
        self._states: dict[str, Any] = {policy.name: policy.start(context) for policy in policies}
        self._desired: dict[str, Desired] = {}
        self._accepted: dict[str, Desired] = {}
        self._failures: dict[str, str] = {}
        self._refusals: dict[str, str] = {}
        self._aside: set[str] = set()
        self._cpi: CpiBaselines = NOTHING_LEARNED
        self._calm: tuple[Glimpse, AgentSettings] | None = None
        """A glimpse that alarmed nobody since a policy was asked last: most beats show the same."""

    @traces.traced("agent.decide")
    def decide(
        self, snapshot: NodeSnapshot, settings: AgentSettings, asked: Callable[[Policy], bool] = everyone
    ) -> NodeSnapshot:
        """Ask the policies that `asked` names; the others keep what they wanted. The picture with its judgement."""
        if not snapshot.urgent:
            self._cpi = learned(self._cpi, snapshot, settings.shortage)
        snapshot = replace(snapshot, shortage=shortage(snapshot, settings.shortage, self._cpi))
        for policy in self._policies:
            if asked(policy):
                self._ask(policy, snapshot, settings)
        return snapshot

    def _ask(self, policy: Policy, snapshot: NodeSnapshot, settings: AgentSettings) -> None:
        own = getattr(settings, policy.name)
        self._calm = None
        try:
            desired, state = policy.decide(snapshot, self._states[policy.name], own, self._context)
        except Exception as error:  # noqa: BLE001 - the other rungs must still protect LS; told and counted
            self._hold(policy.name, error)
            return
        self._desired[policy.name], self._states[policy.name] = desired, state
        self._failures.pop(policy.name, None)
        self._aside.discard(policy.name)
        for name, times in desired.counted.items():
            self._counters[name] += times

    def alarmed(self, glimpse: Glimpse, settings: AgentSettings) -> list[Policy]:
        """The urgent policies that this beat gives a reason to be asked."""
        if self._calm is not None and self._calm[1] is settings and self._calm[0] == glimpse:
            return []
        alarmed: list[Policy] = [policy for policy in self._urgent if self._alarms(policy, glimpse, settings)]
        self._calm = None if alarmed else (glimpse, settings)
        return alarmed

    def _alarms(self, policy: UrgentPolicy, glimpse: Glimpse, settings: AgentSettings) -> bool:
        """A policy that cannot say whether it is alarmed is asked, and held if it fails at that, too."""
        try:
            return policy.alarmed(glimpse, self._states[policy.name], getattr(settings, policy.name))
        except Exception as error:  # noqa: BLE001 - the other rungs must still protect LS; told
            self._tell(f"{policy.name}.alarmed", error, "a policy cannot say what alarms it, and is asked in each beat")
            return True

    def judge(
        self, pressure: Pressure | None, busy: float | None, snapshot: NodeSnapshot, settings: AgentSettings
    ) -> Shortage:
        """Whether LS is short, with pressure and busy share read since the snapshot of the last turn."""
        return judge(pressure, busy, snapshot, settings.shortage, self._cpi)

    def _hold(self, name: str, error: Exception) -> None:
        self._counters["errors"] += 1
        self._tell(name, error, "a policy failed; what it wanted last is held, the others go on")
        self._stand_in(name, self._desired.get(name, Desired()), f"held, since it failed: {error!r}")

    def _tell(self, part: str, error: Exception, what: str) -> None:
        """Log a failure of a policy or of a part of it, once as long as it stays the same."""
        if self._failures.get(part) != repr(error):
            self._failures[part] = repr(error)
            _LOG.exception(what, policy=part)

    def refused(self, error: PlanError) -> None:
        """Put what its policy wanted when a plan was last accepted in place of a wish that was refused."""
        self._counters["errors"] += 1
        if self._refusals.get(error.policy) != str(error):
            self._refusals[error.policy] = str(error)
            _LOG.error("a plan was refused; the policy is set aside, the others go on", problem=str(error))
        self._aside.add(error.policy)
        last = self._accepted.pop(error.policy, Desired())
        self._stand_in(error.policy, last, f"set aside, since its wish was refused: {error}")

    def _stand_in(self, name: str, last: Desired, reason: str) -> None:
        """Limits are held; acts are not repeated on the word of a policy that is broken."""
        self._desired[name] = replace(last, reason=reason, victims=(), reclaims=(), masks=None, counted={})

    def accepted(self) -> None:
        """The plan of now was carried out."""
        self._accepted = dict(self._desired)
        self._refusals = {name: text for name, text in self._refusals.items() if name in self._aside}

    @property
    def attempts(self) -> int:
        """How often a plan can be refused before none of it is left."""
        return 2 * len(self._policies) + 1

    def plan(self) -> Plan:
        """What all together want."""
        return arbitrate(
            (policy.name, self._desired[policy.name]) for policy in self._policies if policy.name in self._desired
        )

    def ladder(self) -> Mapping[str, RungStatus]:
        """Where each rung stands after the last decision."""
        return {desired.rung.name: desired.rung for desired in self._desired.values() if desired.rung is not None}

    def victims(self) -> tuple[Victim, ...]:
        """Pods that shall go, as of the last decisions."""
        return tuple(victim for desired in self._desired.values() for victim in desired.victims)

    def limit(self) -> int | None:
        """The strictest limit on BE that any policy wants now."""
        limits = [desired.be_limit_millis for desired in self._desired.values() if desired.be_limit_millis is not None]
        return min(limits, default=None)

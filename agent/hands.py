"""What the loop's plans do to the kernel: cgroups through the executor, threads through it, problems into the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, TypeVar

from agent.act.executor import Executor, Outcome, PlanError
from agent.arrival import part_of
from agent.decisions import Decisions
from agent.host.cgroup import PodGroup
from agent.policy.base import Plan
from agent.snapshot import NodeSnapshot, PodIdentity
from agent.threads import ThreadKey
from slacktide.observe import get_logger, traces

_LOG: Final = get_logger("agent.loop")

P = TypeVar("P")
_Act = Callable[[P, Mapping[str, PodGroup], Mapping[str, PodIdentity]], Outcome]


class Hands:
    """Carries plans out on the pods that API and kernel agree on; on the control thread alone.

    While `observes` nothing is written. `counters`: errors.
    """

    def __init__(
        self, executor: Executor, decisions: Decisions, observes: Callable[[], bool], counters: Counter[str]
    ) -> None:
        self._executor = executor
        self._decisions = decisions
        self._observes = observes
        self._counters = counters
        self._refused: frozenset[ThreadKey] = frozenset()

    @traces.traced("agent.apply")
    def apply(
        self, plan: Plan, snapshot: NodeSnapshot, groups: Mapping[str, PodGroup], only: Collection[str] | None = None
    ) -> Plan:
        """Carry out what the plan wants of cgroups, or of these pods and their containers alone.

        A plan is carried out whole or not at all. When it is refused for one policy's wish, that policy is set aside
        and the rest is a new plan: a mistake in one must not leave LS without the others. Returns what was carried out.
        """
        if self._observes():
            return plan
        act = partial(self._executor.apply, whole=only is None)
        named = groups if only is None else {group: pod for group, pod in groups.items() if group in only}
        for _ in range(self._decisions.attempts):
            try:
                outcome = _done(act, plan if only is None else part_of(plan, only), snapshot, named)
            except PlanError as error:
                self._decisions.refused(error)
                plan = self._decisions.plan()
                continue
            self._decisions.accepted()
            # While a runtime makes a container, half-made cgroups and values of its own are nothing to worry about.
            _log_problems(outcome, calm=only is not None)
            break
        return plan

    def place(self, plan: Plan, snapshot: NodeSnapshot, groups: Mapping[str, PodGroup]) -> None:
        """Carry out what the plan wants of threads; a plan that is refused as a whole is so for each of them."""
        if plan.masks is None or self._observes():
            return
        try:
            outcome = _done(self._executor.place, plan.masks, snapshot, groups)
        except PlanError as error:
            self._counters["errors"] += 1
            refused = frozenset(wish.key for wish in plan.masks.wishes)
            outcome = Outcome(problems=(f"masks refused as a whole: {error}",), refused=refused)
        self._refused |= outcome.refused
        _log_problems(outcome)

    def take_refused(self) -> frozenset[ThreadKey]:
        """Threads that could not be placed since this was asked last."""
        refused, self._refused = self._refused, frozenset()
        return refused


def _done(act: _Act[P], plan: P, snapshot: NodeSnapshot, groups: Mapping[str, PodGroup]) -> Outcome:
    """Raises PlanError."""
    return act(plan, groups, {pod.group: pod.identity for pod in snapshot.pods})


def _log_problems(outcome: Outcome, *, calm: bool = False) -> None:
    log = _LOG.info if calm else _LOG.warning
    for problem in outcome.problems:
        log("executor", problem=problem)

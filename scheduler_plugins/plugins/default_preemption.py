"""DefaultPreemption: makes room for a pod that fits nowhere, by removing pods that give way to it.

Candidates are nodes whose refusal says that removing pods may help. The best of them is taken: its victims are asked
to go, and the pod is nominated to it. The rules are those of the stock scheduler, with the tier before the priority
(`framework.yielding`): best-effort pods never remove pods of another tier, and are removed before those.

With thousands of nodes only a share of the candidates is tried: those on which the least has to go as far as resources
tell, until no other can be better. Source: kubernetes pkg/scheduler/framework/plugins/defaultpreemption, 1.35.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import ASSIGNED_POD_DELETE, Registration
from scheduler_plugins.framework.interfaces import (
    EnqueueExtensions,
    Handle,
    PostFilterPlugin,
    PostFilterResult,
    WhatIf,
)
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.framework.snapshot import Bools, Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, PluginFailure, Status, unschedulable
from scheduler_plugins.framework.yielding import Claim, MayBeRemoved, gives_way
from scheduler_plugins.plugins.node_resources_fit import WANTED
from scheduler_plugins.plugins.preemption_budgets import BudgetBook, Budgets
from scheduler_plugins.plugins.preemption_candidates import Candidate, Rank, best, protected_first, rank, victims_of
from scheduler_plugins.plugins.preemption_departures import Departures
from scheduler_plugins.plugins.preemption_extenders import ask_extenders
from scheduler_plugins.plugins.preemption_room import Removable, Room, foretold
from scheduler_plugins.plugins.preemption_trial import Trial
from slacktide.cluster.kinds import PDBS, Kind, PodDisruptionBudget
from slacktide.errors import SettingsError
from slacktide.objects import is_terminating
from slacktide.observe import get_logger

_log = get_logger("scheduler.preemption")

_PREEMPTED: Final = "PreemptionByScheduler"
_FEW: Final = 16
"""So many candidates are all tried, whatever is foretold of them."""
_READ_SECONDS: Final = 0.03
"""So long nodes that are new here are read, and candidates are looked at; every other pod waits meanwhile."""
_MOST_SECONDS: Final = 0.1
"""After so long no further node is tried; the next attempt begins elsewhere."""

_NO_VICTIMS: Final = "No preemption victims found for incoming pod"
_NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
_NOT_TRIED: Final = "node(s) were not tried, as the others took too long"


class DefaultPreemptionArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How many candidates to look at: a share of the nodes, but at least some number."""

    min_candidate_nodes_percentage: Annotated[
        int, Meta(description="Share of the nodes where preemption may help that are looked at, 0 to 100.")
    ] = 10
    min_candidate_nodes_absolute: Annotated[
        int, Meta(description="Candidates that are looked at in any case, if there are so many.")
    ] = 100

    def problems(self) -> list[str]:
        """What is wrong with the arguments, each thing in one sentence."""
        found = []
        percentage, absolute = self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute
        if not 0 <= percentage <= 100:
            found.append(f"minCandidateNodesPercentage is {percentage}; it must be 0 to 100")
        if absolute < 0:
            found.append(f"minCandidateNodesAbsolute is {absolute}; it must be 0 or more")
        if percentage == 0 and absolute == 0:
            found.append("minCandidateNodesPercentage and minCandidateNodesAbsolute are both 0; no node would be tried")
        return found

    def candidates(self, nodes: int) -> int:
        """How many candidates are enough, of `nodes` where preemption may help."""
        wanted = max(nodes * self.min_candidate_nodes_percentage // 100, self.min_candidate_nodes_absolute)
        return max(1, min(wanted, nodes))


@dataclass(frozen=True, slots=True)
class _Prospect:
    """A node, what may be removed from it, and what has to go as far as resources tell."""

    row: int
    removable: Sequence[PodInfo]
    violating: frozenset[str]
    foretold: tuple[PodInfo, ...]
    rank: Rank


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of the nodes."""

    state: CycleState
    pod: PodInfo
    snapshot: Snapshot
    what_if: WhatIf
    budgets: BudgetBook

    @property
    def wanted(self) -> Mapping[str, int]:
        """Resources that NodeResourcesFit judges; none where it takes no part."""
        return self.state.read(WANTED) if WANTED in self.state else {}


class DefaultPreemption(PostFilterPlugin, EnqueueExtensions):
    """See the module. `choose` gives a number below its argument: where to begin among the nodes."""

    name = "DefaultPreemption"

    def __init__(
        self, args: DefaultPreemptionArgs, handle: Handle, choose: Callable[[int], int] = random.randrange
    ) -> None:
        """Raises SettingsError for arguments out of range."""
        if problems := args.problems():
            raise SettingsError([f"arguments of plugin {self.name}: {problem}" for problem in problems])
        self._args = args
        self._handle = handle
        self._choose = choose
        self._room = Room()
        self._budgets = Budgets()
        self._departures = Departures(handle)

    def kinds(self) -> Sequence[Kind[PodDisruptionBudget]]:
        """Disruption budgets."""
        return (PDBS,)

    def events_to_register(self) -> Sequence[Registration]:
        """It refuses no pod, so that nothing wakes one in its name; a pod that left is what its pods wait for."""
        return (Registration(ASSIGNED_POD_DELETE),)

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, diagnosis: Diagnosis, what_if: WhatIf
    ) -> PostFilterResult:
        """Success with the node on which room is being made; Unschedulable says why there is none."""
        self._handle.evictor.attempted()
        helpful = _helpful(snapshot, diagnosis)
        reason = self._not_eligible(pod, snapshot, helpful)
        if reason:
            return PostFilterResult(unschedulable(f"preemption: {reason}"))
        question = _Question(state, pod, snapshot, what_if, self._budgets.now(self._handle.objects))
        try:
            candidates, not_tried = self._candidates(question, helpful)
            if not candidates:
                return PostFilterResult(_hopeless(helpful, not_tried), nominate="")
            left = ask_extenders(self._handle.extenders, pod, candidates)
        except PluginFailure as error:
            return PostFilterResult(error.status)
        if not left:
            return PostFilterResult(unschedulable("preemption: no candidate is left after the extenders were asked"))
        chosen = best(left)
        self._take(pod, chosen)
        return PostFilterResult(SUCCESS, nominate=chosen.node)

    def _nominated(self, pod: PodInfo) -> str:
        return self._handle.nominations.node_of(pod.uid) or pod.pod.status.nominated_node_name

    def _not_eligible(self, pod: PodInfo, snapshot: Snapshot, helpful: Bools) -> str:
        """Why the pod may not remove others now; empty when it may."""
        if pod.pod.spec.preemption_policy == "Never":
            return "not eligible due to preemptionPolicy=Never."
        row = snapshot.index.get(self._nominated(pod))
        if row is None or not helpful[row]:
            self._departures.forget(pod)
            return ""
        node = snapshot.nodes[row]
        going = any(_preempted(other) and gives_way(other, to=pod) for other in node.pods.values())
        if self._departures.under_way(pod, node.name, snapshot) or going:
            return "not eligible due to a terminating pod on the nominated node."
        return ""

    def _candidates(self, question: _Question, helpful: Bools) -> tuple[list[Candidate], int]:
        """(nodes on which room can be made, how many were not tried for lack of time)."""
        claim, wanted = Claim.of(question.pod), question.wanted
        counts = question.snapshot.pods_matching(MayBeRemoved(claim))
        rows = np.flatnonzero(helpful & (counts > 0))
        if not len(rows):
            return [], 0
        started = self._handle.monotonic()
        rows = np.roll(rows, -self._choose(len(rows)))
        removable = self._room.removable(claim, question.snapshot, rows, lambda: self._within(started, _READ_SECONDS))
        unread = len(rows) - len(removable.rows)
        rows = removable.cheapest_first(wanted, removable.rows[removable.enough(wanted, removable.rows)])
        most = self._args.candidates(int(np.count_nonzero(helpful)))
        found: list[Candidate] = []
        left = rows.tolist()
        while left and not found and self._within(started, _MOST_SECONDS):
            prospects = self._prospects(question, removable, left[:most], started)
            tried = self._try(question, prospects, found, started)
            left = left[tried:]
        if unread and not found:
            # What was read is kept, so that the next attempt gets further; no event would bring it about.
            self._handle.activate([question.pod])
        return found, unread + len(left)

    def _within(self, started: float, seconds: float) -> bool:
        return self._handle.monotonic() - started < seconds

    def _prospects(
        self, question: _Question, removable: Removable, rows: Sequence[int], started: float
    ) -> Sequence[_Prospect]:
        """The best first; some in any case, and no more than there is time for."""
        found: list[_Prospect] = []
        for row in rows:
            if len(found) >= _FEW and not self._within(started, _READ_SECONDS):
                break
            found.append(_foretell(question, removable, row))
        return sorted(found, key=lambda one: one.rank)

    def _try(self, question: _Question, prospects: Sequence[_Prospect], found: list[Candidate], started: float) -> int:
        """Try nodes until none of the others can be better, or time is up; candidates go to `found`.

        A node that suits with nobody gone was refused by an extender: only one that preempts can say who has to go.
        """
        asked = any(one.preempts and one.interested(question.pod) for one in self._handle.extenders)
        exhaustive = asked or len(prospects) <= _FEW
        least: Rank | None = None
        for tried, prospect in enumerate(prospects):
            if least is not None and not exhaustive and least <= prospect.rank:
                return tried
            if tried and not self._within(started, _MOST_SECONDS):
                return tried
            node = question.snapshot.nodes[prospect.row]
            trial = Trial(question.what_if, question.state, question.pod, node)
            victims = trial.victims(prospect.removable, prospect.foretold)
            if victims or (asked and victims is not None):
                candidate = Candidate(node.name, victims_of(victims, prospect.violating))
                found.append(candidate)
                this = rank(candidate.victims)
                least = this if least is None else min(least, this)
        return len(prospects)

    def _take(self, pod: PodInfo, chosen: Candidate) -> None:
        """Ask the victims to go, and pods that were to come to the node to look elsewhere if they give way."""
        victims = chosen.victims.pods
        _log.info(
            "preempting", pod=pod.key, node=chosen.node, victims=len(victims), violations=chosen.victims.pdb_violations
        )
        self._handle.evictor.chosen(victims)
        for other in self._handle.nominations.on(chosen.node):
            if other.uid != pod.uid and gives_way(other, to=pod):
                self._handle.submit(self._withdrawal(other))
        self._departures.begin(pod, chosen.node, victims)

    def _withdrawal(self, other: PodInfo) -> Callable[[], None]:
        def withdraw() -> None:
            status = self._handle.evictor.withdraw(other)
            if not status.ok:
                _log.warning("nomination not taken back", pod=other.key, error=status.message)
            self._handle.activate([other])

        return withdraw


def _helpful(snapshot: Snapshot, diagnosis: Diagnosis) -> Bools:
    """Of each row, whether its refusal says that removing pods may help."""
    absent = diagnosis.absent is not None and diagnosis.absent.code is Code.UNSCHEDULABLE
    result: Bools = np.full(len(snapshot), absent, dtype=np.bool_)
    for refusal in diagnosis.refusals:
        result[refusal.rows] = refusal.verdicts.codes[refusal.positions] == Code.UNSCHEDULABLE
    return result


def _preempted(pod: PodInfo) -> bool:
    """Whether the pod is going because of a preemption."""
    return is_terminating(pod.pod) and any(
        (one.type, one.status, one.reason) == ("DisruptionTarget", "True", _PREEMPTED)
        for one in pod.pod.status.conditions
    )


def _foretell(question: _Question, removable: Removable, row: int) -> _Prospect:
    pods = removable.on(row)
    violating = frozenset(question.budgets.violating(pods))
    ordered = protected_first(pods, violating)
    going = foretold(question.snapshot.nodes[row], ordered, question.wanted)
    return _Prospect(row, ordered, violating, going, rank(victims_of(going, violating)))


def _hopeless(helpful: Bools, not_tried: int) -> Status:
    count = int(np.count_nonzero(helpful))
    counted = ((count - not_tried, _NO_VICTIMS), (len(helpful) - count, _NOT_HELPFUL), (not_tried, _NOT_TRIED))
    reasons = sorted(f"{number} {text}" for number, text in counted if number)
    return unschedulable(f"preemption: 0/{len(helpful)} nodes are available: {', '.join(reasons)}.")


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(DefaultPreemption.name, DefaultPreemption, DefaultPreemptionArgs)

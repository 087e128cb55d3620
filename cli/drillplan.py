"""The plan of a drill, shown before it begins: what node and API say, what speaks against it, what will happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from cli.drillfacts import BudgetFacts, Facts
from cli.drillorder import Order
from cli.drillreport import HERE, Target, Victim, victims_of
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

if TYPE_CHECKING:
    from slacktide.transport import Connection

SKEW_SAID_MILLIS: Final = 2000
"""A clock that is further away than this is remarked on."""

PLAN_SECONDS: Final = 20.0
"""The agent asks the API server before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the agent says to a plan. `knows` is False for one that is too old to say anything.

    `skew_millis`: how far the node's clock is ahead of ours.
    """

    knows: bool = True
    refusals: tuple[str, ...] = ()
    victims: tuple[Victim, ...] = ()
    expectations: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    skew_millis: int | None = None

    def now(self, here: float) -> float:
        """What time it is by the node's clock, when ours says `here` (seconds since the epoch)."""
        return here + (self.skew_millis or 0) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be done, and why not; `remarks` are worth knowing and keep nobody from it."""

    order: Order
    told: Told
    facts: Facts
    refusals: tuple[str, ...]
    remarks: tuple[str, ...]


class NotHeard(Exception):
    """The agent refused the call, or did not answer; the text says which."""


def ask(connection: Connection, order: Order, *, waits: bool, wall_clock: Callable[[], float] = time.time) -> Told:
    """What the agent would meet. Raises NotHeard."""
    stub = drill_pb2_grpc.DrillServiceStub(connection.channel)
    request = pb.PlanDrillRequest(order=order.request())
    before = wall_clock()
    try:
        plan = stub.PlanDrill(request, timeout=PLAN_SECONDS, wait_for_ready=waits, metadata=connection.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Told(knows=False)
        raise NotHeard(f"{error.code().name.lower()}: {error.details()}") from None
    now = (before + wall_clock()) / 2
    return Told(
        refusals=tuple(plan.refusals),
        victims=victims_of(plan.victims),
        expectations=tuple(plan.expectations),
        targets=tuple(
            Target(step=one.step, within_millis=one.within_millis, after_lowered=one.after_lowered)
            for one in plan.targets
        ),
        skew_millis=round(plan.now_unix_millis - now * 1000) if plan.now_unix_millis else None,
    )


def judge(order: Order, told: Told, facts: Facts, *, last_node: bool, in_cluster: bool) -> Plan:
    """The plan, with everything that speaks against it at once. Pure."""
    refusals = [f"{order.node}: {trouble}" for trouble in facts.node.troubles]
    remarks = list(facts.unknown)
    refusals += told.refusals
    if facts.node.open_for_be and not facts.others_open:
        only = f"{order.node} is the only node where best-effort work may go"
        if last_node or not in_cluster:
            remarks.append(f"{only}: what is throttled or evicted there has nowhere else to go")
        else:
            refusals.append(f"{only}: with --last-node it is drilled all the same")
    if order.evicts and not told.knows:
        refusals.append("the agent is too old to name whom it would evict: update it, or drill with --victims-max 0")
    for problem in _budgets(facts.budgets):
        if order.evicts:
            refusals.append(problem)
        else:
            remarks.append(f"{problem}; nobody is evicted this time")
    if told.skew_millis is not None and abs(told.skew_millis) > SKEW_SAID_MILLIS:
        way = "ahead of" if told.skew_millis > 0 else "behind"
        remarks.append(
            f"the clock of {order.node or HERE} is {abs(told.skew_millis) / 1000:.1f} s {way} this machine's: times in "
            "the report count from the raise by the node's monotonic clock, dates are the node's"
        )
    if not told.knows:
        remarks.append("the agent is too old to tell a plan: neither victims nor targets are known")
    return Plan(order=order, told=told, facts=facts, refusals=tuple(refusals), remarks=tuple(remarks))


def _budgets(budgets: Sequence[BudgetFacts]) -> list[str]:
    """What the Eviction API would refuse, in words."""
    said = []
    held: dict[str, list[str]] = {}
    for one in budgets:
        for pod in one.victims:
            held.setdefault(pod, []).append(one.name)
        if one.allowed is None:
            said.append(f"budget {one.name} has not been counted yet: whether {one.victims[0]} may go is not known")
        elif len(one.victims) > one.allowed:
            pods = ", ".join(one.victims)
            said.append(f"budget {one.name} lets {one.allowed} of its pods go now, {len(one.victims)} would: {pods}")
    said += [
        f"{pod} falls under several budgets ({', '.join(names)}), which the API never lets go"
        for pod, names in held.items()
        if len(names) > 1
    ]
    return said


def lines(plan: Plan) -> list[str]:
    """The plan as text, a line each."""
    order, told, facts = plan.order, plan.told, plan.facts
    load = f", burning {order.load_percent} % of idle CPU" if order.load_percent else ""
    made = [f"Plan: {order.kind.value} on {order.node or HERE} for {order.duration_seconds:g} s{load}"]
    if facts.node.state:
        made.append(f"  node      {facts.node.state}")
    made += [f"  victim    {_victim(one, facts)}" for one in told.victims]
    if not told.victims and told.knows:
        made.append(f"  victims   none expected ({_limit(order)})")
    elif told.victims:
        made.append(f"  limit     {_limit(order)}")
    made += [f"  expected  {one}" for one in told.expectations]
    made += [f"  target    {_target(one)}" for one in told.targets]
    made += [f"  note      {one}" for one in plan.remarks]
    made += [f"  refused   {one}" for one in plan.refusals]
    return made


def _limit(order: Order) -> str:
    return "a dry run: nobody is evicted" if order.dry_run else f"at most {order.victims_max} evicted"


def _victim(victim: Victim, facts: Facts) -> str:
    name = f"{victim.namespace}/{victim.name}"
    under = [one for one in facts.budgets if name in one.victims]
    budgets = "".join(
        f" [budget {one.name}: {'not counted' if one.allowed is None else one.allowed} may go]" for one in under
    )
    return f"{name}: {victim.reason}{budgets}"


def _target(target: Target) -> str:
    origin = " after the trouble" if target.after_lowered else ""
    return f"{target.step} within {target.within_millis / 1000:g} s{origin}"

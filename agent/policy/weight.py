"""Policy *weight*: BE yields the CPU to everyone else, always on, costs BE nothing that LS does not need.

Where the kernel has cpu.idle (5.15), a BE pod's cgroup is put into the idle class; otherwise it gets the smallest
weight. It is set on the pod's own cgroup: on the QoS root the kubelet would put it back, and every later update of
its weight there would fail with EINVAL (koordinator #2732). Containers below an idle pod keep their weights among
themselves.

Kernels of Anolis, OpenCloudOS and openEuler have group identity as well (cpu.bvt_warp_ns): BE gets -1, and LS 2 where
`bvt_ls` says so. It is not inherited, so a pod and each of its containers get it, and a QoS root never does. Core
scheduling keeps LS and BE off the two threads of one core; it does not go together with group identity (koordinator
#1829), so where both are asked for, group identity stays and the reason says so.

Way back: idle 0 *and* the old weight, because the kernel forgets the weight when a group becomes idle; the executor
has the original in its journal. Measured effect: reference in docs, LS p99 1.03 to 1.2 times alone with two or more
BE threads a CPU.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context, Desired, Request
from agent.snapshot import NodeSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

BVT_BE: Final = -1
BVT_LS: Final = 2
"""Group identity: -1 yields to everyone, 2 is never kept waiting by lower ones. Source: Anolis group identity docs."""


class WeightSettings(Settings, frozen=True, kw_only=True):
    """Settings of the weight policy."""

    idle: Annotated[
        bool,
        Meta(
            description="use cpu.idle where the kernel has it; false always takes the smallest weight",
            extra={"reloadable": True},
        ),
    ] = True
    bvt: Annotated[
        bool,
        Meta(description="give BE group identity -1 where the kernel has cpu.bvt_warp_ns", extra={"reloadable": True}),
    ] = True
    bvt_ls: Annotated[
        bool,
        Meta(description="give LS group identity 2 as well; needs bvt", extra={"reloadable": True}),
    ] = False
    core_scheduling: Annotated[
        bool,
        Meta(
            description="one core scheduling cookie a tier, so that no core runs LS and BE at once",
            extra={"reloadable": True},
        ),
    ] = False


class Weight:
    """See the module."""

    name = "weight"
    urgent = False
    prompt = True

    def start(self, context: Context) -> None:
        """It remembers nothing."""

    def decide(
        self, snapshot: NodeSnapshot, state: Any, settings: WeightSettings, context: Context
    ) -> tuple[Desired, Any]:
        """Every BE pod in the idle class, or with the smallest weight; group identity where there is any."""
        choice = _choose(context.capabilities, settings)
        pods = snapshot.pods_of(Tier.BE)
        identity = settings.bvt and Knob.BVT in context.capabilities.writable
        requests = _identities(self.name, snapshot, settings) if identity else []
        reasons = []
        if choice is not None:
            knob, value, why = choice
            reasons.append(why)
            requests.extend(
                Request(policy=self.name, group=pod.group, knob=knob, value=value, reason=f"{pod.label} is BE: {why}")
                for pod in pods
            )
        if identity:
            reasons.append(f"group identity {BVT_BE}")
        cookies, why_core = _cookies(context.capabilities, settings)
        said = "; ".join(reasons) or "neither cpu.idle nor the weight can be set on this node"
        said = said if pods or not reasons else "no BE pod is here"
        return Desired(requests=tuple(requests), reason=f"{said}{why_core}", cookies=cookies), state


def _choose(capabilities: Capabilities, settings: WeightSettings) -> tuple[Knob, int, str] | None:
    if settings.idle and Knob.IDLE in capabilities.writable:
        return Knob.IDLE, 1, "idle class: runs only where nobody else wants the CPU"
    if Knob.WEIGHT in capabilities.writable:
        lowest = capabilities.lowest_weight
        why = "this kernel has no cpu.idle" if settings.idle else "cpu.idle is switched off in the settings"
        return Knob.WEIGHT, lowest, f"weight {lowest}, the smallest ({why})"
    return None


def _identities(policy: str, snapshot: NodeSnapshot, settings: WeightSettings) -> list[Request]:
    """Group identity for pods and their containers, which do not inherit it; never for what is above a pod."""
    tiers = {Tier.BE: BVT_BE, Tier.LS: BVT_LS} if settings.bvt_ls else {Tier.BE: BVT_BE}
    return [
        Request(
            policy=policy,
            group=group,
            knob=Knob.BVT,
            value=value,
            reason=f"{pod.label} is {tier.value}: group identity {value}",
        )
        for tier, value in tiers.items()
        for pod in snapshot.pods_of(tier)
        for group in (pod.group, *(container.group for container in pod.containers))
    ]


def _cookies(capabilities: Capabilities, settings: WeightSettings) -> tuple[bool, str]:
    """Whether threads shall have a core scheduling cookie by tier, and the words to add to the reason."""
    if not settings.core_scheduling:
        return False, ""
    if not capabilities.core_scheduling:
        why = capabilities.skipped.get("core-scheduling", "this node has none")
        return False, f"; no core scheduling: {why}"
    if settings.bvt and Knob.BVT in capabilities.writable:
        return False, "; no core scheduling beside group identity: switch weight.bvt off to have it"
    return True, "; one core scheduling cookie a tier"

"""Policy *weight*: BE yields the CPU to everyone else, always on, costs BE nothing that LS does not need.

Where the kernel has cpu.idle (5.15), a BE pod's cgroup is put into the idle class; otherwise it gets the smallest
weight. It is set on the pod's own cgroup: on the QoS root the kubelet would put it back, and every later update of
its weight there would fail with EINVAL. Containers below an idle pod keep their weights among themselves.

Way back: idle 0 *and* the old weight, because the kernel forgets the weight when a group becomes idle; the executor
has the original in its journal. Measured effect: reference in docs, LS p99 1.03 to 1.2 times alone with two or more
BE threads a CPU.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from agent.capabilities import Capabilities, Knob
from agent.policy.base import Context, Desired, Request
from agent.snapshot import NodeSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier


class WeightSettings(Settings, frozen=True, kw_only=True):
    """Settings of the weight policy."""

    idle: Annotated[
        bool,
        Meta(
            description="use cpu.idle where the kernel has it; false always takes the smallest weight",
            extra={"reloadable": True},
        ),
    ] = True


class Weight:
    """See the module."""

    name = "weight"
    urgent = False

    def start(self, context: Context) -> None:
        """It remembers nothing."""

    def decide(
        self, snapshot: NodeSnapshot, state: Any, settings: WeightSettings, context: Context
    ) -> tuple[Desired, Any]:
        """Every BE pod in the idle class, or with the smallest weight."""
        choice = _choose(context.capabilities, settings)
        pods = snapshot.pods_of(Tier.BE)
        if choice is None:
            return Desired(reason="neither cpu.idle nor the weight can be set on this node"), state
        knob, value, why = choice
        requests = tuple(
            Request(policy=self.name, group=pod.group, knob=knob, value=value, reason=f"{pod.label} is BE: {why}")
            for pod in pods
        )
        return Desired(requests=requests, reason=why if pods else "no BE pod is here"), state


def _choose(capabilities: Capabilities, settings: WeightSettings) -> tuple[Knob, int, str] | None:
    if settings.idle and Knob.IDLE in capabilities.writable:
        return Knob.IDLE, 1, "idle class: runs only where nobody else wants the CPU"
    if Knob.WEIGHT in capabilities.writable:
        lowest = capabilities.lowest_weight
        why = "this kernel has no cpu.idle" if settings.idle else "cpu.idle is switched off in the settings"
        return Knob.WEIGHT, lowest, f"weight {lowest}, the smallest ({why})"
    return None

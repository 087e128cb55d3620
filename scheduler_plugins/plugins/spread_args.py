"""Arguments of PodTopologySpread: the constraints of pods that state none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from scheduler_plugins.plugins.spread_constraints import RawConstraint
from slacktide import names
from slacktide.errors import SettingsError

ZONE_LABEL: Final = "topology.kubernetes.io/zone"


class DefaultConstraint(RawConstraint, frozen=True, forbid_unknown_fields=True):
    """A constraint for pods that state none; whom it counts follows from the pod's services and controller."""


SYSTEM_DEFAULTS: Final = (
    DefaultConstraint(max_skew=3, topology_key=names.HOSTNAME_LABEL, when_unsatisfiable="ScheduleAnyway"),
    DefaultConstraint(max_skew=5, topology_key=ZONE_LABEL, when_unsatisfiable="ScheduleAnyway"),
)


class PodTopologySpreadArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Arguments of the stock plugin."""

    default_constraints: Annotated[
        tuple[DefaultConstraint, ...], Meta(description="Constraints of pods that state none; needs type List.")
    ] = ()
    defaulting_type: Annotated[
        Literal["System", "List"], Meta(description="Whether those of Kubernetes are used, or defaultConstraints.")
    ] = "System"

    @property
    def system_defaults(self) -> bool:
        """Whether the defaults are those of Kubernetes, which do not ask that nodes have every key."""
        return self.defaulting_type == "System"

    @property
    def defaults(self) -> tuple[DefaultConstraint, ...]:
        """Constraints of pods that state none."""
        return SYSTEM_DEFAULTS if self.system_defaults else self.default_constraints

    def check(self) -> None:
        """Raises SettingsError with everything that the stock scheduler would refuse."""
        problems = list(_problems(self))
        if problems:
            raise SettingsError([f"arguments of plugin PodTopologySpread: {problem}" for problem in problems])


def _problems(args: PodTopologySpreadArgs) -> Iterator[str]:
    if args.system_defaults and args.default_constraints:
        yield "defaultConstraints must be empty when defaultingType is System; set it to List"
    seen: set[tuple[str, str]] = set()
    for number, one in enumerate(args.default_constraints):
        where = f"defaultConstraints[{number}]"
        if not one.topology_key:
            yield f"{where}.topologyKey is missing"
        if one.label_selector is not None:
            yield f"{where}.labelSelector must not be set: it follows from the pod's services and controller"
        key = (one.topology_key, one.when_unsatisfiable)
        if key in seen:
            yield f"{where} repeats topologyKey {key[0]!r} with whenUnsatisfiable {key[1]}"
        seen.add(key)

"""Simulations of a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_plugins.config.convert import Source
from scheduler_plugins.config.load import configure
from scheduler_plugins.dump import Dump, Other
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.simulation.arrivals import Arrival
from scheduler_plugins.simulation.outcome import Outcome, PodOutcome
from scheduler_plugins.simulation.run import Plan, Simulation
from scheduler_plugins.simulation.start import Choice, begin
from slacktide import names
from slacktide.objects import Node, Pod

WALL = 50_000.0


def simulate(
    nodes: Sequence[Node],
    pods: Sequence[Pod] = (),
    arrivals: Sequence[Arrival] = (),
    *,
    file: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
    others: Sequence[Other] = (),
    **plan: Any,
) -> Outcome:
    plugins = default_registry()
    config = configure(SchedulerSettings(), file or {}, Source("test"), plugins)
    profiles = [profile.name for profile in config.profiles]
    start = begin(Dump(list(nodes), list(pods)), choice or Choice(profiles[0]), profiles)
    return Simulation(config, plugins, start, Plan(WALL, **plan), arrivals, others).run()


def by_name(outcome: Outcome) -> dict[str, PodOutcome]:
    return {pod.name: pod for pod in outcome.pods}


def arriving(at: float, pod: Pod, lifetime: float | None = None) -> Arrival:
    return Arrival(at, pod, lifetime)


def only(*plugins: str, **more: Any) -> Mapping[str, Any]:
    """A configuration whose only profile has these plugins, beside order and binding."""
    enabled = [{"name": name} for name in ("PrioritySort", *plugins, "DefaultBinder")]
    multi = {"disabled": [{"name": "*"}], "enabled": enabled}
    return {"profiles": [{"schedulerName": names.SCHEDULER_NAME, "plugins": {"multiPoint": multi}, **more}]}

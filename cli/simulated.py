"""What `slacktide simulate` asks and says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cli.cycles import Cycle
from cli.output import MISSING
from cli.placement import Wanted, objects
from cli.podview import show_age, show_bytes
from scheduler_plugins.config.load import load
from scheduler_plugins.config.types import SchedulerConfig
from scheduler_plugins.dump import Dump, Other
from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.simulation.arrivals import read_arrivals
from scheduler_plugins.simulation.outcome import NodeOutcome, Outcome, PodOutcome, Use
from scheduler_plugins.simulation.run import Plan, Simulation, kinds_of
from scheduler_plugins.simulation.start import Choice, begin, wall_of
from slacktide.cluster import NODES, PODS
from slacktide.cluster.errors import NotFound
from slacktide.objects import Pod

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client, Kind

POD_COLUMNS: Final = ("POD", "STATE", "NODE", "ATTEMPTS", "WAITED", "REASON")
COUNT_COLUMNS: Final = ("WHAT", "COUNT")
_HOUR_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    files: Sequence[str]
    configuration: str | None
    arrivals: str | None
    pending: bool
    replace: bool
    tier: str
    namespace: str | None
    profile: str | None
    seed: int
    hours: float | None
    ageing: bool
    scores: int
    ask_extenders: bool


def run(app: App, asked: Asked) -> tuple[Outcome, Sequence[str]]:
    """(What came of it, notes on the configuration). Raises SettingsError, DumpError, ClusterError, CommandError."""
    plugins = default_registry()
    config = load(SchedulerSettings(configuration=asked.configuration or ""), plugins)
    names = [profile.name for profile in config.profiles]
    profile = asked.profile or names[0]
    if profile not in names:
        # For the message, which names those that there are.
        raise unknown_profile(profile, names)
    dump = _with_others(app, asked, objects(app, asked.files), config, plugins)
    moves = Wanted(aim="spread", tier=asked.tier, namespace=asked.namespace, topologies=()).moves
    choice = Choice(
        profile,
        pending=asked.pending,
        adopt=asked.profile is not None,
        released=_released(moves) if asked.replace else _nobody,
    )
    start = begin(dump, choice, frozenset(names))
    plan = Plan(
        wall=wall_of(start.nodes, time.time()),
        seed=asked.seed,
        seconds=None if asked.hours is None else asked.hours * _HOUR_SECONDS,
        ageing=asked.ageing,
        kept_cycles=asked.scores,
        ask_extenders=asked.ask_extenders,
    )
    arrivals = read_arrivals(asked.arrivals, profile, plan.resources) if asked.arrivals else []
    return Simulation(config, plugins, start, plan, arrivals, dump.rest).run(), config.notes


def unknown_profile(name: str, names: Sequence[str]) -> Exception:
    """The error for a profile that the configuration does not have."""
    from cli.exits import USAGE, CommandError

    return CommandError(f"there is no profile {name!r}; the configuration has {', '.join(names)}", USAGE)


def _nobody(_: Pod) -> bool:
    return False


def _released(moves: Callable[[Pod], bool]) -> Callable[[Pod], bool]:
    """A pod that the node itself keeps (a static pod) cannot be anywhere else."""
    return lambda pod: moves(pod) and all(owner.kind != "Node" for owner in pod.metadata.owner_references)


def _with_others(app: App, asked: Asked, dump: Dump, config: SchedulerConfig, plugins: Registry) -> Dump:
    """Of a running cluster also the objects that the plugins of the configuration ask for."""
    if asked.files:
        return dump
    client = app.client()
    try:
        for kind in kinds_of(config, plugins):
            if kind not in (PODS, NODES):
                dump.rest += _listed(client, kind)
    finally:
        client.close()
    return dump


def _listed(client: Client, kind: Kind[Any]) -> list[Other]:
    try:
        items = client.list(kind).items
    except NotFound:
        return []
    return [Other(kind.api_version, kind.kind, msgspec.json.encode(item), "the cluster") for item in items]


def pod_cells(pod: PodOutcome) -> list[str]:
    """One line of the table of pods."""
    return [
        f"{pod.namespace}/{pod.name}",
        pod.fate.value,
        pod.node or MISSING,
        str(pod.attempts),
        MISSING if pod.waited_seconds is None else f"{pod.waited_seconds:.1f}s",
        pod.reason,
    ]


def count_rows(outcome: Outcome) -> list[list[str]]:
    """The table of totals."""
    totals = outcome.totals
    rows = [["pods", str(totals.pods)], *([fate, str(count)] for fate, count in totals.by_fate.items())]
    rows += [[f"not placed: {reason}", str(count)] for reason, count in totals.pending_by_reason.items()]
    return [*rows, ["attempts", str(totals.attempts)], ["simulated time", _lasted(totals.seconds)]]


def _lasted(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 120 else show_age(seconds)


def node_table(nodes: Sequence[NodeOutcome]) -> tuple[list[str], list[list[str]]]:
    """(Columns, rows): requested / allocatable of each resource."""
    resources = list(dict.fromkeys(name for node in nodes for name in node.use))
    columns = ["NODE", "PODS", *(name.removeprefix("kubernetes.io/").upper() for name in resources)]
    rows = [[node.name, str(node.pods), *(_use(name, node.use.get(name)) for name in resources)] for node in nodes]
    return columns, rows


def _use(resource: str, use: Use | None) -> str:
    if use is None:
        return MISSING
    share = f" {use.requested / use.allocatable:.0%}" if use.allocatable else ""
    return f"{_amount(resource, use.requested)} / {_amount(resource, use.allocatable)}{share}"


def _amount(resource: str, amount: int) -> str:
    if resource in {"cpu", "kubernetes.io/batch-cpu"}:
        return f"{amount / 1000:.2f}"
    return show_bytes(amount) if "memory" in resource or "storage" in resource else str(amount)


def cycles(outcome: Outcome) -> list[Cycle]:
    """The last cycles in which nodes were rated, the newest first."""
    return [msgspec.convert(cycle.shown(), Cycle) for cycle in outcome.cycles]


def document(outcome: Outcome) -> dict[str, Any]:
    """For programs."""
    return {
        "totals": outcome.totals,
        "pods": outcome.pods,
        "nodes": outcome.nodes,
        "cycles": [cycle.shown() for cycle in outcome.cycles],
        "remarks": outcome.remarks,
    }

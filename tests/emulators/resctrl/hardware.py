"""What the counters would say: cache occupancy and memory traffic that follow from what runs in each group.

A demand is what a group would draw alone with its working set in cache; it comes from the CPU time of its threads
or from a script. Traffic is the demand, more where the working set does not fit, held by the bandwidth control and by
what the memory gives. Occupancy fills quickly and leaves slowly; lines of a removed group leave as slowly, which is
what keeps its monitoring id in limbo.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.emulators.resctrl.parsing import set_bits
from tests.emulators.resctrl.profiles import GIB, MIB, Bandwidth, Cache, Profile
from tests.emulators.resctrl.schemata import UNLIMITED_MBPS, Controls, Schema
from tests.emulators.resctrl.tasks import Label, Tasks

FILL_SECONDS = 0.5
LEAVE_SECONDS = 4.0
_EIGHTH_GB = 125_000_000


@dataclass(frozen=True)
class Demand:
    """What a group asks of one domain's memory."""

    bytes_per_second: float
    footprint_bytes: float
    local_fraction: float = 0.8
    exact: bool = False
    """Counters follow these figures as they are; no control holds them."""


@dataclass
class Counter:
    """Of one monitoring id in one domain."""

    occupancy: float = 0.0
    total: float = 0.0
    local: float = 0.0


@dataclass(frozen=True)
class CpuModel:
    """How much a busy CPU asks for where no script says it."""

    bytes_per_cpu_second: float = 1.0 * GIB
    footprint_per_cpu: float = 8.0 * MIB


@dataclass
class Hardware:
    """Counters by (rmid, domain)."""

    profile: Profile
    controls: Controls
    model: CpuModel = field(default_factory=CpuModel)

    def __post_init__(self) -> None:
        self.counters: dict[tuple[int, int], Counter] = {}
        self.scripted: dict[tuple[int, int], Demand] = {}
        """By (rmid, domain)."""
        self._last: float | None = None
        self._used: dict[int, float] = {}
        self._busy: dict[int, float] = {}

    @property
    def domains(self) -> tuple[int, ...]:
        """Monitoring domains."""
        return self.profile.monitoring.domains if self.profile.monitoring else ()

    def counter(self, rmid: int, domain: int) -> Counter:
        """The counter of one id in one domain."""
        return self.counters.setdefault((rmid, domain), Counter())

    def dirty(self, rmid: int, threshold: int) -> bool:
        """Whether the id has `threshold` bytes or more anywhere."""
        return any(self.counter(rmid, domain).occupancy >= threshold for domain in self.domains)

    def advance(self, now: float, tasks: Tasks, owners: Mapping[int, Label], labels: Iterable[Label]) -> None:
        """Let the time since the last call pass. `owners`: the group of each CPU; `labels`: groups that exist."""
        if self._last is not None and now <= self._last:
            return
        busy = self._cpu_seconds(tasks, owners)
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        if seconds == 0:
            return
        asked = self._demands({label.rmid: label for label in labels}, busy, seconds)
        targets: dict[tuple[int, int], float] = {}
        exact: set[tuple[int, int]] = set()
        for domain, demands in asked.items():
            self._traffic(domain, demands, seconds)
            targets |= {(rmid, domain): size for rmid, size in self._targets(domain, demands).items()}
            exact |= {(label.rmid, domain) for label, demand in demands.items() if demand.exact}
        self._fill(targets, exact, seconds)

    def _cpu_seconds(self, tasks: Tasks, owners: Mapping[int, Label]) -> dict[tuple[Label, int], float]:
        """CPU seconds by (group, domain) since the last call: of its threads, and of its CPUs what others left."""
        spent: dict[tuple[Label, int], float] = {}
        used: dict[int, float] = {}
        rest = tasks.host.busy()
        for cpu, seconds in rest.items():
            self._busy[cpu], rest[cpu] = seconds, seconds - self._busy.get(cpu, seconds)
        for tid, label in tasks.members().items():
            task = tasks.host.task(tid)
            if task is None:
                continue
            used[tid] = task.cpu_seconds
            delta = max(0.0, task.cpu_seconds - self._used.get(tid, tasks.joined_at(tid)))
            rest[task.cpu] = rest.get(task.cpu, 0.0) - delta
            self._add(spent, label, task.cpu, delta)
        self._used = used
        for cpu, seconds in rest.items():
            self._add(spent, owners.get(cpu % self.profile.cpus, Label(0, 0)), cpu, max(0.0, seconds))
        return spent

    def _add(self, spent: dict[tuple[Label, int], float], label: Label, cpu: int, seconds: float) -> None:
        if self.domains:
            key = (label, self.profile.domain_of(self.domains, cpu))
            spent[key] = spent.get(key, 0.0) + seconds

    def _demands(
        self, labels: Mapping[int, Label], busy: Mapping[tuple[Label, int], float], seconds: float
    ) -> dict[int, dict[Label, Demand]]:
        """By domain, of the groups that ask for anything there; a script stands above CPU time."""
        found: dict[int, dict[Label, Demand]] = {}
        for (label, domain), used in busy.items():
            if used > 0 and labels.get(label.rmid) == label:
                rate, size = self.model.bytes_per_cpu_second, self.model.footprint_per_cpu
                found.setdefault(domain, {})[label] = Demand(used / seconds * rate, used / seconds * size)
        for (rmid, domain), demand in self.scripted.items():
            if rmid in labels:
                of_domain = found.setdefault(domain, {})
                of_domain.pop(labels[rmid], None)
                if demand.exact or demand.bytes_per_second > 0:
                    of_domain[labels[rmid]] = demand
        return found

    def _traffic(self, domain: int, demands: Mapping[Label, Demand], seconds: float) -> None:
        rates = {label: self._held(label, domain, demand) for label, demand in demands.items()}
        bandwidth = self._schema("MB")
        limit = bandwidth.bytes_per_second if isinstance(bandwidth, Bandwidth) else math.inf
        share = min(1.0, limit / max(sum(rates.values()), 1.0))
        for label, demand in demands.items():
            counter = self.counter(label.rmid, domain)
            moved = rates[label] * (1.0 if demand.exact else share) * seconds
            counter.total += moved
            counter.local += moved * demand.local_fraction

    def _schema(self, name: str) -> Cache | Bandwidth | None:
        schema = self.controls.schema(name)
        return schema.resource if schema else None

    def _held(self, label: Label, domain: int, demand: Demand) -> float:
        """The rate that the bandwidth control lets through."""
        if demand.exact:
            return demand.bytes_per_second
        missing = 0.0
        if demand.footprint_bytes > 0:
            missing = max(0.0, 1.0 - self.counter(label.rmid, domain).occupancy / demand.footprint_bytes)
        return min(demand.bytes_per_second * (1.0 + missing), self._bandwidth_limit(label.closid, domain))

    def _bandwidth_limit(self, closid: int, domain: int) -> float:
        schema = self.controls.schema("MB")
        if schema is None or closid >= schema.num_closids:
            return math.inf
        resource = schema.resource
        assert isinstance(resource, Bandwidth)
        value = self.controls.value(schema, self._control_domain(schema, domain), closid)
        if schema.mbps:
            return math.inf if value == UNLIMITED_MBPS else value * MIB
        if resource.absolute:
            return math.inf if value >= resource.maximum else value * _EIGHTH_GB
        return resource.bytes_per_second * value / 100

    def _control_domain(self, schema: Schema, domain: int) -> int:
        """Where SNC splits an L3, control is still per L3."""
        monitoring = self.profile.monitoring
        assert monitoring is not None
        for whole, parts in monitoring.subdomains.items():
            if domain in parts:
                return whole
        return domain if domain in schema.resource.domains else schema.resource.domains[0]

    def _fill(self, targets: Mapping[tuple[int, int], float], exact: set[tuple[int, int]], seconds: float) -> None:
        """Let occupancy go towards its target; what no one asks for leaves."""
        fill, leave = (1.0 - math.exp(-seconds / slow) for slow in (FILL_SECONDS, LEAVE_SECONDS))
        for key, counter in self.counters.items():
            target = targets.get(key, 0.0)
            if target != counter.occupancy:
                step = 1.0 if key in exact else fill if target > counter.occupancy else leave
                counter.occupancy += (target - counter.occupancy) * step

    def _targets(self, domain: int, demands: Mapping[Label, Demand]) -> dict[int, float]:
        """Groups share each way of the cache by their demand; what one does not need the others do not get."""
        masks, way_bytes = self._masks(domain, demands)
        asked = [0.0] * max((mask.bit_length() for mask in masks.values()), default=0)
        for label, demand in demands.items():
            for way in set_bits(masks[label]):
                asked[way] += demand.bytes_per_second
        found: dict[int, float] = {}
        for label, demand in demands.items():
            room = demand.footprint_bytes
            if not demand.exact:
                shares = (demand.bytes_per_second / asked[way] for way in set_bits(masks[label]))
                room = min(room, way_bytes * sum(shares))
            found[label.rmid] = room
        return found

    def _masks(self, domain: int, demands: Mapping[Label, Demand]) -> tuple[dict[Label, int], float]:
        """The ways that each group may fill, and the size of one; a cache without control is one way."""
        monitoring = self.profile.monitoring
        assert monitoring is not None
        parts = max(1, len(monitoring.subdomains.get(self._whole(domain), ())))
        size = monitoring.cache_bytes / parts
        schema = self.controls.schema("L3DATA") or self.controls.schema("L3")
        if schema is None or not isinstance(schema.resource, Cache):
            return dict.fromkeys(demands, 1), size
        where = self._control_domain(schema, domain)
        masks = {label: self.controls.value(schema, where, label.closid) for label in demands}
        return masks, size / schema.resource.cbm_len

    def _whole(self, domain: int) -> int:
        monitoring = self.profile.monitoring
        assert monitoring is not None
        return next((whole for whole, parts in monitoring.subdomains.items() if domain in parts), domain)

"""Machines to emulate, as data. Numbers are those of real processors, rounded where they do not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Cache:
    """One cache level that can be partitioned."""

    name: str
    """L3 or L2."""
    domains: tuple[int, ...]
    cbm_len: int
    num_closids: int
    bytes: int
    """Size of one domain."""
    min_cbm_bits: int = 1
    shareable_bits: int = 0
    sparse: bool = False
    cdp_capable: bool = False
    io_alloc: bool = False

    @property
    def full(self) -> int:
        """Mask with every bit set."""
        return (1 << self.cbm_len) - 1


@dataclass(frozen=True)
class Bandwidth:
    """Memory bandwidth control."""

    name: str
    """MB or SMBA."""
    domains: tuple[int, ...]
    num_closids: int
    minimum: int
    maximum: int
    """Also the value of a new group."""
    gran: int
    absolute: bool = False
    """Units of 1/8 GB/s (AMD) instead of percent (Intel)."""
    linear: bool = True
    needs_linear: bool = True
    throttle_mode: str | None = None
    """max: a core's two threads are held to the lower of their values; per-thread; None: the file is not there."""
    bytes_per_second: int = 100 * GIB
    """What one domain's memory can give in all."""


@dataclass(frozen=True)
class Monitoring:
    """Counters of the L3."""

    domains: tuple[int, ...]
    num_rmids: int
    cache_bytes: int
    """Size of one L3: upper limit of max_threshold_occupancy."""
    events: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    unit: int = 64 * KIB
    """Bytes of one count; values and max_threshold_occupancy are multiples of it."""
    bmec: bool = False
    abmc_counters: int = 0
    """Assignable counters of a domain; 0 where the hardware has none."""
    subdomains: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """SNC: monitoring domains inside each L3, by id of the L3."""
    first_read_unavailable: bool = False
    extra_files: Mapping[str, str] = field(default_factory=dict)
    """Texts of event files that no one knows, in each domain directory."""
    extra_directories: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Directories beside mon_L3_NN that no one knows."""


@dataclass(frozen=True)
class Foreign:
    """A group that someone else made before us."""

    path: str
    schemata: str = ""


@dataclass(frozen=True)
class Profile:
    """A machine, the kernel on it and how resctrl is mounted there."""

    name: str
    text: str
    cpus: int
    caches: tuple[Cache, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    monitoring: Monitoring | None = None
    options: tuple[str, ...] = ()
    """Mount options: cdp, cdpl2, mba_MBps, debug."""
    offline: frozenset[int] = frozenset()
    old_order: bool = False
    """L3 first and names padded to the widest, as kernels before 5.14 print schemata."""
    old_words: bool = False
    """last_cmd_status in the wording of those kernels."""
    padded: bool = False
    """Values padded to one width, as those kernels do."""
    sparse_file: bool = True
    """info has sparse_masks (6.7 and later)."""
    event_file: bool = True
    """mba_MBps_event exists in MBps mode (6.14 and later)."""
    pseudo_lock: bool = False
    io_alloc_files: bool = False
    """info has io_alloc and io_alloc_cbm (6.19 and later), also where the hardware cannot do it."""
    foreign: tuple[Foreign, ...] = ()
    same_scope: bool = True
    """MBA and MBM count per the same domain."""

    @property
    def online(self) -> int:
        """Mask of online CPUs."""
        return sum(1 << cpu for cpu in range(self.cpus) if cpu not in self.offline)

    def domain_cpus(self, domains: tuple[int, ...], domain: int) -> int:
        """Mask of the CPUs of `domain`: CPUs are dealt out in equal runs."""
        index, share = domains.index(domain), max(1, self.cpus // len(domains))
        return sum(1 << cpu for cpu in range(index * share, min((index + 1) * share, self.cpus)))

    def domain_of(self, domains: tuple[int, ...], cpu: int) -> int:
        """The domain of `cpu`; CPUs that the profile lacks wrap around."""
        share = max(1, self.cpus // len(domains))
        return domains[min(cpu % self.cpus // share, len(domains) - 1)]


_TWO = (0, 1)
_L3 = Cache("L3", _TWO, 20, 16, 40 * MIB, shareable_bits=0xC0000, cdp_capable=True)
_MB = Bandwidth("MB", _TWO, 8, 10, 100, 10, throttle_mode="max")
_MON = Monitoring(_TWO, 224, 40 * MIB)
_INTEL = Profile("intel-2s", "two sockets, L3 CAT with CDP, linear MBA", 16, (_L3,), (_MB,), _MON)

_ROME = (*range(8), *range(16, 24))
_AMD = Profile(
    "amd-rome",
    "sixteen CCX with sparse ids 0-7 and 16-23, bandwidth in 1/8 GB/s",
    64,
    (Cache("L3", _ROME, 16, 16, 16 * MIB, min_cbm_bits=0, sparse=True, cdp_capable=True),),
    (Bandwidth("MB", _ROME, 16, 0, 2048, 1, True, False, False, bytes_per_second=25 * GIB),),
    Monitoring(_ROME, 256, 16 * MIB, unit=64, first_read_unavailable=True),
)
_GENOA = (0, 1)

_ALL = (
    _INTEL,
    _AMD,
    Profile(
        "haswell",
        "one socket, L3 CAT of four classes with at least two bits, no MBA, occupancy only",
        8,
        (Cache("L3", (0,), 20, 4, 30 * MIB, min_cbm_bits=2, shareable_bits=0xC0000),),
        monitoring=Monitoring((0,), 56, 30 * MIB, events=("llc_occupancy",)),
    ),
    replace(_INTEL, name="cdp", text="intel-2s mounted with cdp: half the classes", options=("cdp",)),
    Profile(
        "l2",
        "forty L2 of an Atom server, L2 CAT with CDP off, no L3 control, no monitoring",
        40,
        (Cache("L2", tuple(range(40)), 8, 16, 2 * MIB, cdp_capable=True),),
    ),
    replace(
        _INTEL,
        name="cdpl2",
        text="intel-2s with L2 CAT as well, mounted with cdp and cdpl2",
        caches=(_L3, Cache("L2", tuple(range(0, 32, 2)), 16, 16, 2 * MIB, cdp_capable=True)),
        options=("cdp", "cdpl2"),
    ),
    replace(_INTEL, name="mbps", text="intel-2s mounted with mba_MBps", options=("mba_MBps",)),
    replace(_INTEL, name="debug", text="intel-2s mounted with debug: hardware ids are shown", options=("debug",)),
    replace(_INTEL, name="mon-only", text="monitoring without allocation", caches=(), bandwidths=()),
    replace(_INTEL, name="alloc-only", text="allocation without monitoring", monitoring=None),
    replace(_INTEL, name="no-mba", text="L3 CAT without MBA", bandwidths=()),
    replace(_INTEL, name="mba-only", text="MBA without CAT", caches=()),
    replace(
        _INTEL,
        name="non-linear",
        text="Intel MBA of a non-linear scale: every value is refused",
        bandwidths=(replace(_MB, linear=False),),
    ),
    replace(
        _INTEL,
        name="per-thread",
        text="MBA of each thread for itself, L3 with sparse masks",
        caches=(replace(_L3, sparse=True),),
        bandwidths=(replace(_MB, throttle_mode="per-thread"),),
    ),
    replace(_INTEL, name="pseudo-lock", text="L3 of a client part that can be pseudo-locked", pseudo_lock=True),
    Profile(
        "abmc",
        "new AMD: SMBA, event configuration, assignable counters, io_alloc",
        32,
        (Cache("L3", _GENOA, 16, 16, 32 * MIB, min_cbm_bits=0, sparse=True, cdp_capable=True, io_alloc=True),),
        (
            Bandwidth("MB", _GENOA, 16, 0, 2048, 1, True, False, False, bytes_per_second=50 * GIB),
            Bandwidth("SMBA", _GENOA, 16, 0, 2048, 1, True, False, False, bytes_per_second=50 * GIB),
        ),
        Monitoring(_GENOA, 256, 32 * MIB, unit=64, bmec=True, abmc_counters=32),
        io_alloc_files=True,
    ),
    replace(
        _AMD,
        name="bmec",
        text="amd-rome with event configuration",
        monitoring=Monitoring(_ROME, 256, 16 * MIB, unit=64, bmec=True, first_read_unavailable=True),
    ),
    replace(
        _INTEL,
        name="old-kernel",
        text="intel-2s under a kernel of 2018: L3 first, padded values, no sparse_masks, other words",
        bandwidths=(replace(_MB, throttle_mode=None),),
        old_order=True,
        old_words=True,
        padded=True,
        sparse_file=False,
        event_file=False,
    ),
    replace(_INTEL, name="few-rmids", text="more classes than RMIDs", monitoring=replace(_MON, num_rmids=4)),
    replace(
        _INTEL,
        name="snc",
        text="each L3 split into two monitoring domains",
        monitoring=Monitoring((0, 1, 2, 3), 224, 40 * MIB, subdomains={0: (0, 1), 1: (2, 3)}),
        same_scope=False,
    ),
    replace(
        _INTEL,
        name="new-events",
        text="event files and domain directories that no one knows",
        monitoring=replace(
            _MON,
            extra_files={"xxx_new_metric": "1234\n"},
            extra_directories={"mon_PERF_PKG_00": {"core_energy": "21.478363\n", "activity": "Unavailable\n"}},
        ),
    ),
    replace(
        _INTEL,
        name="foreign",
        text="groups of pqos, libvirt and a container runtime are there already",
        foreign=(
            Foreign("COS1", "L3:0=3;1=3\n"),
            Foreign("COS2", "MB:0=50;1=50\n"),
            Foreign("qemu-3-vm-vcpus_0-3", "L3:0=f0;1=f0\n"),
            Foreign("mon_groups/7b0ffb6c"),
        ),
    ),
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in _ALL}
"""Every machine by name."""

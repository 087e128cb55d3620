"""Builds cgroup and proc trees in a temp dir, and a writer that enforces the kernel's rules on them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent.host.cgroup import CgroupLister
from agent.threads import parse_cpus
from slacktide.errors import Refused
from slacktide.kernel.files import read_text, translate
from slacktide.kernel.hierarchy import Hierarchy, Mount, Version

UID_LS = "11111111-1111-4111-8111-111111111111"
UID_BE = "22222222-2222-4222-8222-222222222222"
UID_BE2 = "33333333-3333-4333-8333-333333333333"
CID = "c" * 64
CID2 = "d" * 64


class Tree:
    """A cgroup mount (v1: one directory a controller; v2: one for all) below `base`."""

    def __init__(self, base: Path, version: Version = Version.V1) -> None:
        self.base = base
        self.version = version
        self.names = tuple(_V1) if version is Version.V1 else ("unified",)
        for name in self.names:
            (base / name).mkdir(parents=True, exist_ok=True)
        mounts = {
            controller: Mount(str(base / (controller if version is Version.V1 else "unified")), version)
            for controller in (_V1 if version is Version.V1 else _V2_CONTROLLERS)
        }
        self.hierarchy = Hierarchy(mounts, None if version is Version.V1 else str(base / "unified"))

    def lister(self, root: str = "") -> CgroupLister:
        return CgroupLister(self.hierarchy, root)

    def group(self, path: str, **values: object) -> None:
        """Make a group with the files a kernel would show; `values` override (dots as double underscores)."""
        files = _V1 if self.version is Version.V1 else _V2
        wanted = {key.replace("__", "."): value for key, value in values.items()}
        for controller, defaults in files.items():
            directory = self.base / controller / path
            directory.mkdir(parents=True, exist_ok=True)
            for name, default in defaults.items():
                value = wanted.get(name, default)
                if value is not None:
                    (directory / name).write_text(f"{value}\n" if not str(value).endswith("\n") else str(value))

    def path(self, group: str, name: str, controller: str = "cpu") -> Path:
        return self.base / (controller if self.version is Version.V1 else "unified") / group / name

    def read(self, group: str, name: str, controller: str = "cpu") -> str:
        return self.path(group, name, controller).read_text().strip()

    def put(self, group: str, name: str, value: object, controller: str = "cpu") -> None:
        self.path(group, name, controller).write_text(f"{value}\n")

    def remove(self, group: str) -> None:
        for name in self.names:
            directory = self.base / name / group
            for child in sorted(directory.rglob("*"), reverse=True):
                child.rmdir() if child.is_dir() else child.unlink()
            directory.rmdir()


_V1 = {
    "cpu": {
        "cgroup.procs": "",
        "tasks": "",
        "cpu.shares": 1024,
        "cpu.idle": 0,
        "cpu.cfs_quota_us": -1,
        "cpu.cfs_period_us": 100000,
        "cpu.cfs_burst_us": 0,
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
    },
    "cpuacct": {"cpuacct.usage": 0},
    "memory": {
        "cgroup.procs": "",
        "memory.usage_in_bytes": 1000,
        "memory.stat": "cache 10\ninactive_file 1\ntotal_inactive_file 300\n",
        "memory.limit_in_bytes": 9223372036854771712,
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "memory.memsw.limit_in_bytes": 9223372036854771712,
        "memory.failcnt": 4,
    },
    "cpuset": {"cgroup.procs": "", "cpuset.cpus": "0-3", "cpuset.effective_cpus": "0-1"},
    "blkio": {
        "cgroup.procs": "",
        "blkio.throttle.io_service_bytes_recursive": (
            "8:0 Read 100\n8:0 Write 20\n8:0 Sync 1\n8:0 Total 120\nTotal 120\n"
        ),
        "blkio.bfq.weight": 100,
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
        "blkio.throttle.io_serviced_recursive": "8:0 Read 3\n8:0 Write 2\n8:0 Total 5\nTotal 5\n",
    },
    "pids": {"pids.current": 7, "pids.max": "max"},
    "freezer": {"cgroup.procs": "", "freezer.state": "THAWED", "freezer.self_freezing": 0},
}
_V2 = {
    "unified": {
        "cgroup.procs": "",
        "cgroup.threads": "",
        "cpu.weight": 100,
        "cpu.idle": 0,
        "cpu.max": "max 100000",
        "cpu.max.burst": 0,
        "cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
        "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "memory.current": 1000,
        "memory.stat": "anon 1\nsome_new_key 9\ninactive_file 300\n",
        "memory.max": "max",
        "memory.high": "max",
        "memory.events": "low 0\nhigh 5\nmax 4\noom 1\noom_kill 2\n",
        "memory.events.local": "low 0\nhigh 1\nmax 0\noom 0\noom_kill 0\n",
        "memory.pressure": "some avg10=0.00 total=30\nfull avg10=0.00 total=10\n",
        "io.pressure": "some avg10=0.00 total=40\nfull avg10=0.00 total=20\n",
        "io.stat": "8:0 wbytes=20 rios=3 rbytes=100 wios=2 dbytes=0 dios=0\n253:1 \n",
        "io.max": "",
        "io.weight": "default 100",
        "cgroup.freeze": 0,
        "pids.current": 7,
        "pids.max": "max",
        "cpuset.cpus": "0-3",
        "cpuset.cpus.effective": "0-1",
        "cgroup.events": "populated 1\nfrozen 0\n",
    }
}
_V2_CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "io", "pids", "freezer")


class KernelWriter:
    """Writes into a tree with the kernel's rules for the files that the agent writes; remembers each write in order."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.writes: list[tuple[str, str, str]] = []
        self.fail: dict[str, int] = {}

    def __call__(self, name: str, value: str | int, dir_fd: int | None = None) -> None:
        assert dir_fd is not None
        directory = os.readlink(f"/proc/self/fd/{dir_fd}")
        text = str(value)
        if name in self.fail:
            raise translate(name, OSError(self.fail[name], os.strerror(self.fail[name])))
        self._check(directory, name, text)
        self.writes.append((os.path.basename(directory), name, text))
        Path(directory, name).write_text(_kept(Path(directory, name), text) + "\n")
        if name == "freezer.state":
            Path(directory, "freezer.self_freezing").write_text(f"{int(text == 'FROZEN')}\n")
        if name == "cpu.idle":
            shares = Path(directory, "cpu.shares" if self.version is Version.V1 else "cpu.weight")
            default, idle = ("1024", "3") if self.version is Version.V1 else ("100", "0")
            shares.write_text((idle if text == "1" else default) + "\n")

    def _check(self, directory: str, name: str, text: str) -> None:
        if name in {"cpu.shares", "cpu.weight"} and _int(directory, "cpu.idle") == 1:
            raise _refused(name)
        if name == "cpuset.cpus" and not text.strip():
            raise Refused(name, errno.ENOSPC, "No space left on device")
        if name == "cpuset.cpus" and self.version is Version.V1:
            _check_cpuset(Path(directory), text)
        if name == "memory.limit_in_bytes" and int(text) > _int(directory, "memory.memsw.limit_in_bytes"):
            raise _refused(name)
        if name == "cpu.cfs_quota_us":
            quota = int(text)
            if 0 <= quota < 1000 or (quota >= 0 and _int(directory, "cpu.cfs_burst_us") > quota):
                raise _refused(name)
            if quota >= 0 and any(child > quota for child in _child_quotas(directory)):
                raise _refused(name)
            parent = Path(directory).parent / name
            limit = int(parent.read_text()) if parent.exists() else -1
            if quota > limit >= 0:
                raise _refused(name)
        if name == "cpu.max":
            quota = text.split()[0]
            if quota != "max" and _int(directory, "cpu.max.burst") > int(quota):
                raise _refused(name)


def _kept(path: Path, text: str) -> str:
    """What the kernel makes of a written value."""
    if path.name in {"memory.limit_in_bytes", "memory.max", "memory.high", "memory.memsw.limit_in_bytes"}:
        if text in {"-1", "max"}:
            return "9223372036854771712" if text == "-1" else "max"
        return str(int(text) // 4096 * 4096)
    if path.name.startswith("blkio.throttle."):
        device, rate = text.split()
        lines = dict(line.split() for line in path.read_text().splitlines() if line)
        return "\n".join(f"{name} {rate}" for name, rate in {**lines, device: rate}.items() if rate != "0")
    if path.name == "io.max":
        device, *pairs = text.split()
        lines = {
            line.split()[0]: dict(p.split("=") for p in line.split()[1:])
            for line in path.read_text().splitlines()
            if line
        }
        own = lines.setdefault(device, dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max"))
        own |= dict(pair.split("=") for pair in pairs)
        rows = {name: limits for name, limits in lines.items() if set(limits.values()) != {"max"}}
        return "\n".join(f"{name} " + " ".join(f"{k}={v}" for k, v in row.items()) for name, row in rows.items())
    return f"default {text}" if path.name == "io.weight" else text.strip()


def _check_cpuset(directory: Path, text: str) -> None:
    """Child outside its parent, parent below its child."""
    wanted, above = parse_cpus(text), directory.parent / "cpuset.cpus"
    if above.exists() and not wanted <= parse_cpus(above.read_text()):
        raise Refused("cpuset.cpus", errno.EACCES, "Permission denied")
    if any(not parse_cpus(below.read_text()) <= wanted for below in directory.glob("*/cpuset.cpus")):
        raise Refused("cpuset.cpus", errno.EBUSY, "Device or resource busy")


def _child_quotas(directory: str) -> list[int]:
    return [int(file.read_text()) for file in Path(directory).glob("*/cpu.cfs_quota_us")]


def _int(directory: str, name: str) -> int:
    return int(read_text(os.path.join(directory, name)))


def _refused(name: str) -> Refused:
    return Refused(name, errno.EINVAL, "Invalid argument")


def proc_tree(base: Path, *, busy_ticks: int = 1000, meminfo: str | None = None) -> Path:
    """A /proc with two CPUs and 1 GiB."""
    half = busy_ticks // 2
    line = f"{half} 0 0 5000 10 0 0 7 0 0"
    total = f"{busy_ticks} 0 0 10000 20 0 0 14 0 0"
    base.mkdir(parents=True, exist_ok=True)
    (base / "stat").write_text(f"cpu  {total}\ncpu0 {line}\ncpu1 {line}\nintr 1\nctxt 1\nbtime 1\nprocesses 1\n")
    (base / "meminfo").write_text(
        meminfo
        or "MemTotal:        1048576 kB\nMemFree:          524288 kB\nMemAvailable:     786432 kB\n"
        "Buffers:               0 kB\nCached:           262144 kB\nActive:   1 kB\nInactive:   1 kB\n"
        "Active(file):   1000 kB\nInactive(file):   1000 kB\nSReclaimable:   1000 kB\nShmem:   0 kB\nSlab:   0 kB\n"
    )
    (base / "zoneinfo").write_text("Node 0, zone   Normal\n        low      100\n")
    boot = base / "sys/kernel/random"
    boot.mkdir(parents=True, exist_ok=True)
    (boot / "boot_id").write_text("b00t-1\n")
    own = base / "self"
    own.mkdir(exist_ok=True)
    (own / "schedstat").write_text("100 200 3\n")
    return base

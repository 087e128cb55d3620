"""What the kernel holds for the pods of a running Slacktide: every file that anybody could write, and affinity."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from agent.host.cgroup import CgroupLister
from slacktide.cluster import PODS
from slacktide.kernel.hierarchy import Version, discover
from slacktide.names import BATCH_CPU, BATCH_MEMORY, HOST_PROCESS_IMAGE, TIER_LABEL
from standalone.sweep import directories
from tests.whole.support import wait_until

HIERARCHY = discover()

NO_KNOBS = {
    # Lists of who is in there, and counters that a write resets.
    *("cgroup.procs", "cgroup.threads", "tasks", "cpuacct.usage", "cpu.pressure", "io.pressure", "memory.pressure"),
    *("memory.reclaim", "memory.peak", "memory.swap.peak", "pids.peak", "cpuset.memory_pressure", "memory.oom_control"),
    # More for LS is no limit.
    *("cpu.cfs_burst_us", "cpu.max.burst"),
}
COUNTED = (".failcnt", "max_usage_in_bytes", ".reset_stats")


def writable(up):
    """Whether pods of this Slacktide have cgroups."""
    return bool(directories(HIERARCHY, up.state.cgroup_root))


def bound(up, name, script, tier="be", **batch):
    """A pod that is bound to the node by its maker and asks for no CPU: it starts however busy this machine is.

    `batch` has limits: `cpu` (millicores) and `memory` (bytes).
    """
    amounts = {{"cpu": BATCH_CPU, "memory": BATCH_MEMORY}[key]: str(value) for key, value in batch.items()}
    container = {
        "name": "main",
        "image": HOST_PROCESS_IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"requests": dict.fromkeys(amounts, "0"), "limits": amounts},
    }
    spec = {
        "nodeName": "whole",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    up.client.create(PODS, {"metadata": {"name": name, "labels": {TIER_LABEL: tier}}, "spec": spec}, "default")
    wait_until(lambda: up.pod(name).status.phase == "Running", up)
    return up.pod(name)


class Group:
    """The cgroup of one pod."""

    def __init__(self, up, name):
        pod = up.pod(name)
        lister = CgroupLister(HIERARCHY, up.state.cgroup_root)
        self.v1 = lister.version is not Version.V2
        self.path = wait_until(
            lambda: next((found.group for found in lister.pods() if found.uid == pod.metadata.uid), None), up
        )

    def files(self, controller):
        """Its directory under a controller."""
        return Path(HIERARCHY.controllers[controller].path, self.path)

    def leaf(self, controller):
        """The directory of its one container."""
        (found,) = [entry for entry in self.files(controller).iterdir() if entry.is_dir()]
        return found

    def quota(self, directory=None):
        """Millicores, None without a limit."""
        name = "cpu.cfs_quota_us" if self.v1 else "cpu.max"
        first = Path(directory or self.files("cpu"), name).read_text().split()[0]
        return None if first in {"-1", "max"} else int(first) // 100

    def lift(self):
        """Take its limits away, as a runtime or systemd does behind the agent's back."""
        for controller, name, none in (
            ("cpu", "cpu.cfs_quota_us" if self.v1 else "cpu.max", "-1" if self.v1 else "max"),
            ("memory", "memory.limit_in_bytes" if self.v1 else "memory.max", "-1" if self.v1 else "max"),
        ):
            for place in (self.files(controller), self.leaf(controller)):
                (place / name).write_text(none)

    def memory(self, directory=None):
        """Bytes, None without a limit."""
        name = "memory.limit_in_bytes" if self.v1 else "memory.max"
        text = Path(directory or self.files("memory"), name).read_text().strip()
        return None if text == "max" or int(text) > 1 << 62 else int(text)

    def idle(self):
        """Whether it is in the idle class."""
        return (self.files("cpu") / "cpu.idle").read_text().strip() == "1"

    def throttled(self):
        """Periods in which it was throttled so far."""
        lines = (self.files("cpu") / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("nr_throttled "))

    def pids(self):
        """Its processes."""
        return members(self.files("cpu"))

    def held(self):
        """All that the kernel holds for it: (file, content) of what anybody could write, and its processes' CPUs."""
        return held_below(self.path, self.pids())


def held_below(path, pids):
    """The same for any cgroup and processes."""
    found = {}
    for mount in {mount.path for mount in HIERARCHY.mounts()}:
        for directory, _, names in os.walk(Path(mount, path)):
            found |= {os.path.join(directory, name): content(directory, name) for name in names}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found[f"CPUs of {pid}"] = sorted(os.sched_getaffinity(pid))
    return {name: value for name, value in found.items() if value is not None}


def whole_tree(up):
    """What the kernel holds for all pods and the groups above them."""
    root = up.state.cgroup_root
    return held_below(root, members(Path(HIERARCHY.controllers["cpu"].path, root)))


def members(path):
    """Processes of a cgroup and those below it."""
    found = set()
    for directory, _, _ in os.walk(path):
        found |= {int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()}
    return found


def content(directory, name):
    """Text of a file that is a knob, None for any other."""
    path = os.path.join(directory, name)
    if name in NO_KNOBS or name.endswith(COUNTED):
        return None
    mode = os.stat(path).st_mode
    if not (mode & stat.S_IWUSR and mode & stat.S_IRUSR):
        return None
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return None

"""Which pod a process belongs to, by its cgroups. Source: cgroups(7), /proc/PID/cgroup."""

from __future__ import annotations

import os

from slacktide.errors import KernelError
from slacktide.kernel.files import read_text
from slacktide.kernel.kubepods import pod_uid, stray


def uid_of(proc_root: str, pid: int) -> str | None:
    """UID of the pod that the process is in; None when it is in none, or ended."""
    try:
        text = read_text(os.path.join(proc_root, str(pid), "cgroup"))
    except KernelError:
        return None
    return uid_in(text)


def uid_in(text: str) -> str | None:
    """UID of a pod in the lines of /proc/PID/cgroup; the path is all behind the second colon, it may hold more."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) < 3:
            continue
        for name in parts[2].split("/"):
            outside = stray(name)
            uid = outside.uid if outside else pod_uid(name)
            if uid is not None:
                return uid
    return None

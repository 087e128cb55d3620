"""Agents of other systems that run on the node as plain services, outside all pods.

Those in pods are known from the API. A process of a pod proves nothing, its tenant names it as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent.host.podof import uid_of
from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, translate
from slacktide.rivals import AGENT_OF


def foreign_agents(proc_root: str) -> Mapping[str, str]:
    """System -> `process NAME, pid N`. Raises a KernelError where processes cannot be listed.

    Processes are known by `comm`, which holds 15 bytes of the program's name (proc(5)).
    """
    try:
        pids = [int(name) for name in os.listdir(proc_root) if name.isdigit()]
    except OSError as error:
        raise translate(proc_root, error) from error
    found: dict[str, str] = {}
    for pid in sorted(pids):
        try:
            name = read_text(os.path.join(proc_root, str(pid), "comm")).rstrip("\n")
        except KernelError:
            continue
        system = AGENT_OF.get(name)
        if system is not None and system not in found and uid_of(proc_root, pid) is None:
            found[system] = f"process {name}, pid {pid}"
    return found

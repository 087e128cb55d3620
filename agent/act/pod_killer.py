"""Kills the processes of one victim: its cgroup must be that of a pod with its UID, and the very one looked at."""

from __future__ import annotations

from agent.act.evictor import Killer
from agent.act.kill import kill_all, place_to_kill
from agent.eviction import Victim
from slacktide.errors import Gone
from slacktide.kernel.hierarchy import Hierarchy
from slacktide.kernel.kubepods import pod_uid


def pod_killer(hierarchy: Hierarchy) -> Killer:
    """What the evictor kills with. It raises Gone for a group that is not the victim's (any more)."""

    def kill(victim: Victim, deadline_seconds: float) -> int:
        uid = pod_uid(victim.group.rpartition("/")[2])
        if uid is None or uid != victim.uid.lower():
            raise Gone(victim.group, None, f"this is not the cgroup of the pod with UID {victim.uid}")
        try:
            place = place_to_kill(hierarchy, victim.group)
        except ValueError as error:
            raise Gone(victim.group, None, str(error)) from error
        return kill_all(place, deadline_seconds)

    return kill

from __future__ import annotations

import json

import msgspec

from slacktide.status import AgentStatus, PodReport, Usage
from slacktide.tier import Tier


def test_a_status_travels_whole_and_what_was_not_measured_stays_null():
    usage = Usage(cpu_millis=0)
    pod = PodReport(namespace="a", name="b", uid="u", tier=Tier.BE, usage=usage, idle=True)
    status = AgentStatus(
        node="n",
        version="1",
        at=1.5,
        turn=3,
        turn_seconds=0.01,
        line="BE runs free",
        capacity=Usage(cpu_millis=4000),
        node_usage=usage,
        tiers={Tier.LS: usage, Tier.BE: Usage()},
        pods=[pod],
        skipped={"psi": "cgroup v1 has none"},
    )
    text = msgspec.json.encode(status)
    assert msgspec.json.decode(text, type=AgentStatus) == status
    plain = json.loads(text)
    assert plain["tiers"] == {
        "LS": {"cpu_millis": 0, "memory_bytes": None},
        "BE": {"cpu_millis": None, "memory_bytes": None},
    }
    assert plain["ls_pressure"] is None
    assert plain["pods"][0]["quota_millis"] is None

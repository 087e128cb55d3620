"""Which beats a policy is asked in: an answer that cannot have changed is not asked for again."""

from __future__ import annotations

from collections import Counter

from agent.decisions import Decisions
from agent.policy.base import Context, Desired, Glimpse
from agent.pressure import Shortage
from agent.settings import AgentSettings
from agent.snapshot import NodeSnapshot
from slacktide.status import Usage
from tests.agent.twins import CAPABLE

CALM = Shortage(short=False, calm=True, reason="LS is calm")
SHORT = Shortage(short=True, calm=False, reason="LS waits")


class Listening:
    """Counts how often it is asked for alarms; alarmed by shortage, and by anything once it has decided twice."""

    name = "weight"
    urgent = True

    def __init__(self):
        self.asked = 0

    def start(self, context):
        return 0

    def alarmed(self, glimpse, state, settings):
        self.asked += 1
        return bool(glimpse.shortage.short) or state >= 2

    def decide(self, snapshot, state, settings, context):
        return Desired(), state + 1


def glimpse(shortage=CALM, memory=100):
    return Glimpse(shortage=shortage, memory_available_bytes=memory, memory_capacity_bytes=1000, new_threads=False)


def test_a_policy_is_asked_again_when_the_glimpse_the_settings_or_its_state_may_differ():
    policy, settings = Listening(), AgentSettings()
    decisions = Decisions((policy,), Context(capabilities=CAPABLE), Counter())
    assert decisions.alarmed(glimpse(), settings) == []
    assert decisions.alarmed(glimpse(), settings) == []
    assert policy.asked == 1
    assert decisions.alarmed(glimpse(memory=50), settings) == []
    assert decisions.alarmed(glimpse(memory=50), AgentSettings()) == []
    assert policy.asked == 3
    assert decisions.alarmed(glimpse(SHORT), settings) == [policy]
    assert decisions.alarmed(glimpse(SHORT), settings) == [policy], "an alarm is never taken for granted"
    assert decisions.alarmed(glimpse(), settings) == []
    for _ in range(2):
        decisions.decide(NodeSnapshot(at=1.0, window_seconds=1.0, capacity=Usage()), settings)
    assert decisions.alarmed(glimpse(), settings) == [policy], "what was calm in one state is not in another"

"""Daemons, pods and a drain of them for tests of the supervisor's life; imported by a process of its own too."""

import os
import sys

from slacktide.cluster.errors import Unreachable
from slacktide.objects import ObjectMeta, Pod, PodSpec
from standalone.components import Component

FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_daemon.py")
ALL = ("api", "runner", "predictor", "scheduler", "agent")


def fakes(**traits):
    def daemons(state, node):
        return [
            Component(
                name,
                (sys.executable, "-S", "-E", FAKE, state.observe_socket(name), *traits.get(name, ())),
                state.observe_socket(name),
                () if name == "api" else ("api",),
            )
            for name in ALL
        ]

    return daemons


class FakeDrain:
    """Pods that end after some questions, or only by force."""

    grace = 5

    def __init__(self, rounds=0, stubborn=False, away=0):
        self.rounds, self.stubborn, self.away = rounds, stubborn, away
        self.asked = self.forced = 0

    def remaining(self):
        self.asked += 1
        if self.asked <= self.away:
            raise Unreachable("connection refused")
        self.rounds -= 1
        return [pod("p", grace=self.grace)] if self.stubborn or self.rounds >= 0 else []

    def force(self):
        self.forced += 1
        self.stubborn, self.rounds = False, 0


def pod(name, grace=None, uid="u", **meta):
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid, **meta),
        spec=PodSpec(termination_grace_period_seconds=grace),
    )

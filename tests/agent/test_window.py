"""Samples from turns: when one is due, and what a closing node does to that."""

from __future__ import annotations

import dataclasses

from agent.snapshot import NodeSnapshot
from agent.topology import Cpu, Topology, flat
from agent.window import Window
from agent.wire import encode_sample
from slacktide.status import Usage
from slacktide.v1 import usage_pb2


def turn(at):
    return NodeSnapshot(at=at, window_seconds=1.0, capacity=Usage(cpu_millis=4000))


def fed(window, *turns):
    """(time, closed) pairs in; the times at which a sample came out, and why it was closed."""
    given = []
    for at, closed in turns:
        sample = window.add(turn(at), (), 1000.0 + at, None, closed)
        if sample is not None:
            given.append((at, sample.closed, sample.window_seconds))
    return given


def test_a_sample_a_window():
    assert fed(Window(10.0), *((at, "") for at in range(22))) == [(10, "", 10), (20, "", 10)]


def test_a_node_that_closes_says_so_at_once_and_only_once():
    turns = [(0, ""), (1, ""), (2, ""), *((at, "short") for at in range(3, 15)), *((at, "") for at in range(15, 24))]
    assert fed(Window(10.0), *turns) == [(3, "short", 3), (13, "short", 10), (23, "", 10)]


def test_the_reason_is_cut_for_the_wire():
    sample = Window(1.0)
    assert sample.add(turn(0), (), 0.0, None) is None
    made = sample.add(turn(1), (), 1.0, None, "x" * 9000)
    assert len(usage_pb2.Sample.FromString(encode_sample(made)).closed) == 512


def sent(topology):
    window = Window(1.0)
    window.add(turn(0), (), 0.0, None)
    made = window.add(dataclasses.replace(turn(1), topology=topology), (), 1.0, None)
    zones = usage_pb2.Sample.FromString(encode_sample(made)).zones
    assert not any(zone.capacity.HasField("memory_bytes") for zone in zones)
    return {zone.id: zone.capacity.cpu_millis for zone in zones}


def test_zones_of_unlike_size_are_sent_with_what_each_has():
    cpus = [Cpu(number, number, numa, 0) for number, numa in enumerate([0, 0, 0, 2])]
    assert sent(Topology(tuple(cpus))) == {0: 3000, 2: 1000}


def test_a_machine_of_one_zone_or_of_none_sends_no_zones():
    assert sent(flat(4)) == {}
    assert sent(None) == {}

"""Predictor and scheduler while the real API server is away, slow, answers errors or cannot be believed: a proxy makes
it so. And nodes whose agent, clock or name is wrong.

In each: pods that are there are not touched, no number rises, one line says what is wrong, and all of it goes on by
itself afterwards. Times are compressed by settings: a call waits 1 s, so that an answer after 5 s is none.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time

import grpc
import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from agent.wire import encode_sample, request_of
from slacktide import forecast, names
from slacktide.cluster import NODES
from slacktide.v1 import usage_pb2
from tests.cluster.faults import answer
from tests.cluster.product import wait_for
from tests.cluster.simulated_agents import SimulatedNode
from tests.cluster.trouble import SAID, SYSTEM, Said, Trouble

pytestmark = pytest.mark.timeout(300)

NODE = "troubled"
CALM = 500
FAILURES = "slacktide_predictor_publish_failures_total"
LEADS = 'slacktide_leader{lease="slacktide-predictor"}'


@pytest.fixture(scope="module")
def trouble(plane):
    with contextlib.ExitStack() as stack:
        yield Trouble(stack, plane, NODE, CALM)


def shown(name):
    return lambda trouble: trouble.proxy.heal(trouble.certificates.bad[name])


# What is done to the proxy, and words of the line that is said.
FAULTS = {
    "away": (lambda trouble: trouble.proxy.away(), ""),
    "slow": (lambda trouble: trouble.proxy.delay(5.0), ""),
    "500": (lambda trouble: trouble.proxy.fail(answer(500)), "faulty proxy"),
    "429": (lambda trouble: trouble.proxy.fail(answer(429, retry_after=1)), "faulty proxy"),
    "403": (lambda trouble: trouble.proxy.fail(answer(403)), "faulty proxy"),
    # What a server says to a token or a client's certificate that has expired.
    "401": (lambda trouble: trouble.proxy.fail(answer(401)), "faulty proxy"),
    "expired": (shown("expired"), "certificate has expired"),
    "other authority": (shown("of another authority"), "certificate verify failed: unable to get local issuer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_gained_and_all_goes_on(trouble, fault):
    trouble.settled()
    wait_for(lambda: trouble.predictor.metric(LEADS), "leader")
    trouble.calm()
    name = f"be-{fault.replace(' ', '-')}"
    said = Said(*trouble.daemons)
    seen, failures = len(trouble.numbers), trouble.predictor.metric(FAILURES)
    make, words = FAULTS[fault]
    try:
        make(trouble)
        trouble.proxy.cut()
        trouble.busier()
        trouble.place(name)
        for daemon in trouble.daemons:
            wait_for(
                lambda daemon=daemon: any(words in line["detail"] for line in said(daemon, SAID)),
                f"line of {daemon.program.name}",
            )
        # Long enough for everybody to have failed more than once: the lines are counted below.
        wait_for(lambda: trouble.predictor.metric(FAILURES) >= failures + 2, "failures of the publisher")
        assert trouble.numbers[seen:] == sorted(trouble.numbers[seen:], reverse=True), "no number rose"
        assert trouble.where(name) == ""
    finally:
        trouble.proxy.heal(trouble.certificates.good)
    trouble.settled()
    wait_for(lambda: trouble.where(name) == NODE, "placed pod")
    trouble.goes_on(said)
    for daemon in trouble.daemons:
        said.once(daemon)
    assert len(said(trouble.predictor, "publishing failed")) == 1
    assert trouble.is_untouched(trouble.protected)


def test_node_without_agent_sells_nothing(trouble):
    trouble.node("unattended")
    trouble.place("be-unattended", "unattended")
    said = wait_for(lambda: trouble.why_not("be-unattended"), "reason")
    assert "without a forecast" in said
    assert trouble.cluster.forecast("unattended") is None
    assert trouble.cluster.published("unattended") is None


def test_forecast_from_a_clock_ten_minutes_ahead_is_not_believed(trouble):
    trouble.node("early")
    good = trouble.cluster.forecast(NODE)
    ahead = msgspec.structs.replace(good, at=time.time() + 600)
    annotations = {names.FORECAST_ANNOTATION: forecast.encode(ahead)}
    amounts = {names.BATCH_CPU: "4000", names.BATCH_MEMORY: str(1 << 30)}
    body_of = {"metadata": {"annotations": annotations}, "status": {"capacity": amounts, "allocatable": amounts}}
    trouble.client.patch(NODES, "early", None, body_of, "status")
    trouble.place("be-early", "early")
    said = wait_for(lambda: trouble.why_not("be-early"), "reason")
    assert "future" in said
    assert trouble.where("be-early") == ""


def test_agent_whose_clock_is_ten_minutes_off_makes_nobody_gain(trouble):
    for name, ahead in (("fast", 600.0), ("late", -600.0)):
        trouble.node(name)
        trouble.report(name, 1000, ahead)
    for name in ("fast", "late"):
        wait_for(lambda name=name: trouble.cluster.reclaimable(name) is not None, f"offer of {name}")
        found = trouble.cluster.forecast(name)
        assert found.reclaimable.cpu_millis <= 8000 - 1000 - SYSTEM
        assert abs(found.at - time.time()) < 60, "the predictor's own clock counts"


def test_two_agents_of_one_name_sell_what_the_busier_leaves(trouble):
    said = Said(*trouble.daemons)
    trouble.node("twice")
    trouble.report("twice", 1000)
    trouble.cluster.offers("twice", 8000 - 1000 - SYSTEM)
    trouble.report("twice", 5000)
    trouble.cluster.offers("twice", 8000 - 5000 - SYSTEM)
    (line,) = wait_for(lambda: said(trouble.predictor, "two machines report as one node"), "line about twins")
    assert line["node"] == "twice"
    assert len(set(line["boots"])) == 2


class Newer:
    """The messages of a release to come: every one has a field that nobody here knows, and there is one tier more."""

    TIER = 99

    def __init__(self):
        file = descriptor_pb2.FileDescriptorProto()
        usage_pb2.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            message.field.add(name="of_tomorrow", number=9000, type=9, label=1, json_name="ofTomorrow")
        pool = descriptor_pool.DescriptorPool()
        for dependency in usage_pb2.DESCRIPTOR.dependencies:
            known = descriptor_pb2.FileDescriptorProto()
            dependency.CopyToProto(known)
            pool.Add(known)
        pool.Add(file)
        self._request = message_factory.GetMessageClass(pool.FindMessageTypeByName("slacktide.v1.ReportRequest"))

    def request(self, node, sequence):
        """A message of the node's agent, as bytes."""
        batch = [(sequence, encode_sample(node.sample(time.time())))]
        made = self._request.FromString(
            request_of(node.name, node.boot, batch, round(time.time() * 1000)).SerializeToString()
        )
        made.of_tomorrow = "x"
        (sample,) = made.samples
        sample.of_tomorrow = sample.ls.of_tomorrow = "y"
        sample.pods.add(namespace="shop", name="web", uid="u1", tier=self.TIER, of_tomorrow="z").usage.CopyFrom(
            sample.ls
        )
        return made.SerializeToString()


def test_an_agent_newer_than_the_predictor_is_understood_as_far_as_it_is_known(trouble):
    trouble.node("newer")
    newer, node, ending = Newer(), SimulatedNode("newer", ls_cpu=1000, boot=secrets.token_hex(8)), threading.Event()

    def messages():
        sequence = 0
        while not ending.wait(0.5):
            sequence += 1
            yield newer.request(node, sequence)

    with grpc.insecure_channel(trouble.address) as channel:
        report = channel.stream_stream(
            "/slacktide.v1.UsageService/Report",
            request_serializer=lambda message: message,
            response_deserializer=usage_pb2.ReportResponse.FromString,
        )
        call = report(messages())
        try:
            answers = [next(call), next(call)]
            trouble.cluster.offers("newer", 8000 - 1000 - SYSTEM)
        finally:
            ending.set()
            call.cancel()
    assert answers[-1].durable_sequence >= 1
    assert not any(one.refusals for one in answers)

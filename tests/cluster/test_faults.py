"""Predictor and scheduler while the real API server is away, slow, or answers errors: a proxy makes it so.

In each: pods that are there are not touched, no number rises, one line says what is wrong, and all of it goes on by
itself afterwards. Times are compressed by settings: a call waits 1 s, so that an answer after 5 s is none. Watches that
go mute are tested with the informers (tests/client_suite).
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import pytest

from agent.report import Reporter
from agent.settings import ReportSettings
from agent.spool import Spool
from slacktide import forecast, names
from slacktide.cluster import NAMESPACES, NODES, PODS, Informer
from slacktide.cluster.metrics import ClusterMetrics
from tests.cluster.fake_kubelet import node_body
from tests.cluster.faults import answer, proxied
from tests.cluster.harness import ROOT, Program
from tests.cluster.product import Cluster, Product, wait_for
from tests.cluster.simulated_agents import SimulatedAgents, SimulatedNode

pytestmark = pytest.mark.timeout(300)

NODE = "troubled"
CALM, STEP = 500, 700
SYSTEM = 100
QUICK = ReportSettings(backoff_seconds=0.2, backoff_max_seconds=0.5)
COMPRESSED = {"cluster__timeout_seconds": "1"}
FAILURES = "slacktide_predictor_publish_failures_total"
LEADS = 'slacktide_leader{lease="slacktide-predictor"}'
SAID = "no service from the API server"
OVER = "the API server serves again"


class Behind:
    """Starts daemons that reach the API server through a proxy; for `Product`."""

    def __init__(self, plane, url):
        self._directory = plane.directory
        self._url = url

    def daemon(self, module, *flags, name=""):
        command = [sys.executable, "-m", module, "--cluster.server", self._url, *flags]
        return Program(name or module, command, ROOT, self._directory)


class Trouble:
    """A node with an LS pod, its agent, and both daemons behind the proxy."""

    def __init__(self, stack, plane, client):
        self.client = client
        self.proxy = stack.enter_context(proxied(plane.settings()))
        self.cluster = Cluster(client)
        self.namespace = f"faults-{secrets.token_hex(4)}"
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        self._stack = stack
        self.node(NODE)
        stack.callback(self._remove_pods)
        product = Product(Behind(plane, self.proxy.url), directory)
        suffix = secrets.token_hex(4)
        self.predictor = stack.enter_context(product.predictor(f"predictor-{suffix}", **COMPRESSED))
        self.scheduler = stack.enter_context(product.scheduler(f"scheduler-{suffix}", **COMPRESSED))
        self.directory, self.address = directory, product.predictor_address(f"predictor-{suffix}")
        agents = stack.enter_context(SimulatedAgents(self.address, directory))
        self.agent = agents.add(NODE, ls_cpu=CALM)
        self.protected = client.create(PODS, body("ls", nodeName=NODE), self.namespace)
        self.numbers = []
        stack.enter_context(self._recorded())

    def node(self, name):
        """A node that is there until the end."""
        made = node_body(name, labels={"kubernetes.io/hostname": name})
        self._stack.callback(self.client.delete, NODES, name)
        return self.client.create(NODES, made)

    def why_not(self, name):
        """What the scheduler says of a pod that it does not place; empty when it says nothing yet."""
        conditions = self.client.get(PODS, name, self.namespace).status.conditions
        return "".join(one.message for one in conditions if one.type == "PodScheduled" and one.status == "False")

    def report(self, name, ls_cpu, ahead_seconds=0.0):
        """One more agent reports for a node of that name, by a clock that is so much ahead."""
        boot = secrets.token_hex(8)
        state = self.directory / f"agent-{boot}"
        state.mkdir()
        spool = Spool(str(state), 1 << 24)
        self._stack.callback(spool.close)

        def wall():
            return time.time() + ahead_seconds

        reporter = Reporter(name, boot, spool, QUICK, self.address, wall=wall)
        reporter.start()
        self._stack.callback(reporter.stop)
        measured, ending = SimulatedNode(name, ls_cpu=ls_cpu, boot=boot), threading.Event()

        def loop():
            while not ending.wait(0.5):
                reporter.submit(measured.sample(wall()))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        self._stack.callback(lambda: (ending.set(), thread.join()))

    @property
    def daemons(self):
        return (self.predictor, self.scheduler)

    def _remove_pods(self):
        for pod in self.client.list(PODS, self.namespace).items:
            self.client.delete(PODS, pod.metadata.name, self.namespace, grace_period_seconds=0)

    @contextlib.contextmanager
    def _recorded(self):
        """Every number that is published from now on, as somebody sees it who does not go through the proxy."""

        def look(node):
            self.numbers.append(int(node.status.allocatable.get(names.BATCH_CPU, "0").replace("k", "000")))

        informer = Informer(
            self.client,
            NODES,
            field_selector=f"metadata.name={NODE}",
            on_add=look,
            on_update=lambda _, new: look(new),
            name="seen",
            metrics=ClusterMetrics(),
        )
        informer.start()
        try:
            yield
        finally:
            informer.stop()

    def busier(self):
        """LS of the node uses more from now on; never less, because the peak of a slot stays for its minutes."""
        self.agent.ls_cpu += STEP

    def settled(self):
        """Wait until what is offered is what LS leaves."""
        self.cluster.offers(NODE, 8000 - self.agent.ls_cpu - SYSTEM)

    def place(self, name, node=NODE):
        """A small best-effort pod comes to be, for one node."""
        requests = {names.BATCH_CPU: "500", names.BATCH_MEMORY: str(64 << 20)}
        spec = {"schedulerName": names.SCHEDULER_NAME, "nodeSelector": {"kubernetes.io/hostname": node}}
        made = body(name, {"requests": requests, "limits": requests}, labels={names.TIER_LABEL: "be"}, **spec)
        self.client.create(PODS, made, self.namespace)

    def is_untouched(self, pod):
        """Whether nobody has written the pod since."""
        found = self.client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        return found.metadata.resource_version == pod.metadata.resource_version

    def where(self, name):
        return self.client.get(PODS, name, self.namespace).spec.node_name


def body(name, resources=None, labels=None, **spec):
    container = {"name": "main", "image": "none", "resources": resources or {}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": [container], **spec}}


@pytest.fixture(scope="module")
def trouble(plane):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(plane.client()))
        yield Trouble(stack, plane, client)


FAULTS = {
    "away": lambda proxy: proxy.away(),
    "slow": lambda proxy: proxy.delay(5.0),
    "500": lambda proxy: proxy.fail(answer(500)),
    "429": lambda proxy: proxy.fail(answer(429, retry_after=1)),
    "403": lambda proxy: proxy.fail(answer(403)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_gained_and_all_goes_on(trouble, fault):
    trouble.settled()
    wait_for(lambda: trouble.predictor.metric(LEADS), "leader")
    # Watches that break as soon as they are opened, twice, are taken for a trouble of their own.
    wait_for(lambda: max(call.at for call in trouble.proxy.calls if call.watching) < time.monotonic() - 1, "calm")
    name = f"be-{fault}"
    before = {daemon: len(daemon.log()) for daemon in trouble.daemons}
    seen, failures = len(trouble.numbers), trouble.predictor.metric(FAILURES)

    def said(daemon, word):
        return [line for line in daemon.log()[before[daemon] :] if word in line["event"]]

    try:
        FAULTS[fault](trouble.proxy)
        trouble.proxy.cut()
        trouble.busier()
        trouble.place(name)
        for daemon in trouble.daemons:
            wait_for(lambda daemon=daemon: said(daemon, SAID), f"line of {daemon.program.name}")
        # Long enough for everybody to have failed more than once: the lines are counted below.
        wait_for(lambda: trouble.predictor.metric(FAILURES) >= failures + 3, "failures of the publisher")
        assert trouble.numbers[seen:] == sorted(trouble.numbers[seen:], reverse=True), "no number rose"
    finally:
        trouble.proxy.heal()
    trouble.settled()
    wait_for(lambda: trouble.where(name) == NODE, "placed pod")
    wait_for(lambda: all(daemon.ready for daemon in trouble.daemons), "readiness")
    for daemon in trouble.daemons:
        assert daemon.program.process.poll() is None, "the same process as before"
        wait_for(lambda daemon=daemon: len(said(daemon, OVER)) >= len(said(daemon, SAID)), "word that it is over")
        kinds = [line.get("reason") for line in said(daemon, SAID)]
        assert len(kinds) == len(set(kinds)), "one line for each kind of trouble"
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
    trouble.node("twice")
    trouble.report("twice", 1000)
    trouble.cluster.offers("twice", 8000 - 1000 - SYSTEM)
    trouble.report("twice", 5000)
    trouble.cluster.offers("twice", 8000 - 5000 - SYSTEM)

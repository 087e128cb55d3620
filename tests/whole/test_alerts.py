"""The alerts of agent, scheduler, extender and API client fire for real: the running product, and quick rules.

Those of the predictor are in test_forecast_alerts.py; what is quicker here: quick_rules.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import threading
import time

import pytest
import yaml

from slacktide.cluster import PDBS
from slacktide.cluster.kinds import LEASES
from tests.patience import PATIENCE
from tests.pki import Pki
from tests.whole.drills import drill
from tests.whole.monitored import NEEDS_PROMETHEUS, NODE, Target, ask_extender, extender, scene, scraping, work
from tests.whole.node import Group, bound, writable
from tests.whole.quick_rules import RULES, quick_rules, short, write_quick_rules
from tests.whole.support import started, wait_until
from tests.whole.test_kills import start_be

pytestmark = [pytest.mark.whole, pytest.mark.timeout(300), NEEDS_PROMETHEUS]

SETTINGS = {
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
    "SLACKTIDE_AGENT_REPORT__WINDOW_SECONDS": "1",
}
AGENT = """
turn_seconds: 1
watchdog_seconds: 1
policies: [batch_limits, weight, contention, close, evict]
shortage: {run_delay_cut: 100, psi_cut: 1}
contention: {step_percent: 50, quiet_seconds: 0, min_dwell_seconds: 0, settle_seconds: 0.1}
close: {exhausted_seconds: 1, short_seconds: 1, quiet_seconds: 0, min_dwell_seconds: 0}
evict: {fresh_samples: 1, pressure_settle_seconds: 1, cooldown_seconds: 0, quiet_seconds: 0, min_dwell_seconds: 0,
  blocked_seconds: 1}
evictor: {backoff_seconds: 0.5, backoff_max_seconds: 1}
drill: {dead_man_seconds: 10, recover_seconds: 1}
"""
"""Only a drill makes LS short, whatever else this machine does, and all that follows comes at once."""

SILENT_SECONDS = 5.0
"""The watchdog acts after three turns."""
STOPPED_SECONDS = 2.5
RUNNING_SECONDS = 2.0
"""An agent that is stopped and runs on by turns: each second turn is late, and it is scraped in between."""
CALM_SECONDS = 15.0
BUSY = "while :; do :; done"
CONNECTIONS = 4


class Watched:
    """A running product and a Prometheus that judges it."""

    def __init__(self, up, prometheus, port):
        self.up = up
        self.prometheus = prometheus
        self.port = port

    def wait(self, condition, seconds=120.0 * PATIENCE):
        """The first true value of a condition."""
        return wait_until(condition, self.up, seconds)

    def fires(self, alert, prometheus=None, **labels):
        """Wait until an alert fires; gives its labels. Another Prometheus than the one of all daemons may be asked."""
        wanted = {"alertname": alert, **labels}.items()

        def found():
            return next((one for one in (prometheus or self.prometheus).firing() if wanted <= one.items()), None)

        return self.wait(found)

    def ended(self, *alerts):
        """Wait until these fire no more."""
        self.wait(lambda: all(one["alertname"] not in alerts for one in self.prometheus.firing()))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alerts")
    words = ("--max-connections", str(CONNECTIONS))
    with (
        started(SETTINGS, config={"agent": AGENT}) as up,
        scene(up, folder, "1s", write_quick_rules(folder), words) as (prometheus, port),
    ):
        yield Watched(up, prometheus, port)


@contextlib.contextmanager
def again_and_again(act, pause):
    """Do it every `pause` seconds on a thread of its own, until left."""
    done = threading.Event()

    def run():
        while not done.wait(pause):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_quick_rules_differ_from_the_rules_by_durations_alone():
    def rules(document):
        return [rule for group in document["groups"] for rule in group["rules"]]

    def timeless(rule):
        return {**rule, "expr": re.sub(r"\[\d+(ms|[smhd])\]", "[]", rule["expr"]), "for": "for" in rule}

    slow, quick = rules(yaml.safe_load(RULES.read_text())), rules(quick_rules())
    assert [timeless(rule) for rule in slow] == [timeless(rule) for rule in quick]
    assert [rule["for"] for rule in quick if "for" in rule] == [short(rule["for"]) for rule in slow if "for" in rule]
    assert (short("5m"), short("3d")) == ("5000ms", "4320000ms")


def test_nothing_fires_while_all_is_well(watched):
    work(watched.up)
    quiet = f'count_over_time(ALERTS{{alertstate="firing"}}[{CALM_SECONDS:.0f}s])'
    with again_and_again(lambda: ask_extender(watched.port), 0.5):
        watched.wait(lambda: len(watched.prometheus.query("up == 1")) == 4)
        # On a machine that is busy otherwise a turn or a scrape may be late: a calm stretch is waited for.
        begin = time.monotonic()
        watched.wait(
            lambda: time.monotonic() > begin + CALM_SECONDS and not watched.prometheus.query(quiet), 150.0 * PATIENCE
        )
    assert watched.prometheus.query("slacktide_extender_requests_total")
    assert watched.prometheus.query(f'slacktide_agent_turns_total{{node="{NODE}"}} > 10')


@pytest.fixture
def busy(watched):
    """BE pods that run, and that no budget lets go."""
    if not writable(watched.up):
        pytest.skip("cgroups of this machine cannot be written, so there are no limits")
    names = [f"busy-{index}" for index in range(4)]
    for name in names:
        bound(watched.up, name, BUSY, cpu=50)
    selector = {"matchExpressions": [{"key": "slacktide.io/tier", "operator": "Exists"}]}
    body = {"metadata": {"name": "none"}, "spec": {"maxUnavailable": 0, "selector": selector}}
    watched.up.client.create(PDBS, body, "default")
    yield names
    watched.up.client.delete(PDBS, "none", "default")
    watched.up.clear(keep="server")


def test_ls_that_is_hurt_and_evictions_that_a_budget_forbids(watched, busy):
    with drill(watched.up, 120, victim_budget=3):
        assert watched.fires("SlacktideLSHurt")["node"] == NODE
        assert watched.fires("SlacktideEvictionsOverBudget")["node"] == NODE
    watched.ended("SlacktideLSHurt")


def test_somebody_else_writes_the_same_knobs(watched, busy):
    groups = [Group(watched.up, name) for name in busy]
    watched.wait(lambda: all(group.quota() for group in groups))

    def lift():
        for group in groups:
            group.lift()

    with again_and_again(lift, 0.2):
        assert watched.fires("SlacktideFight")["node"] == NODE


def test_an_agent_that_gets_no_cpu_is_late_and_its_watchdog_acts(watched, busy):
    watched.wait(lambda: all(Group(watched.up, name).quota() for name in busy))
    pid = watched.up.processes()["agent"].pid

    def pause(seconds):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    for alert, seconds in (("SlacktideWatchdogActed", SILENT_SECONDS), ("SlacktideAgentLate", STOPPED_SECONDS)):
        with again_and_again(functools.partial(pause, seconds), RUNNING_SECONDS):
            assert watched.fires(alert)["node"] == NODE


def test_an_extender_that_has_no_free_connection(watched):
    def connect():
        with contextlib.suppress(OSError):
            ask_extender(watched.port)

    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            held = socket.create_connection(("127.0.0.1", watched.port))
            stack.callback(held.close)
        with again_and_again(connect, 0.5):
            watched.fires("SlacktideExtenderFailing")


def test_a_lease_in_a_hand_that_is_gone_leaves_the_queue_stuck(watched):
    (lease,) = [one for one in watched.up.client.list(LEASES).items if "scheduler" in one.metadata.name]
    where = (lease.metadata.name, lease.metadata.namespace)

    def held_by(holder, seconds):
        spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
        watched.up.client.patch(LEASES, *where, {"spec": spec})

    leads = f'slacktide_leader{{lease="{lease.metadata.name}"}}'
    held_by("a replica that is gone", 3600)
    try:
        watched.wait(lambda: watched.up.metric("scheduler", leads) == 0)
        start_be(watched.up, "waiting", "true")
        watched.fires("SlacktideQueueStuck")
    finally:
        held_by("", 1)
    watched.wait(lambda: watched.up.pod("waiting").status.phase == "Succeeded")


def test_a_certificate_that_nobody_renews(watched, tmp_path):
    pki = Pki(tmp_path)
    places = (tmp_path / "tls.crt", tmp_path / "tls.key")

    def issue(days):
        made = pki.issue("server", "/CN=slacktide-extender", "subjectAltName=DNS:localhost", days)
        for source, place in zip(made, places, strict=True):
            # At once, as a kubelet exchanges what a pod mounts.
            os.replace(source, place)

    issue(30)
    words = ("--tls.certificate-file", str(places[0]), "--tls.key-file", str(places[1]))
    with (
        extender(watched.up, tmp_path, *words, name="secured") as (_, observe),
        scraping(
            tmp_path,
            [Target("extender", observe, {})],
            watched.wait,
            "1s",
            write_quick_rules(tmp_path),
        ) as prometheus,
    ):
        left = "slacktide_certificate_expiry_timestamp_seconds - time()"
        watched.wait(lambda: prometheus.query(f"{left} > 20 * 86400"))
        for days, severity in ((1, "ticket"), (-1, "page")):
            issue(days)
            fired = watched.fires("SlacktideCertificateEnds", prometheus, severity=severity)
            assert (fired["job"], fired["setting"], fired["part"]) == ("slacktide-extender", "tls", "certificate")


def test_an_api_server_that_is_away(watched):
    with watched.up.without("api"):
        assert watched.fires("SlacktideAPIFailing")["job"].startswith("slacktide-")

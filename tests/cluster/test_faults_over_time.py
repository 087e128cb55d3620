"""Troubles that show only after a while, with whole daemons: ten minutes without the API server, watches that go mute.

The ten minutes are scaled 1:20 with what they are measured by. A forecast stays fresh for 6 s instead of 120, so that
30 s are the five lives of a forecast that ten minutes are. Not scaled, and so no easier than in a cluster: the lease
(15 s, lost twice over) and the pauses between tries (up to 30 s).
"""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from slacktide.cluster import NODES, PODS
from slacktide.forecast import Freshness, freshness
from tests.cluster.product import wait_for
from tests.cluster.trouble import SAID, Said, Trouble

pytestmark = pytest.mark.timeout(300)

CALM = 500
LEADS = 'slacktide_leader{lease="slacktide-predictor"}'
TTL_SECONDS, LIVES = 6, 5


def test_without_the_api_server_for_ten_minutes_less_and_less_is_sold_and_then_nothing(plane):
    """First the predictor alone is cut off, while the scheduler goes on by what stands in the node; then both are."""
    with contextlib.ExitStack() as stack:
        node = "cut-off"
        trouble = Trouble(stack, plane, node, CALM, apart=True, predictor={"ttl_seconds": str(TTL_SECONDS)})
        trouble.settled()
        trouble.place("be-before")
        wait_for(lambda: trouble.where("be-before") == node, "placed pod")
        trouble.calm()
        said, seen, began = Said(*trouble.daemons), len(trouble.numbers), time.monotonic()
        trouble.proxy.away()
        trouble.busier()

        def expired():
            return freshness(trouble.cluster.forecast(node), time.time()) is Freshness.EXPIRED

        wait_for(expired, "end of the forecast")
        trouble.place("be-late")
        why = wait_for(lambda: trouble.why_not("be-late"), "reason")
        assert "forecast expired" in why
        trouble.schedulers_proxy.away()
        wait_for(lambda: time.monotonic() - began >= TTL_SECONDS * LIVES, "ten minutes")
        wait_for(lambda: trouble.predictor.metric(LEADS) == 0, "end of its leadership")
        assert trouble.where("be-late") == ""
        trouble.proxy.heal()
        trouble.schedulers_proxy.heal()
        trouble.settled()
        wait_for(lambda: trouble.where("be-late") == node, "placed pod")
        trouble.goes_on(said)
        assert trouble.numbers[seen:] == sorted(trouble.numbers[seen:], reverse=True), "no number rose"
        assert trouble.is_untouched(trouble.protected)
        for daemon in trouble.daemons:
            said.once(daemon)


@contextlib.contextmanager
def lively(trouble):
    """Something happens to a pod and a node all the time, so that a watch that is silent is mute."""
    ending = threading.Event()

    def live():
        beat = 0
        while not ending.wait(0.5):
            beat += 1
            change = {"metadata": {"annotations": {"test/beat": str(beat)}}}
            trouble.client.patch(NODES, trouble.name, None, change)
            trouble.client.patch(PODS, "ls", trouble.namespace, change)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_watches_that_go_mute_are_found_out_and_what_they_did_not_tell_is_listed(plane):
    """Silent for 3 s is mute here, and so are to the scheduler the watches of kinds that nothing happens to."""
    with contextlib.ExitStack() as stack:
        node = "hushed"
        trouble = Trouble(stack, plane, node, CALM, cluster__silence_seconds="3")
        stack.enter_context(lively(trouble))
        trouble.settled()
        said, seen = Said(trouble.predictor), len(trouble.numbers)
        trouble.proxy.mute()
        trouble.busier()
        trouble.settled()
        trouble.node("unheard-of")
        trouble.report("unheard-of", CALM)
        trouble.place("be-mute")
        wait_for(lambda: trouble.where("be-mute") == node, "pod that no watch told of")
        # The predictor takes for sold what no watch told it of, and publishes on a node that none did.
        wait_for(lambda: trouble.cluster.forecast(node).terms.sold.cpu_millis == 100, "sold room")
        wait_for(lambda: trouble.cluster.reclaimable("unheard-of"), "offer of a node that no watch told of")
        assert any("silent" in line["detail"] for line in said(trouble.predictor, SAID))
        said.once(trouble.predictor)
        assert trouble.numbers[seen:] == sorted(trouble.numbers[seen:], reverse=True), "no number rose"
        trouble.proxy.heal()
        trouble.busier()
        trouble.settled()
        trouble.place("be-after")
        wait_for(lambda: trouble.where("be-after") == node, "placed pod")
        wait_for(lambda: trouble.predictor.ready, "readiness")
        assert all(daemon.program.process.poll() is None for daemon in trouble.daemons)

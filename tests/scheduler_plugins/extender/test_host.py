"""What the host is made of: its profile, the feed of its cache, its settings."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry

from scheduler_plugins.extender.feed import CacheFeed
from scheduler_plugins.extender.host import ExtenderHost, build_framework
from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.settings import ExtenderProfile, ExtenderSettings
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import PermitPlugin, PermitResult, PreEnqueuePlugin
from scheduler_plugins.framework.registry import NoArgs
from scheduler_plugins.framework.status import SUCCESS
from scheduler_plugins.plugins import default_registry
from slacktide.cluster import connect
from slacktide.errors import SettingsError
from slacktide.observe import Health
from slacktide.settings import ClusterSettings
from slacktide.transport import TlsSettings
from tests.scheduler_plugins.build import READER, be, handle, node, pod


class Waits(PermitPlugin, PreEnqueuePlugin):
    name = "Waits"

    def permit(self, state, pod, node_name):
        return PermitResult(SUCCESS)

    def pre_enqueue(self, pod):
        return SUCCESS


def build(**profile):
    registry = default_registry()
    registry.register("Waits", lambda args, handle: Waits(), NoArgs)
    settings = ExtenderSettings(profile=ExtenderProfile(**profile))
    return build_framework(settings, registry, handle(), ExtenderMetrics(CollectorRegistry()))


def test_the_default_profile_judges_by_the_forecast() -> None:
    assert [plugin.name for plugin in build().plugins] == ["BatchForecast", "PrioritySort", "DefaultBinder"]


def test_all_problems_of_a_profile_are_said_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        build(
            plugins=["BatchForcast", "Waits", "NodeAffinity"],
            arguments={"NodeAffinity": "[]", "Absent": "{}"},
            weights={"Other": 1},
        )
    text = str(caught.value)
    assert "did you mean BatchForecast" in text
    assert "plugin Waits waits at Permit and keeps pods out of the queue, which an extender cannot" in text
    assert "arguments of NodeAffinity are not a JSON object" in text
    assert "arguments of Absent: it is not enabled" in text
    assert "weight of Other: it is not enabled" in text
    assert len(caught.value.problems) == 5


def test_the_feed_counts_placed_pods_until_they_end() -> None:
    cache = Cache()
    feed = CacheFeed(cache, READER)
    waiting, placed = be("p"), be("p", nodeName="a")
    feed.pod_added(waiting)
    assert cache.size().pods == 0
    feed.pod_updated(waiting, placed)
    assert cache.size().pods == 1
    feed.pod_updated(placed, be("p", 500, nodeName="a"))
    assert cache.get("uid-p").batch_cpu_millis == 500
    feed.pod_updated(placed, be("p", nodeName="a", status={"phase": "Succeeded"}))
    assert cache.size().pods == 0
    feed.pod_deleted(placed)
    feed.pod_added(be("q", nodeName="a", status={"phase": "Failed"}))
    assert cache.size().pods == 0


def test_the_feed_confirms_what_was_assumed_and_ends_what_never_came() -> None:
    cache = Cache()
    feed = CacheFeed(cache, READER)
    cache.assume(READER.read(be("p")), "a")
    feed.pod_updated(be("p"), be("p", nodeName="a"))
    assert not cache.is_assumed("uid-p")
    cache.assume(READER.read(be("q")), "a")
    feed.pod_deleted(be("q"))
    assert cache.size().pods == 1


def test_the_feed_takes_pods_before_their_node_and_nodes_that_return() -> None:
    cache = Cache()
    feed = CacheFeed(cache, READER)
    feed.pod_added(pod("p", nodeName="a"))
    feed.node_added(node("a"))
    feed.node_updated(node("a"), node("a", labels={"x": "y"}))
    feed.node_deleted(node("a"))
    assert cache.size().nodes == 0
    feed.node_added(node("a"))
    assert (cache.size().nodes, cache.size().pods) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls": TlsSettings(certificate_file="a")}, "belong together"),
        ({"tls": TlsSettings(client_ca_file="a")}, r"needs tls\.certificate_file"),
        ({"tls": TlsSettings(certificate_file="/no/a", key_file="/no/b")}, "cannot be used"),
        ({"listen": "0.0.0.0:8443"}, "plain HTTP is for this machine only"),
        ({"listen": ":8443"}, "plain HTTP is for this machine only"),
    ],
)
def test_tls_settings_that_do_not_fit_are_said(settings, text) -> None:
    client = connect(ClusterSettings(server="unix:/nowhere/api.sock"), user_agent="test")
    with pytest.raises(SettingsError, match=text):
        ExtenderHost(
            ExtenderSettings(**settings), client, default_registry(), CollectorRegistry(), Health(), threading.Event()
        )
    client.close()

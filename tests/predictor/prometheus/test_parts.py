"""Access, answers, matchers, tiers, names of nodes: what needs no server."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.prometheus import queries as q
from predictor.prometheus.access import access_of
from predictor.prometheus.answers import Series, grid, newest, read, trouble
from predictor.prometheus.errors import PrometheusError
from predictor.prometheus.fetch import halved
from predictor.prometheus.importer import piece_sizes
from predictor.prometheus.pods import group_of
from predictor.prometheus.sources import Source, host_of, step_for, window_for
from predictor.prometheus.tiers import PodName, tiers
from slacktide.tier import Tier


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://prom:9090", "http://prom:9090"),
        ("http://prom:9090/", "http://prom:9090"),
        ("https://x.example/prometheus/", "https://x.example/prometheus"),
        ("https://x.example/select/0/prometheus/api/v1", "https://x.example/select/0/prometheus"),
        ("http://prom:9090/graph", "http://prom:9090"),
        ("http://[::1]:9090/p", "http://[::1]:9090/p"),
    ],
)
def test_the_address_is_taken_with_the_path_it_is_served_under(url, base):
    assert access_of(url).base == base


@pytest.mark.parametrize("url", ["prom:9090", "ftp://prom", "http://", "http://prom:x", "http://prom/?tenant=a", "-"])
def test_what_is_no_address_is_refused_with_the_right_form(url):
    with pytest.raises(PrometheusError):
        access_of(url)


def test_secrets_are_in_headers_and_in_no_message():
    access = access_of("http://user:p%40ss/w@prom:9090/x".replace("/w", "%2Fw"))
    assert access.base == "http://prom:9090/x"
    assert access.fresh_headers() == {"Authorization": "Basic dXNlcjpwQHNzL3c="}
    assert "dXNlcjpwQHNzL3c" not in repr(access)
    assert access.bare
    for url in ("http://user:secret@prom/?a=b", "http://user:secret@prom:port", "user:secret@prom"):
        with pytest.raises(PrometheusError) as refused:
            access_of(url)
        assert "secret" not in str(refused.value)
    with pytest.raises(PrometheusError) as refused:
        access_of("http://prom", ("Authorization Bearer secret",))
    assert "secret" not in str(refused.value)


def test_a_token_is_read_anew_and_must_be_one(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    access = access_of("https://prom", token_file=str(path))
    assert access.fresh_headers()["Authorization"] == "Bearer one"
    path.write_text("two")
    assert access.fresh_headers()["Authorization"] == "Bearer two"
    assert not access.bare
    for text in ("", "two words"):
        path.write_text(text)
        with pytest.raises(PrometheusError, match="one token"):
            access.fresh_headers()
    path.unlink()
    with pytest.raises(PrometheusError, match="No such file"):
        access.fresh_headers()
    with pytest.raises(PrometheusError, match="not both"):
        access_of("https://u:p@prom", token_file=str(path))


def test_nan_and_infinities_are_gaps_and_times_are_rounded_to_the_grid():
    series = Series(
        {}, values=[(100.0, "1.5"), (130.001, "NaN"), (160.0, "+Inf"), (190.0, "-Inf"), (220.0, "0"), (250.0, "9")]
    )
    assert np.array_equal(
        grid([series, Series({})], 100.0, 30.0, 5), [[1.5, np.nan, np.nan, np.nan, 0.0], [np.nan] * 5], equal_nan=True
    )
    assert math.isnan(newest(Series({}, value=(1.0, "NaN"))))
    assert newest(Series({}, value=(1.0, "2"))) == 2.0
    assert math.isnan(newest(Series({})))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login</html>",
        b"[]",
        b"\xff\xfe",
        b'{"status":"success"}',
        b'{"status":"success","data":{"result":[1]}}',
    ],
)
def test_garbage_is_told_as_such(body):
    with pytest.raises(PrometheusError, match="http://p"):
        read(body, "http://p")


def test_warnings_mean_that_data_is_missing_except_remarks_on_the_expression():
    ok = b'{"status":"success","data":{"resultType":"vector","result":[]}%s}'
    assert read(ok % b"", "p").missing == ()
    assert read(ok % b',"warnings":["store-1: timeout"]', "p").missing == ("store-1: timeout",)
    assert read(ok % b',"warnings":["PromQL warning: mixed buckets"],"infos":["PromQL info: x"]', "p").missing == ()
    assert read(ok % b',"isPartial":true', "p").missing == ("the answer is marked as partial",)


def test_the_reason_of_a_refusal_is_one_line():
    assert (
        trouble(b'{"status":"error","errorType":"execution","error":"too\\nmany samples"}')
        == "execution: too many samples"
    )
    assert trouble(b"upstream\n  request timeout") == "upstream request timeout"


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("cluster=prod", 'cluster="prod"'),
        ('cluster="prod"', 'cluster="prod"'),
        ('node=~"a|b"', 'node=~"a|b"'),
        ("job!=x y", 'job!="x y"'),
    ],
)
def test_matchers_are_taken_as_in_promql_or_plain(text, out):
    assert q.matcher(text) == out


@pytest.mark.parametrize("text", ["", "prod", 'a="b",c="d"', 'a="b"} or vector(1) {x="', "a-b=c"])
def test_what_is_no_matcher_is_refused(text):
    with pytest.raises(PrometheusError, match="no matcher"):
        q.matcher(text)


def labels(name, **more):
    return {"namespace": "default", "pod": name, **more}


def test_tiers_follow_the_rules_of_slacktide_and_the_unknown_is_ls():
    found = tiers(
        [
            labels("own", label_slacktide_io_tier="BE", label_koordinator_sh_qosClass="LS"),
            labels("koordinator", label_koordinator_sh_qos_class="BE"),
            labels("older", label_koordinator_sh_qosClass="SYSTEM"),
            labels("guarded", label_slacktide_io_tier="ls"),
            labels("moody", label_slacktide_io_tier="be"),
            labels("moody", label_slacktide_io_tier="ls"),
            labels("junk", label_slacktide_io_tier="urgent"),
        ],
        [labels("batch", resource="kubernetes_io_batch_cpu"), labels("guarded", resource="kubernetes_io_batch_memory")],
    )
    assert {pod.name: tier for pod, tier in found.items()} == {
        "own": Tier.BE,
        "koordinator": Tier.BE,
        "older": Tier.SYSTEM,
        "guarded": Tier.LS,
        "moody": Tier.LS,
        "junk": Tier.LS,
        "batch": Tier.BE,
    }


def test_an_instance_is_the_node_that_its_address_or_uname_says():
    plain = Source("node")
    assert (plain.node("a"), plain.node("")) == ("a", None)
    known = Source("instance", {"10.0.0.1": "a"}, {"10.9.9.9:9100": "b"}, frozenset({"a", "b", "c"}))
    assert known.node("10.0.0.1:9100") == "a"
    assert known.node("10.9.9.9:9100") == "b"
    assert known.node("10.9.9.9:10250") is None
    assert known.node("c:10250") == "c"
    assert known.node("10.3.3.3:9100") is None
    assert Source("instance").node("host:9100") == "host"
    unlisted = Source("instance", hosts={"10.0.0.1:9100": "a", "10.0.0.1": "a"})
    assert (unlisted.node("10.0.0.1:9100"), unlisted.node("10.0.0.1:10250")) == ("a", "a")
    # A kernel that calls itself otherwise than Kubernetes does.
    assert Source("instance", hosts={"10.0.0.1": "a.local"}, known=frozenset("a")).node("10.0.0.1:1") is None


@pytest.mark.parametrize(
    ("instance", "host"),
    [("a:1", "a"), ("a", "a"), ("[::1]:9", "::1"), ("fe80::1", "fe80::1"), ("https://a.b:1/x", "a.b")],
)
def test_hosts_of_instances(instance, host):
    assert host_of(instance) == host


def test_windows_follow_the_scrape_interval_and_the_size_of_the_cluster():
    assert (step_for(15.0, 10), step_for(30.5, 10), step_for(60.0, 10), step_for(300.0, 10)) == (15, 30, 60, 60)
    assert (step_for(5.0, 10), step_for(15.0, 2000), step_for(15.0, 10_000)) == (15, 50, 60)
    assert (window_for(15.1, 15), window_for(30.5, 30), window_for(62.0, 60)) == (45, 90, 180)
    for nodes in (1, 10, 100, 1000, 3000, 10_000):
        step = step_for(15.0, nodes)
        of_nodes, of_pods = piece_sizes(nodes, step)
        assert nodes * of_nodes * (300 // step) <= 600_000
        assert of_nodes * (300 // step) <= 11_000
        assert of_pods % 12 == 0
        assert of_nodes >= 12


def test_half_of_the_nodes_keep_their_labels_in_both_sources():
    kubelets = {"a": ["a:10250"], "b": ["b:10250", "b:10255"], "c": []}
    exporters = {"a": ["a:9100"], "c": ["c:9100"]}
    found = halved(kubelets, exporters, ["a", "b", "c"])
    assert found is not None
    left, right = found
    assert (left.nodes, left.kubelets, left.exporters) == (frozenset("a"), ("a:10250",), ("a:9100",))
    assert (right.nodes, right.kubelets, right.exporters) == (frozenset("bc"), ("b:10250", "b:10255"), ("c:9100",))
    assert halved(kubelets, exporters, ["a"]) is None


def test_names_are_quoted_for_promql_and_for_its_regular_expressions():
    match = q.Match(('cluster="x"',), ("10.0.0.1:9100", 'odd"name'))
    assert match.all("instance") == ('cluster="x"', 'instance=~"10\\\\.0\\\\.0\\\\.1:9100|odd\\"name"')
    assert q.Match(values=()).all("node") == ('node=~""',)


@pytest.mark.parametrize(
    ("kind", "name", "group"),
    [
        ("ReplicaSet", "web-6d4cf56db6", "Deployment/default/web"),
        ("ReplicaSet", "web-frontend", "ReplicaSet/default/web-frontend"),
        ("StatefulSet", "db", "StatefulSet/default/db"),
        ("Job", "backup-28412345", "CronJob/default/backup"),
        ("", "", ""),
    ],
)
def test_groups_are_those_of_live_pods(kind, name, group):
    assert group_of(PodName("default", "x"), kind, name) == group

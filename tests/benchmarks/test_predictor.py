"""What the predictor's benchmark sends and what it counts as lost; the benchmark itself runs by hand."""

from __future__ import annotations

import time

from benchmarks.predictor import absent, fleet, forecast_seconds, missing, predictor, preload, table
from benchmarks.simulated_agents import PODS, agent, message, node_name, pod_uid
from benchmarks.token_reviews import ACCOUNT, AUDIENCE, reviewer, token_of
from predictor.history import Batch, open_history
from predictor.samples import Limits, judge, judge_pods, read, read_pods
from predictor.sequences import Seen
from slacktide.cluster import connect_unix
from slacktide.transport import review_token
from slacktide.v1 import usage_pb2
from tests.patience import PATIENCE
from tests.predictor.support import make_sample


def test_a_message_is_what_an_agent_would_send():
    now = int(time.time() * 1000)
    request = usage_pb2.ReportRequest.FromString(message(agent(7, "boot"), [(1, now - 10_000, 0.0), (300, now, 0.0)]))
    assert (request.node, request.boot_id) == (node_name(7), "boot")
    assert abs(request.sent_unix_millis - now) < 60_000
    assert [one.sequence for one in request.samples] == [1, 300]
    for one in request.samples:
        sample, pods = read(one), read_pods(one)
        assert judge(sample, Limits(now + 1, now - 86_400_000)) is None
        assert judge_pods(pods, sample) is None
        assert [pod.uid for pod in pods] == [pod_uid(7, pod) for pod in range(PODS)]
        assert sample.protected_cpu_mean >= 3000
    assert request.samples[1].end_unix_millis == now


def test_what_was_acknowledged_and_is_not_there_is_lost():
    assert absent(None, 5) == 5
    seen = Seen()
    for sequence in (1, 2, 4, 5, 9):
        seen.offer(sequence, sequence)
    assert [absent(seen, high) for high in (2, 3, 5, 9, 11)] == [0, 1, 1, 4, 6]


def test_a_forecast_is_a_pass_and_a_step_of_each_resource():
    assert forecast_seconds([10.0, 5.0, 4.0, 6.0]) == 0.5 + 2 * 1.5
    assert forecast_seconds([30.0, 9.0, 6.0, 7.0], [10.0, 5.0, 4.0, 6.0]) == 0.2 + 2 * 0.5
    assert forecast_seconds([30.0, 9.0, 4.0, 6.0], [10.0, 5.0, 4.0, 6.0]) is None


def test_lost_samples_are_looked_for_in_the_history(tmp_path):
    history = open_history(str(tmp_path))
    history.append([Batch("n1", "b", [make_sample(sequence) for sequence in (1, 2, 3)])])
    history.close()
    assert missing(str(tmp_path), {"n1": 3}) == 0
    assert missing(str(tmp_path), {"n1": 4, "n2": 2}) == 3


def test_the_history_before_the_start_is_full(tmp_path):
    preload(str(tmp_path), nodes=3, days=2, pod_days=1)
    history = open_history(str(tmp_path))
    window = history.window(0)
    hours = list(history.pod_hours(0))
    history.close()
    assert window.names == [node_name(index) for index in range(3)]
    assert 3 * 2 * 288 <= len(window.slot) <= 3 * 2 * 288 + 3
    assert window.cpu_millis.min() > 0
    assert sum(len(part.pod) for part in hours) == 3 * PODS * 24


def test_the_table_has_a_row_a_size():
    size = {
        "nodes": 10,
        "samples_lost": 0,
        "cores": 0.5,
        "highest_rss_mib": 100.0,
        "forecast_pass_seconds": 1.0,
        "restart_seconds": 2.0,
        "ack_p50_ms": 3.0,
        "ack_p99_ms": 4.0,
    }
    rows = table([size, size])
    assert len(rows) == 3
    assert rows[1] == ["10", "0", "0.50", "100.00", "1.00", "2.00", "3.00", "4.00"]


def test_a_token_is_good_for_the_node_of_its_agent(tmp_path):
    api = str(tmp_path / "api.sock")
    with reviewer(api):
        client = connect_unix(api, "test")
        known, nobody = (review_token(client, token, AUDIENCE, 5.0) for token in (token_of("n3"), "somebody"))
        other = review_token(client, token_of("n3"), "somebody else", 5.0)
        client.close()
    assert known.user is not None
    assert (known.user.username, known.user.node) == (ACCOUNT, "n3")
    assert (nobody.user, nobody.reason) == (None, "nobody's token")
    assert other.user is None
    assert not (tmp_path / "api.sock").exists()


def test_agents_over_tls_are_let_in_by_their_tokens():
    with predictor(tls=True) as running:
        running.start()
        with fleet(running.address, 3, 0.2, running.ca_file) as agents:
            deadline = time.monotonic() + 30.0 * PATIENCE
            while running.metric("samples_total") < 6:
                assert time.monotonic() < deadline, "no samples came"
                time.sleep(0.02)
            streams = running.metric("streams")
            outcomes = agents.end()
        assert streams == 3
        sent = sum(outcome.samples for outcome in outcomes)
        assert running.metrics("samples_total", "refused_calls_total", "refused_samples_total") == [sent, 0, 0]
    assert sum(len(outcome.acknowledged) for outcome in outcomes) == 3
    assert sum(outcome.waiting for outcome in outcomes) == 0

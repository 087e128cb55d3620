"""The stream over TLS: what the agent shows and whom it trusts, also when the files change under it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from concurrent import futures
from pathlib import Path

import grpc
import msgspec
import pytest

from agent.report import Reporter
from agent.spool import Spool
from slacktide.errors import SettingsError
from slacktide.transport import CertificateFiles, Connection, server_credentials
from slacktide.v1 import usage_pb2_grpc
from tests.agent.test_report import QUICK, Predictor, reporting, sample, sequences, wait_for
from tests.pki import Pki

NAME = "predictor.example"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.server = made.issue("server", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    made.client = made.issue("client", "/CN=system:node:n1", "extendedKeyUsage=clientAuth\n")
    return made


@pytest.fixture(scope="module")
def other(tmp_path_factory, pki):
    made = Pki(tmp_path_factory.mktemp("other"))
    made.server = made.issue("server", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    return made


class Guarded(Predictor):
    """A predictor that takes streams with a token of `good`, and remembers what each stream carried."""

    def __init__(self, *good):
        super().__init__()
        self.good = set(good)
        self.seen = []

    def Report(self, request_iterator, context):
        text = dict(context.invocation_metadata()).get("authorization", "")
        self.seen.append(text)
        if self.good and text.removeprefix("Bearer ") not in self.good:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is that?")
        yield from super().Report(request_iterator, context)


@contextlib.contextmanager
def serving(predictor, *files, address="127.0.0.1:0"):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    usage_pb2_grpc.add_UsageServiceServicer_to_server(predictor, server)
    port = server.add_secure_port(address, server_credentials(CertificateFiles(*files)))
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait(5)


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr("agent.stream._FILES_SECONDS", 0.05)


@pytest.fixture
def settings(tmp_path, pki):
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    ca = tmp_path / "ca.crt"
    shutil.copy(pki.ca, ca)
    return msgspec.structs.replace(QUICK, ca_file=str(ca), token_file=str(token), server_name=NAME)


def move(source, target):
    shutil.copy(source, f"{target}.new")
    os.replace(f"{target}.new", target)


def put(text, target):
    with open(f"{target}.new", "w") as file:
        file.write(text)
    os.replace(f"{target}.new", target)


def test_a_rotated_token_opens_a_new_stream_and_nothing_is_sent_twice(tmp_path, pki, settings, quickly):
    predictor = Guarded("first-secret")
    with (
        serving(predictor, *pki.server) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: spool.waiting() == 0 and sequences(predictor) == [1])
        predictor.good = {"second-secret"}
        put("second-secret", settings.token_file)
        wait_for(lambda: predictor.seen[-1] == "Bearer second-secret")
        reporter.submit(sample(2))
        wait_for(lambda: spool.waiting() == 0 and sequences(predictor) == [1, 2])
        assert predictor.seen == ["Bearer first-secret", "Bearer second-secret"]
        assert reporter.counters["failures"] == 0


def test_samples_under_way_are_acknowledged_before_the_stream_is_renewed(tmp_path, pki, settings, quickly):
    predictor = Guarded()
    holds = []

    def answer(request):
        holds.append(request)
        return

    predictor.answer = answer
    with (
        serving(predictor, *pki.server) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: holds)
        put("second-secret", settings.token_file)
        # Nothing is acknowledged: the stream is given up for its silence, as ever.
        wait_for(lambda: len(predictor.seen) > 1)
        assert spool.waiting() == 1
        assert predictor.seen[-1] == "Bearer second-secret"


def test_a_token_that_is_missing_or_empty_is_told_once_and_waited_for(tmp_path, pki, settings, caplog):
    predictor = Guarded("first-secret")
    put("", settings.token_file)
    with (
        serving(predictor, *pki.server) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: reporter.counters["failures"] >= 3)
        assert (predictor.seen, spool.waiting()) == ([], 1)
        put("first-secret", settings.token_file)
        wait_for(lambda: spool.waiting() == 0)
    told = [record.getMessage() for record in caplog.records if "predictor away" in record.getMessage()]
    assert len(told) == 1
    assert "is empty" in told[0]


def test_a_predictor_of_another_authority_gets_nothing_until_it_is_trusted(
    tmp_path, pki, other, settings, quickly, caplog
):
    predictor = Guarded()
    with (
        serving(predictor, *other.server) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: reporter.counters["failures"] >= 2)
        assert predictor.seen == []
        move(other.ca, settings.ca_file)
        wait_for(lambda: spool.waiting() == 0)
    told = [record.getMessage() for record in caplog.records if "predictor away" in record.getMessage()]
    assert len(told) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in told[0]


@pytest.mark.parametrize("what", ["expired", "another name"])
def test_a_spoofed_predictor_gets_no_token(tmp_path, pki, settings, what):
    extension = f"subjectAltName=DNS:{NAME if what == 'expired' else 'elsewhere.example'}\n"
    pair = pki.issue("spoof", "/CN=predictor", extension, days=-1 if what == "expired" else 2)
    predictor = Guarded()
    with serving(predictor, *pair) as port, reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool):
        reporter.submit(sample(1))
        wait_for(lambda: reporter.counters["failures"] >= 2)
        assert (predictor.seen, spool.waiting()) == ([], 1)


def test_the_name_is_that_of_the_target_where_none_is_given(tmp_path, pki, settings):
    local = pki.issue("local", "/CN=predictor", "subjectAltName=DNS:localhost\n")
    settings = msgspec.structs.replace(settings, server_name="")
    predictor = Guarded("first-secret")
    with serving(predictor, *local) as port, reporting(tmp_path, f"localhost:{port}", settings) as (reporter, spool):
        reporter.submit(sample(1))
        wait_for(lambda: sequences(predictor) == [1] and spool.waiting() == 0)


def test_a_client_certificate_instead_of_a_token(tmp_path, pki, settings):
    certificate, key = pki.client
    settings = msgspec.structs.replace(settings, token_file="", certificate_file=certificate, key_file=key)
    predictor = Guarded()
    with (
        serving(predictor, *pki.server, pki.ca) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: sequences(predictor) == [1] and spool.waiting() == 0)
    assert predictor.seen == [""]


@pytest.mark.parametrize(
    ("target", "changes", "word"),
    [
        ("predictor:7443", {}, r"report\.ca_file"),
        ("127.0.0.1:7443", {}, r"report\.ca_file"),
        ("predictor:7443", {"insecure": True}, "this machine only"),
        ("10.0.0.1:7443", {"insecure": True, "ca_file": "x"}, "this machine only"),
        ("unix:/p.sock, predictor:7443", {}, r"predictor:7443 needs"),
        ("predictor:7443", {"ca_file": "x", "key_file": "k"}, "belong together"),
    ],
)
def test_plaintext_and_half_pairs_are_settings_errors(tmp_path, target, changes, word):
    spool = Spool(str(tmp_path), 1 << 20)
    with pytest.raises(SettingsError, match=word):
        Reporter("n", "b", spool, msgspec.structs.replace(QUICK, **changes), target)
    spool.close()


def test_secrets_are_in_no_log_line(tmp_path, pki, settings, caplog):
    caplog.set_level(logging.DEBUG)
    secret = Path(settings.token_file).read_text().strip()
    key = Path(pki.client[1]).read_text().splitlines()[1]
    settings = msgspec.structs.replace(settings, certificate_file=pki.client[0], key_file=pki.client[1])
    predictor = Guarded("another")
    with (
        serving(predictor, *pki.server) as port,
        reporting(tmp_path, f"127.0.0.1:{port}", settings) as (reporter, _spool),
    ):
        reporter.submit(sample(1))
        wait_for(lambda: reporter.counters["failures"] >= 2)
    assert "who is that?" in caplog.text
    assert secret not in caplog.text
    assert key not in caplog.text
    with grpc.insecure_channel("unix:/nobody") as channel:
        assert secret not in repr(Connection(channel, (("authorization", f"Bearer {secret}"),)))

"""Until when certificates are good: as openssl says it, for what openssl makes and for what nobody should."""

from __future__ import annotations

import math
import random
import shutil
import ssl
import subprocess
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from slacktide.transport import CertificateFiles
from slacktide.transport.expiry import bundle_expiry, chain_expiry, expiries
from slacktide.transport.watched import ExpiryMetrics
from tests.pki import Pki

if shutil.which("openssl") is None:
    pytest.skip("no openssl command", allow_module_level=True)

NAMES = "subjectAltName=DNS:one\n"
METRIC = "slacktide_certificate_expiry_timestamp_seconds"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.soon = made.issue("soon", "/CN=one", NAMES, days=2)
    # After 2049 the date has another form.
    made.late = made.issue("late", "/CN=one", NAMES, days=20000)
    made.expired = made.issue("expired", "/CN=one", NAMES, days=-1)
    return made


def content(*paths):
    return b"".join(open_bytes(path) for path in paths)


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def said_by_openssl(path):
    command = ["openssl", "x509", "-in", path, "-noout", "-enddate", "-dateopt", "iso_8601"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return datetime.fromisoformat(text.partition("=")[2].strip()).astimezone(UTC).timestamp()


@pytest.mark.parametrize("name", ["soon", "late", "expired"])
def test_the_end_is_as_openssl_says(pki, name):
    certificate, _ = getattr(pki, name)
    assert expiries(content(certificate)) == [said_by_openssl(certificate)]


def test_a_chain_ends_with_its_first_and_a_bundle_with_its_last(pki):
    ends = [said_by_openssl(path) for path in (pki.expired[0], pki.late[0], pki.ca)]
    pem = b"words before\n" + content(pki.expired[0], pki.late[0], pki.ca)
    assert expiries(pem) == ends
    assert chain_expiry(pem) == min(ends)
    assert bundle_expiry(pem) == max(ends)
    assert chain_expiry(b"") is None
    assert bundle_expiry(b"no certificate") is None


def test_a_certificate_of_version_1_has_an_end_too(pki, tmp_path):
    key, made = f"{tmp_path}/key", f"{tmp_path}/crt"
    pki.run("req", *pki.ec(), "-nodes", "-keyout", key, "-out", f"{tmp_path}/csr", "-subj", "/CN=old")
    pki.run("x509", "-req", "-in", f"{tmp_path}/csr", "-signkey", key, "-days", "3", "-out", made)
    assert expiries(content(made)) == [said_by_openssl(made)]


@given(cut=st.integers(0, 2000), seed=st.integers(0, 2**32), changed=st.integers(0, 8))
def test_whatever_is_in_the_file_it_is_an_end_or_a_refusal(pki, cut, seed, changed):
    der = bytearray(ssl.PEM_cert_to_DER_cert(content(pki.soon[0]).decode())[:cut])
    chosen = random.Random(seed)
    for _ in range(changed if der else 0):
        der[chosen.randrange(len(der))] = chosen.randrange(256)
    try:
        (end,) = expiries(ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
    except ValueError:
        return
    assert math.isfinite(end)


def test_the_metric_follows_the_files_and_says_once_that_they_have_expired(pki, tmp_path, caplog):
    certificate, key = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")

    def put(pair):
        for source, target in zip(pair, (certificate, key), strict=True):
            shutil.copy(source, f"{target}.new")
            shutil.move(f"{target}.new", target)

    put(pki.soon)
    registry = CollectorRegistry()
    files = CertificateFiles(certificate, key, pki.ca)
    ExpiryMetrics(registry).follow(files)

    def shown(part):
        return registry.get_sample_value(METRIC, {"setting": "tls", "part": part})

    assert shown("certificate") == said_by_openssl(pki.soon[0])
    assert shown("ca") == said_by_openssl(pki.ca)
    assert "expired" not in caplog.text
    put(pki.expired)
    assert shown("certificate") == said_by_openssl(pki.expired[0]) < time.time()
    assert shown("certificate") < time.time()
    assert caplog.text.count("has expired") == 1
    # Looking at the dates must not hide from the server that there is something new to read.
    assert files.renewed() is not None
    # A half-written pair is not shown to anybody, so that its date is not either.
    shutil.copy(pki.late[0], certificate)
    assert shown("certificate") == said_by_openssl(pki.expired[0])
    put(pki.late)
    assert shown("certificate") == said_by_openssl(pki.late[0])
    assert caplog.text.count("has expired") == 1


def test_what_is_not_named_has_no_figure_and_what_cannot_be_read_is_not_a_number(pki, tmp_path):
    registry = CollectorRegistry()
    ExpiryMetrics(registry).follow(CertificateFiles(ca_file=f"{tmp_path}/none", setting="report"))
    assert registry.get_sample_value(METRIC, {"setting": "report", "part": "certificate"}) is None
    assert math.isnan(registry.get_sample_value(METRIC, {"setting": "report", "part": "ca"}))

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from slacktide.cluster import connect, errors
from slacktide.cluster.client import Client
from slacktide.cluster.credentials import (
    Endpoint,
    TokenFileSource,
    in_cluster_source,
    kubeconfig_source,
    source_for,
)
from slacktide.cluster.wire import ssl_context
from slacktide.settings import ClusterSettings
from tests.pki import Pki
from tests.slacktide.cluster.fakeapi import FakeApi, Reply, status, wait_for

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")


def reach(**fields):
    return ClusterSettings(**fields)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.server = made.issue("server", "/CN=api", "subjectAltName=IP:127.0.0.1,DNS:api.test\n")
    made.client = made.issue("client", "/O=system:masters/CN=me", "extendedKeyUsage=clientAuth\n")
    return made


@pytest.fixture(autouse=True)
def strict_python(monkeypatch):
    """Every Python checks certificates as strictly as 3.13 does by default."""
    original = ssl.create_default_context

    def strict(*arguments, **options):
        context = original(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.fixture
def tls_api(pki):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pki.server)
    context.load_verify_locations(pki.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = FakeApi(context=context)
    server.on("GET", "/version", Reply({"gitVersion": "v1.36.3", "major": "1", "minor": "36"}))
    yield server
    server.close()


def kubeconfig(path, server="https://127.0.0.1:1", user=None, cluster=None, **more):
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **more,
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture
def open_client():
    clients = []

    def make(source):
        client = Client(source, user_agent="test", timeout_seconds=5.0)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.mark.parametrize("where", ["files", "data"])
def test_client_certificate_and_ca_without_key_usage(pki, tls_api, tmp_path, open_client, where):
    def entry(key, path):
        if where == "files":
            return {key: path}
        return {f"{key}-data": base64.b64encode(Path(path).read_bytes()).decode()}

    certificate, key = pki.client
    user = {**entry("client-certificate", certificate), **entry("client-key", key)}
    path = kubeconfig(tmp_path / "config", tls_api.url, user, entry("certificate-authority", pki.ca))
    assert open_client(kubeconfig_source(path)).version().git_version == "v1.36.3"
    assert tls_api.calls[0].peer == "me"


def test_strict_check_is_off_and_the_others_are_on(pki):
    context = ssl_context(Endpoint("https://h", ca_file=pki.ca))
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_python_would_refuse_this_ca_by_itself(pki, tls_api):
    """Shows that the test above tests something: the strict check fails on this CA."""
    context = ssl.create_default_context(cafile=pki.ca)
    with (
        socket.create_connection(("127.0.0.1", tls_api.port)) as sock,
        pytest.raises(ssl.SSLCertVerificationError, match="key usage"),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_other_ca_is_refused(pki, tls_api, tmp_path, open_client):
    other = Pki(tmp_path)
    path = kubeconfig(tmp_path / "config", tls_api.url, cluster={"certificate-authority": other.ca})
    with pytest.raises(errors.Unreachable, match="TLS failed"):
        open_client(kubeconfig_source(path)).version()


def test_other_name_is_refused_unless_named(pki, tls_api, tmp_path, open_client):
    cluster = {"certificate-authority": pki.ca}
    wrong = kubeconfig(tmp_path / "wrong", tls_api.url, cluster={**cluster, "tls-server-name": "other.test"})
    with pytest.raises(errors.Unreachable, match="TLS failed"):
        open_client(kubeconfig_source(wrong)).version()
    right = kubeconfig(tmp_path / "right", tls_api.url, cluster={**cluster, "tls-server-name": "api.test"})
    assert open_client(kubeconfig_source(right)).version().minor == "36"


def test_skipping_verification_is_possible_where_the_kubeconfig_says_so(tls_api, tmp_path, open_client):
    path = kubeconfig(tmp_path / "config", tls_api.url, cluster={"insecure-skip-tls-verify": True})
    assert open_client(kubeconfig_source(path)).version().major == "1"


def test_proxy_of_the_kubeconfig(api, tmp_path, open_client):
    api.on("GET", "/version", Reply({"gitVersion": "v1"}))
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", cluster={"proxy-url": api.url})
    assert open_client(kubeconfig_source(path)).version().git_version == "v1"


def test_renewed_certificate_makes_new_connections(pki, tls_api, tmp_path, open_client):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    for target, source in zip((certificate, key), pki.client, strict=True):
        shutil.copy(source, target)
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    path = kubeconfig(tmp_path / "config", tls_api.url, user, {"certificate-authority": pki.ca})
    client = open_client(kubeconfig_source(path))
    client.version()
    renewed = pki.issue("renewed", "/CN=renewed", "extendedKeyUsage=clientAuth\n")
    for target, source in zip((certificate, key), renewed, strict=True):
        shutil.copy(source, target)
        os.utime(target, ns=(1, 1))

    def peers():
        client.version()
        return [call.peer for call in tls_api.calls]

    assert set(wait_for(lambda: (found := peers())[-1] == "renewed" and found, "the files to be looked at")) == {
        "me",
        "renewed",
    }


def test_certificate_file_that_is_none(pki, tmp_path, open_client):
    broken = tmp_path / "broken.crt"
    broken.write_text("nothing")
    with pytest.raises(errors.CredentialsError, match=r"broken\.crt"):
        ssl_context(Endpoint("https://h", ca_file=str(broken)))


def plugin(tmp_path, status_):
    """An exec plugin that notes each run and prints what `answer` holds then."""
    (tmp_path / "answer").write_text(
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status_})
    )
    script = tmp_path / "plugin.sh"
    script.write_text(f'#!/bin/sh\necho run >> "{tmp_path}/runs"\ncat "{tmp_path}/answer"\n')
    script.chmod(0o755)
    return {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script), "interactiveMode": "Never"}
    }


def runs(tmp_path):
    return (tmp_path / "runs").read_text().count("run")


def test_exec_plugin(api, tmp_path, open_client):
    user = plugin(tmp_path, {"token": "one"})
    source = kubeconfig_source(kubeconfig(tmp_path / "config", api.url, user))

    def answer(call):
        if call.headers["Authorization"] == "Bearer two":
            return Reply({"gitVersion": "v1"})
        plugin(tmp_path, {"token": "two"})
        return status(401, "Unauthorized")

    api.on("GET", "/version", answer)
    client = open_client(source)
    assert client.version().git_version == "v1"
    assert [c.headers["Authorization"] for c in api.calls] == ["Bearer one", "Bearer two"]
    assert runs(tmp_path) == 2
    client.version()
    assert runs(tmp_path) == 2, "the plugin runs when needed, not at each call"


def test_exec_plugin_whose_token_expired_runs_again(tmp_path):
    user = plugin(tmp_path, {"token": "one", "expirationTimestamp": "2020-01-01T00:00:00Z"})
    source = kubeconfig_source(kubeconfig(tmp_path / "config", user=user))
    plugin(tmp_path, {"token": "two", "expirationTimestamp": "2099-01-01T00:00:00Z"})
    assert source.current().authorization == "Bearer two"
    before = runs(tmp_path)
    source.current()
    assert runs(tmp_path) == before


def test_exec_plugin_with_a_certificate(pki, tls_api, tmp_path, open_client):
    certificate, key = (Path(path).read_text() for path in pki.client)
    user = plugin(tmp_path, {"clientCertificateData": certificate, "clientKeyData": key})
    path = kubeconfig(tmp_path / "config", tls_api.url, user, {"certificate-authority": pki.ca})
    open_client(kubeconfig_source(path)).version()
    assert tls_api.calls[0].peer == "me"


@pytest.mark.parametrize("script", ["exit 3", "echo nonsense", "echo '{}'"])
def test_exec_plugin_that_fails_is_an_error_not_an_anonymous_client(tmp_path, script):
    user = plugin(tmp_path, {})
    (tmp_path / "plugin.sh").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(errors.CredentialsError, match=r"plugin\.sh"):
        kubeconfig_source(kubeconfig(tmp_path / "config", user=user))


def test_token_of_a_kubeconfig(tmp_path):
    source = kubeconfig_source(kubeconfig(tmp_path / "config", user={"token": "secret"}))
    assert source.current().authorization == "Bearer secret"
    assert kubeconfig_source(kubeconfig(tmp_path / "none")).current().authorization is None


def test_token_file_of_a_kubeconfig_is_read_again_each_minute(tmp_path):
    now = [0.0]
    (tmp_path / "token").write_text("one\n")
    path = kubeconfig(tmp_path / "config", user={"tokenFile": str(tmp_path / "token")})
    source = kubeconfig_source(path, clock=lambda: now[0])
    assert source.current().authorization == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    now[0] = 59.0
    assert source.current().authorization == "Bearer one"
    now[0] = 60.0
    assert source.current().authorization == "Bearer two"


@pytest.mark.parametrize("how", ["kubeconfig", "server"])
def test_user_and_password_of_the_address_become_a_header_and_are_shown_nowhere(api, tmp_path, open_client, how):
    api.on("GET", "/version", Reply({"gitVersion": "v1"}), status(500))
    url = api.url.replace("http://", "http://slacktide:s%2Fecret@")
    settings = reach(server=url) if how == "server" else reach(kubeconfig=kubeconfig(tmp_path / "config", url))
    client = open_client(source_for(settings, {}))
    client.version()
    assert api.calls[0].headers["Authorization"] == "Basic " + base64.b64encode(b"slacktide:s/ecret").decode()
    api.close()
    with pytest.raises(errors.Unreachable) as caught:
        client.version()
    assert "ecret" not in str(caught.value)


def test_context_by_name(tmp_path):
    path = kubeconfig(
        tmp_path / "config",
        contexts=[
            {"name": "main", "context": {"cluster": "c", "user": "u"}},
            {"name": "side", "context": {"cluster": "d", "user": "v"}},
        ],
        clusters=[
            {"name": "c", "cluster": {"server": "https://c:1"}},
            {"name": "d", "cluster": {"server": "https://d:2"}},
        ],
        users=[{"name": "u", "user": {}}, {"name": "v", "user": {"token": "side"}}],
    )
    assert kubeconfig_source(path, "side").current() == (Endpoint("https://d:2"), "Bearer side")
    with pytest.raises(errors.CredentialsError, match="absent"):
        kubeconfig_source(path, "absent")


@pytest.mark.parametrize("text", ["", "- a list", "{", "kind: Config", "current-context: x\ncontexts: 3"])
def test_broken_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(errors.CredentialsError, match="config"):
        kubeconfig_source(str(path))


def test_error_about_a_kubeconfig_does_not_quote_its_secrets(tmp_path):
    user = {"auth-provider": {"name": "oidc", "secret": "hush"}, "token": "hush"}
    config = kubeconfig(tmp_path / "config", users=[{"name": "u", "user": user}, {"user": {"token": "hush"}}])
    with pytest.raises(errors.CredentialsError) as caught:
        kubeconfig_source(config)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_kubeconfig_with_plain_http_to_elsewhere_is_refused(tmp_path):
    with pytest.raises(errors.CredentialsError, match="use https"):
        kubeconfig_source(kubeconfig(tmp_path / "config", "http://10.0.0.1:8080", {"token": "secret"}))


def test_in_cluster(pki, tmp_path):
    shutil.copy(pki.ca, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("one\n")
    now = [0.0]
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    source = in_cluster_source(environ, str(tmp_path), clock=lambda: now[0])
    endpoint, header = source.current()
    assert (endpoint.url, endpoint.ca_file, header) == ("https://[fd00::1]:443", f"{tmp_path}/ca.crt", "Bearer one")
    (tmp_path / "token").write_text("two\n")
    assert source.current().authorization == "Bearer one"
    now[0] = 60.0
    assert source.current().authorization == "Bearer two"
    used = source.current()
    (tmp_path / "token").write_text("three\n")
    assert source.renew(used)
    assert source.current().authorization == "Bearer three"
    assert source.renew(used), "another thread's older access: there is a newer one to try"
    assert not source.renew(source.current())


def test_in_cluster_without_account(tmp_path):
    source = in_cluster_source({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, str(tmp_path))
    with pytest.raises(errors.CredentialsError, match=r"service account in .*: ca.crt does not exist"):
        source.current()
    (tmp_path / "ca.crt").write_text("")
    with pytest.raises(errors.CredentialsError, match="cannot read the API token"):
        source.current()


def test_in_cluster_notices_an_exchanged_authority_and_needs_no_other_package(pki, tmp_path):
    shutil.copy(pki.ca, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("one")
    code = (
        "import sys; from slacktide.cluster.credentials import in_cluster_source\n"
        f"source = in_cluster_source({{'KUBERNETES_SERVICE_HOST': 'h'}}, {str(tmp_path)!r})\n"
        "print(source.current().endpoint.url, 'kubernetes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["https://h:443", "False"]
    now = [0.0]
    source = in_cluster_source({"KUBERNETES_SERVICE_HOST": "h"}, str(tmp_path), clock=lambda: now[0])
    before = source.current().endpoint
    os.utime(tmp_path / "ca.crt", ns=(5, 5))
    assert source.current().endpoint == before, "looked at once a second"
    now[0] = 1.0
    assert source.current().endpoint != before


def test_in_cluster_behind_a_proxy_is_left_to_the_package(pki, tmp_path, monkeypatch):
    shutil.copy(pki.ca, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("one")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", **os.environ}
    assert in_cluster_source(environ, str(tmp_path)).current().endpoint.proxy == "http://proxy:3128"


def test_token_file(tmp_path):
    now = [0.0]
    path = tmp_path / "token"
    source = TokenFileSource(Endpoint("https://h"), str(path), lambda: now[0])
    with pytest.raises(errors.CredentialsError, match="token"):
        source.current()
    for unusable in ("", "\n", "two\nlines"):
        path.write_text(unusable)
        with pytest.raises(errors.CredentialsError, match="empty or has control"):
            source.current()
    path.write_text("one\n")
    assert source.current().authorization == "Bearer one"
    path.unlink()
    now[0] = 60.0
    assert source.current().authorization == "Bearer one", "a file that is away for a moment is no reason to stop"
    path.write_text("two")
    assert source.current().authorization == "Bearer two"
    used = source.current()
    assert not source.renew(used)
    path.write_text("three")
    assert source.renew(used)


def test_choice_of_source(tmp_path):
    config = kubeconfig(tmp_path / "config", user={"token": "t"})
    assert source_for(reach(server="unix:/run/s"), {}).current() == (Endpoint("unix:/run/s"), None)
    assert source_for(reach(kubeconfig=config), {}).current().authorization == "Bearer t"
    assert source_for(reach(), {"KUBECONFIG": config}).current().authorization == "Bearer t"
    assert source_for(reach(), {"KUBECONFIG": f"/nonexistent:{config}"}).current().authorization == "Bearer t"
    in_cluster = source_for(reach(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": config})
    with pytest.raises(errors.CredentialsError, match="service account"):
        in_cluster.current()
    assert source_for(reach(kubeconfig=config), {"KUBERNETES_SERVICE_HOST": "x"}).current().authorization == "Bearer t"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"server": "unix:/s", "kubeconfig": "/k"}, "exclude each other"),
        ({"token_file": "/t"}, "needs cluster.server"),
        ({"kubeconfig": "/nonexistent/config"}, "does not exist"),
        ({}, r"set cluster\.server"),
    ],
)
def test_settings_that_say_no_way(tmp_path, fields, said):
    with pytest.raises(errors.CredentialsError, match=said):
        source_for(reach(**fields), {"KUBECONFIG": f"{tmp_path}/absent"})


def test_kubernetes_package_is_not_imported_for_sockets_and_tokens(tmp_path):
    (tmp_path / "token").write_text("t")
    program = f"""
        import sys
        from slacktide.cluster import connect, errors
        from slacktide.settings import ClusterSettings
        for server, token in (("unix:/nonexistent", ""), ("http://127.0.0.1:1", {str(tmp_path / "token")!r}),
                              ("https://127.0.0.1:1", {str(tmp_path / "token")!r})):
            client = connect(ClusterSettings(server=server, token_file=token), user_agent="t")
            try:
                client.version()
            except errors.Unreachable:
                print("tried")
        print("kubernetes" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["tried", "tried", "tried", "False"]


def test_connect_sends_nothing(api):
    client = connect(reach(server=api.url), user_agent="slacktide-test")
    assert api.calls == []
    client.close()

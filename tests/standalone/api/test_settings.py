from __future__ import annotations

import pytest

from slacktide.errors import SettingsError
from standalone.api.settings import ApiSettings, check

GOOD = {"socket": "/tmp/s", "database": "/tmp/db", "log_dir": "/tmp/logs"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"socket": "/tmp/" + "x" * 120}, "125 bytes long"),
        ({"socket": "relative"}, "absolute"),
        ({"socket": ""}, "--socket"),
        ({"database": ""}, "--database"),
        ({"log_dir": ""}, "--log-dir"),
        ({"listen": "0.0.0.0:0", "token_file": "t"}, "not a loopback address"),
        ({"listen": "192.0.2.1:80", "token_file": "t"}, "not a loopback address"),
        ({"listen": "[::]:80", "token_file": "t"}, "not a loopback address"),
        ({"listen": "example.com:80", "token_file": "t"}, "not a loopback address"),
        ({"listen": ":80", "token_file": "t"}, "not a loopback address"),
        ({"listen": "localhost", "token_file": "t"}, "HOST:PORT"),
        ({"listen": "unix:/tmp/x", "token_file": "t"}, "a Unix socket is named by socket"),
        ({"listen": "127.0.0.1:0"}, "--token-file"),
        ({"kubeconfig_file": "k"}, "--listen"),
    ],
)
def test_settings_that_do_not_fit_together(change, expected):
    with pytest.raises(SettingsError) as refused:
        check(ApiSettings(**{**GOOD, **change}))
    assert len(refused.value.problems) == 1
    assert expected in refused.value.problems[0]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.3.2.1:9", "[::1]:80", "localhost:8001"])
def test_loopback_addresses(listen):
    settings = ApiSettings(**GOOD, listen=listen, token_file="t", kubeconfig_file="k")
    assert check(settings) is settings


def test_all_problems_are_told_at_once():
    with pytest.raises(SettingsError) as refused:
        check(ApiSettings(listen="0.0.0.0:1"))
    assert len(refused.value.problems) == 5

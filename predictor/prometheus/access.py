"""How a Prometheus is reached: address, credentials, TLS. No secret ever gets into a message."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import urllib3

from predictor.prometheus.errors import PrometheusError

_HEADER: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)\s*:\s*(.*)")
_API_TAIL: Final = re.compile(r"(/api/v1(/query(_range)?)?|/graph)?/*$")
_TOKEN_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Access:
    """Where and as whom to ask.

    base     URL without `/api/v1` and without credentials, so that messages may name it
    headers  sent with each request
    """

    base: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def bare(self) -> bool:
        """Whether a secret would go over the network unencrypted."""
        parts = urlsplit(self.base)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        secret = self.token_file is not None or any(name.lower() == "authorization" for name in self.headers)
        return parts.scheme == "http" and not local and secret

    def fresh_headers(self) -> dict[str, str]:
        """Headers with the token as it stands in its file now: tokens of service accounts are exchanged hourly.

        Raises PrometheusError when the file cannot be read.
        """
        headers = dict(self.headers)
        if self.token_file is None:
            return headers
        try:
            with open(self.token_file, encoding="ascii") as file:
                token = file.read(_TOKEN_BYTES).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError(f"token file {self.token_file}: {_why(error)}") from error
        if not token or any(character.isspace() for character in token):
            raise PrometheusError(f"token file {self.token_file} must hold one token and nothing else")
        headers["Authorization"] = f"Bearer {token}"
        return headers


def access_of(
    url: str,
    headers: tuple[str, ...] = (),
    token_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
) -> Access:
    """Access to `url` (http or https, with the path it is served under; user:password as in `curl`).

    Raises PrometheusError when one of these cannot be used.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise PrometheusError(f"{_hidden(url)!r} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PrometheusError(f"{_hidden(url)!r} is no address: write http://HOST:PORT or https://HOST/PATH")
    if parts.query or parts.fragment:
        raise PrometheusError(
            f"{_hidden(url)!r} has a query: give the address of the server only (--match picks a cluster)"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}{f':{port}' if port else ''}{_API_TAIL.sub('', parts.path)}"
    sent = dict(_header(text) for text in headers)
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        sent["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    if token_file is not None and any(name.lower() == "authorization" for name in sent):
        raise PrometheusError("there are two ways to log in: give --token-file or the other one, not both")
    return Access(base, sent, token_file, ca_file, cert_file, key_file)


def secure_pool(access: Access) -> urllib3.PoolManager:
    """Connections to the server. Raises PrometheusError when a certificate file cannot be used."""
    options: dict[str, Any] = {"maxsize": 1}
    if access.base.startswith("https:"):
        try:
            context = ssl.create_default_context(cafile=access.ca_file)
            # Python 3.13 refuses a CA without keyUsage by default, and many clusters have such a one.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if access.cert_file:
                context.load_cert_chain(access.cert_file, access.key_file)
        except (OSError, ValueError) as error:
            files = ", ".join(name for name in (access.ca_file, access.cert_file, access.key_file) if name)
            raise PrometheusError(f"cannot use the certificates ({files}): {_why(error)}") from error
        options["ssl_context"] = context
    return urllib3.PoolManager(**options)


def _header(text: str) -> tuple[str, str]:
    found = _HEADER.fullmatch(text.strip())
    if found is None:
        raise PrometheusError("a --header is not of the form 'Name: value', such as 'X-Scope-OrgID: team-a'")
    return found[1], found[2]


def _hidden(url: str) -> str:
    """`url` without what stands before an @."""
    return re.sub(r"^(.*//)?.*@", r"\1", url)


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)

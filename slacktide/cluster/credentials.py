"""Where the API is and who we are: a Unix socket, an address with a token file, the pod's account, a kubeconfig.

A source answers `current()` before each call, so that rotated tokens and certificates are picked up without a
restart: token files are read again at most once a minute, and everything is read again at once after a 401.
The `kubernetes` package does the parts that have many dialects (kubeconfig merging, exec plugins, auth providers,
the in-cluster account); it is imported only when one of them is asked for, because that import takes over a second.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from slacktide.cluster.errors import CredentialsError
from slacktide.sockets import MAX_SOCKET_PATH, is_loopback

if TYPE_CHECKING:
    from slacktide.settings import ClusterSettings

REREAD_SECONDS: Final = 60.0
"""How long a token that was read from a file is used before the file is read again."""

_LOOK_SECONDS: Final = 1.0
"""The files of certificates are looked at once in so long, not for each of hundreds of calls."""
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class Endpoint:
    """How to reach the server. Two equal endpoints can share connections.

    url: `unix:/path`, `https://host:port[/prefix]` or `http://` on this machine. ca_file None = the system's.
    stamps: modification times (ns) of the three files, so that a renewed certificate makes another endpoint.
    """

    url: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    stamps: tuple[int, ...] = field(default=(), repr=False)

    @property
    def unix_path(self) -> str | None:
        """Path of the Unix socket, None for TCP."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None


class Access(NamedTuple):
    """An endpoint and the Authorization header to send to it (None = no header)."""

    endpoint: Endpoint
    authorization: str | None


class CredentialSource(Protocol):
    """Gives the access to use for the next call; may be asked from any thread."""

    def current(self) -> Access:
        """The access to use now. Raises CredentialsError."""
        ...  # a protocol member has no body

    def renew(self, used: Access) -> bool:
        """Read everything again because `used` was refused; whether there is now another access to try."""
        ...  # a protocol member has no body


def without_userinfo(url: str) -> tuple[str, str | None]:
    """The URL without `user:password@`, and the Authorization header that stands for them (None without).

    kubectl sends no token over plain HTTP, so a kubeconfig for a loopback server may carry its secret this way.
    """
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    userinfo, _, address = parts.netloc.rpartition("@")
    secret = base64.b64encode(unquote_to_bytes(userinfo)).decode()
    return urlunsplit(parts._replace(netloc=address)), f"Basic {secret}"


def checked_endpoint(endpoint: Endpoint) -> Endpoint:
    """The endpoint itself, or CredentialsError where its URL cannot or must not be used."""
    path = endpoint.unix_path
    if path is not None:
        if not path.startswith("/"):
            raise CredentialsError(f"server {endpoint.url!r}: the path of a Unix socket must be absolute")
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise CredentialsError(
                f"server {endpoint.url!r}: the socket path has {len(os.fsencode(path))} bytes, the kernel takes at most"
                f" {MAX_SOCKET_PATH}; use a shorter directory"
            )
        return endpoint
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CredentialsError(
            f"server {endpoint.url!r}: expected unix:/path, https://host:port or http://127.0.0.1:port"
        )
    if parts.query or parts.fragment:
        raise CredentialsError(f"server {endpoint.url!r}: must have no query or fragment")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise CredentialsError(
            f"server {endpoint.url!r}: plain HTTP is allowed on this machine only (127.0.0.1); use https://"
        )
    return endpoint


class TokenFileSource:
    """A fixed endpoint, with the token of a file where one is named."""

    def __init__(self, endpoint: Endpoint, token_file: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        url, self._basic = without_userinfo(endpoint.url)
        self._endpoint = checked_endpoint(replace(endpoint, url=url))
        self._token_file = token_file
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._read_at = -float("inf")

    def current(self) -> Access:
        """The endpoint and the token, which is read again when it is older than a minute."""
        if not self._token_file:
            return Access(self._endpoint, self._basic)
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            return self._access()

    def renew(self, used: Access) -> bool:
        """Read the token file again."""
        if not self._token_file:
            return False
        with self._lock:
            self._read()
            return self._access() != used

    def _access(self) -> Access:
        return Access(self._endpoint, f"Bearer {self._token}")

    def _read(self) -> None:
        try:
            with open(self._token_file, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = str(error)
        else:
            problem = "" if token and token.isprintable() else "the file is empty or has control characters"
        if not problem:
            self._token = token
            self._read_at = self._clock()
        elif self._token is None:
            raise CredentialsError(f"cannot read the API token from {self._token_file!r}: {problem}")


class PodAccountSource(TokenFileSource):
    """The pod's own service account: its token, and the CA in the same directory, which may be exchanged too.

    Read here and not by the `kubernetes` package, whose import costs every pod 20 MiB and a second of CPU.
    """

    def __init__(self, url: str, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Endpoint(url, ca_file=f"{directory}/ca.crt"), f"{directory}/token", clock)
        self._directory = directory
        self._looked_at = -float("inf")

    def _read(self) -> None:
        if not os.path.exists(f"{self._directory}/ca.crt"):
            raise CredentialsError(f"cannot use the service account in {self._directory}: ca.crt does not exist")
        super()._read()

    def _access(self) -> Access:
        now = self._clock()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._endpoint = replace(self._endpoint, stamps=(_modified(self._endpoint.ca_file or ""),))
            self._looked_at = now
        return super()._access()


class LibrarySource:
    """Credentials that the `kubernetes` package loads: `load` returns its filled `Configuration`.

    reload_seconds: load again when the last time is longer ago; None = only after a 401. Expiring tokens of exec
    plugins and the in-cluster token are renewed by the package's own hook, which runs at each `current()`.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        reload_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._reload_seconds = reload_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._configuration: Any = None
        self._loaded_at = 0.0
        self._endpoint: tuple[Endpoint, float] | None = None

    def current(self) -> Access:
        """The endpoint and token of the configuration, loaded and refreshed where due."""
        with self._lock:
            if self._configuration is None or self._due():
                self._reload()
            return self._access()

    def renew(self, used: Access) -> bool:
        """Load everything again (an exec plugin runs again)."""
        with self._lock:
            self._reload()
            return self._access() != used

    def _due(self) -> bool:
        return self._reload_seconds is not None and self._clock() - self._loaded_at >= self._reload_seconds

    def _reload(self) -> None:
        self._configuration = self._load()
        self._loaded_at = self._clock()
        self._endpoint = None

    def _access(self) -> Access:
        configuration = self._configuration
        with _library_errors("refresh the API credentials"):
            header = configuration.get_api_key_with_prefix("BearerToken")
        url, basic = without_userinfo(configuration.host.rstrip("/"))
        return Access(self._endpoint_of(configuration, url), header.strip() if header else basic)

    def _endpoint_of(self, configuration: Any, url: str) -> Endpoint:
        kept, now = self._endpoint, self._clock()
        if kept is not None and kept[0].url == url and 0 <= now - kept[1] < _LOOK_SECONDS:
            return kept[0]
        files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        endpoint = Endpoint(
            url=url,
            ca_file=configuration.ssl_ca_cert or None,
            cert_file=configuration.cert_file or None,
            key_file=configuration.key_file or None,
            verify=bool(configuration.verify_ssl),
            server_name=configuration.tls_server_name or None,
            proxy=configuration.proxy or None,
            stamps=tuple(_modified(path) for path in files if path),
        )
        self._endpoint = checked_endpoint(endpoint), now
        return self._endpoint[0]


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        # The TLS layer reports the missing file with its name.
        return 0


def _library(module: str) -> Any:
    """A module of the kubernetes package, imported when first needed; its functions carry no types."""
    return importlib.import_module(f"kubernetes.{module}")


class _library_errors:  # noqa: N801 - reads as a statement: with _library_errors("load ..."):
    """Turns what the kubernetes package raises into CredentialsError that names the purpose."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, CredentialsError):
            return
        # The package lets YAML, key, type, OS and its own errors through, whatever the file's mistake causes. Its texts
        # may quote a whole entry with its secrets, so that part goes, and with it the chain to the original.
        detail = re.sub(r"\{.*\}", "{...}", str(error), flags=re.DOTALL) or type(error).__name__
        raise CredentialsError(f"cannot {self._purpose}: {detail}") from None


def kubeconfig_source(path: str, context: str = "", clock: Callable[[], float] = time.monotonic) -> LibrarySource:
    """Credentials of a kubeconfig (`path` may be several, joined by ":"); loads it once to check it.

    Raises CredentialsError where a file, the context or its exec plugin is broken.
    """

    def load() -> Any:
        with _library_errors(f"use kubeconfig {path!r}{f', context {context!r}' if context else ''}"):
            configuration = _library("client.configuration").Configuration()
            _library("config").load_kube_config(
                config_file=path, context=context or None, client_configuration=configuration
            )
            if "exec" in user and not configuration.api_key.get("BearerToken") and not configuration.cert_file:
                # The package only logs a failing plugin; unnoticed, we would go on as anonymous.
                command = user["exec"].get("command")
                raise CredentialsError(
                    f"kubeconfig {path!r}: the exec plugin {command!r} gave no credentials (its error is in the log);"
                    " run it by hand"
                )
        return configuration

    user = _kubeconfig_user(path, context)
    # An exec plugin may be slow, and says itself how long its answer holds.
    reload_seconds = REREAD_SECONDS if "tokenFile" in user else None
    source = LibrarySource(load, reload_seconds, clock)
    source.current()
    return source


def _kubeconfig_user(path: str, context: str) -> dict[str, Any]:
    """The user entry of the context: which ways to log in it has. Empty where it has none."""
    with _library_errors(f"read kubeconfig {path!r}"):
        merged = _library("config.kube_config").KubeConfigMerger(path).config
        if merged is None:
            raise CredentialsError(f"kubeconfig {path!r}: no such file")
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        name = chosen.safe_get("user")
        entry = merged["users"].get_with_name(name, safe=True) if name else None
        user = entry.value.get("user") if entry is not None else None
        return user if isinstance(user, dict) else {}


def in_cluster_source(
    environ: Mapping[str, str],
    directory: str = _SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> CredentialSource:
    """Credentials of the pod's service account, whose token is read again each minute."""
    if not any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy")):
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        return PodAccountSource(f"https://{f'[{host}]' if ':' in host else host}:{port}", directory, clock)

    # Which hosts a proxy is for has many dialects.
    def load() -> Any:
        with _library_errors(f"use the service account in {directory}"):
            configuration = _library("client.configuration").Configuration()
            _library("config.incluster_config").InClusterConfigLoader(
                token_filename=f"{directory}/token", cert_filename=f"{directory}/ca.crt", environ=environ
            ).load_and_set(configuration)
        return configuration

    return LibrarySource(load, REREAD_SECONDS, clock)


def source_for(settings: ClusterSettings, environ: Mapping[str, str] | None = None) -> CredentialSource:
    """The source that the settings describe.

    An explicit server wins; then an explicit kubeconfig; then the pod's own account; then $KUBECONFIG or
    ~/.kube/config. Raises CredentialsError where none of them can be used, or two are asked for at once.
    """
    environ = os.environ if environ is None else environ
    if settings.server and (settings.kubeconfig or settings.context):
        raise CredentialsError(
            "cluster.server and cluster.kubeconfig/context exclude each other: leave one of them out"
        )
    if settings.server:
        return TokenFileSource(Endpoint(settings.server.rstrip("/")), settings.token_file)
    if settings.token_file:
        raise CredentialsError("cluster.token_file needs cluster.server: say where the token is to be used")
    if not settings.kubeconfig and not settings.context and environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster_source(environ)
    path = settings.kubeconfig or environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if not any(os.path.exists(os.path.expanduser(part)) for part in path.split(":") if part):
        raise CredentialsError(
            f"no way to the Kubernetes API: not in a cluster, and kubeconfig {path!r} does not exist;"
            " set cluster.server (unix:/path or https://host:port) or cluster.kubeconfig"
        )
    return kubeconfig_source(path, settings.context)

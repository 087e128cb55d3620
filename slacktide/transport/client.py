"""Channels to a server of ours. What they need is read from files anew for each channel, and `stale` tells of a change.

A token goes over TLS only. It is given to each call as metadata, so it is in no option, address or log line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc

from slacktide.errors import SettingsError
from slacktide.sockets import is_loopback
from slacktide.transport.files import CertificateFiles, Pems, TransportError, read_token, stamp
from slacktide.transport.traced import traced_channel

_UNIX: Final = "unix:"

Metadata = tuple[tuple[str, str], ...]
Options = Sequence[tuple[str, Any]]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Connection:
    """A channel, what each call over it carries, and whether its files have changed since."""

    channel: grpc.Channel
    metadata: Metadata = field(default=(), repr=False)
    stale: Callable[[], bool] = _never


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFiles:
    """Files that a client needs. `insecure` allows plaintext to this machine; `setting` is what messages call it."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    token_file: str = ""
    insecure: bool = False
    setting: str = "tls"

    def check(self, targets: Sequence[str]) -> None:
        """Raises SettingsError where these files do not do for `targets`."""
        name = self.setting
        problems = []
        for target in targets:
            if target.startswith(_UNIX) or (self.insecure and is_loopback(_host(target))):
                continue
            if self.insecure:
                problems.append(f"{name}.insecure is for this machine only, and {target} may be elsewhere")
            elif not self.ca_file:
                problems.append(f"{target} needs {name}.ca_file: the certificates that its own must be signed by")
        if bool(self.certificate_file) != bool(self.key_file):
            problems.append(f"{name}.certificate_file and {name}.key_file belong together; give both or neither")
        if problems:
            raise SettingsError(problems)


def connection_to(target: str, server_name: str, files: ClientFiles, options: Options = ()) -> Connection:
    """A connection to `unix:/path` or `HOST:PORT`, which must show a certificate for `server_name` (empty: HOST).

    Raises SettingsError for plaintext to another machine, TransportError where a file cannot be read now.
    """
    files.check([target])
    if target.startswith(_UNIX) or files.insecure:
        return Connection(traced_channel(grpc.insecure_channel(target, options=list(options))))
    paths = (files.ca_file, files.certificate_file, files.key_file, files.token_file)
    seen = stamp(paths)
    try:
        pems = CertificateFiles(files.certificate_file, files.key_file, files.ca_file, files.setting).load()
    except SettingsError as error:
        raise TransportError(str(error)) from None
    token = read_token(files.token_file) if files.token_file else ""
    made = secure_connection(target, server_name, pems, token, options)
    return replace(made, stale=lambda: stamp(paths) != seen)


def secure_connection(target: str, server_name: str, pems: Pems, token: str = "", options: Options = ()) -> Connection:
    """A connection over TLS with what is given here; an empty `server_name` is the host of `target`."""
    credentials: Any = grpc.ssl_channel_credentials(pems.ca, pems.key or None, pems.certificate or None)
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    channel = traced_channel(grpc.secure_channel(target, credentials, options=[*options, *named]))
    return Connection(channel, (authorization(token),) if token else ())


def authorization(token: str) -> tuple[str, str]:
    """The metadata that carries a token."""
    return ("authorization", f"Bearer {token}")


def _host(target: str) -> str:
    return target.rpartition(":")[0].strip("[]")

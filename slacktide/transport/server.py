"""What a server of ours shows and asks for, and where it may do without.

gRPC for Python knows two ways to treat a client's certificate, not to ask for one and to require one, so a server with
a client CA turns everybody away who has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import grpc
from msgspec import Meta

from slacktide.errors import SettingsError
from slacktide.settings import Settings
from slacktide.sockets import Listen, is_loopback
from slacktide.transport.files import CertificateFiles, Pems

AGE_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # A certificate is looked at when a connection begins: one that never ended would outlive its certificate.
    ("grpc.max_connection_age_ms", 2 * 3600 * 1000),
    ("grpc.max_connection_age_grace_ms", 60_000),
)
"""Options of a server that identifies its callers by their certificates."""


class TlsSettings(Settings, frozen=True):
    """TLS of a port; files that change are read again."""

    certificate_file: Annotated[str, Meta(description="PEM certificate, with its chain; read again when changed")] = ""
    key_file: Annotated[str, Meta(description="PEM key of the certificate")] = ""
    client_ca_file: Annotated[
        str, Meta(description="PEM certificates of those who sign clients; empty asks clients for no certificate")
    ] = ""


def tls_files(settings: TlsSettings, setting: str = "tls") -> CertificateFiles | None:
    """The files of a server; None where none are named. Raises SettingsError for half of a pair."""
    if bool(settings.certificate_file) != bool(settings.key_file):
        raise SettingsError([f"{setting}: certificate_file and key_file belong together; give both or neither"])
    if not settings.certificate_file:
        if settings.client_ca_file:
            problem = f"{setting}.client_ca_file needs {setting}.certificate_file and {setting}.key_file"
            raise SettingsError([problem])
        return None
    return CertificateFiles(settings.certificate_file, settings.key_file, settings.client_ca_file, setting)


def check_plaintext(listen: Listen, *, insecure: bool, setting: str) -> None:
    """Raises SettingsError unless plaintext may be served there: a Unix socket, or loopback when asked for."""
    if listen.path or (insecure and is_loopback(listen.host)):
        return
    where = f"{listen.host}:{listen.port}"
    if insecure:
        problem = f"insecure serves loopback only, and {setting} is {where}"
    else:
        problem = f"{setting} = {where}: plaintext is served on a Unix socket only"
    raise SettingsError([f"{problem}; give tls.certificate_file and tls.key_file"])


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Credentials that follow `files` without a restart. Raises SettingsError for files that cannot be used.

    Each connection is served with what the files held when it began. With a CA every client must show a certificate.
    """

    def renewed() -> Any:
        pems = files.renewed()
        return None if pems is None else _configuration(pems)

    first: Any = _configuration(files.load())
    made: Any = grpc.dynamic_ssl_server_credentials(first, renewed, require_client_authentication=bool(files.ca_file))
    return made  # type: ignore[no-any-return]  # the stubs of grpc give no type for it


def _configuration(pems: Pems) -> Any:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], root_certificates=pems.ca or None)


def over_tls(context: Any) -> bool:
    """Whether the call came over TLS; else it came over a Unix socket, or plaintext of this machine was asked for."""
    found: Mapping[str, Sequence[bytes]] = context.auth_context()
    return b"ssl" in found.get("transport_security_type", ())


def common_name(context: Any) -> str:
    """Common name of the caller's certificate; empty without. Alternative names are none, whoever they name."""
    found: Mapping[str, Sequence[bytes]] = context.auth_context()
    return b"".join(found.get("x509_common_name", ())[:1]).decode("utf-8", "replace")


def certificate_names(context: Any) -> list[str]:
    """Common name and alternative names of the caller's certificate."""
    found: Mapping[str, Sequence[bytes]] = context.auth_context()
    fields = ("x509_common_name", "x509_subject_alternative_name")
    return [name.decode("utf-8", "replace") for field in fields for name in found.get(field, ())]

"""TLS of the extender's port: certificate, key and client CA from files, read again when they change."""

from __future__ import annotations

import ssl
import threading
from typing import Any, Final

from slacktide.errors import SettingsError
from slacktide.observe import get_logger
from slacktide.transport import CertificateFiles

_log: Final = get_logger("extender.tls")


class ServerTls:
    """Wraps accepted connections. With a CA a client must show a certificate that it signed.

    Raises SettingsError for files that cannot be used. Later files that cannot be used leave the old ones in force.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        files.load()
        try:
            self._context = self._made()
        except (OSError, ValueError) as error:
            raise SettingsError([f"tls: certificate, key or CA cannot be used: {error}"]) from error

    def wrap(self, connection: Any) -> ssl.SSLSocket:
        """The connection after its handshake, which is bound by the connection's timeout."""
        with self._lock:
            if self._files.renewed() is not None:
                try:
                    self._context = self._made()
                except (OSError, ValueError) as error:
                    _log.warning("certificate not read again: the old one stays in force", reason=str(error))
            context = self._context
        return context.wrap_socket(connection, server_side=True)

    def _made(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(files.certificate_file, files.key_file)
        if files.ca_file:
            context.load_verify_locations(files.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

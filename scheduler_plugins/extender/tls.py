"""TLS of the extender's port: certificate and key from files, read again when they change."""

from __future__ import annotations

import os
import ssl
import threading
from typing import Any, Final

from slacktide.errors import SettingsError
from slacktide.observe import get_logger

_log: Final = get_logger("extender.tls")


class ServerTls:
    """Wraps accepted connections. With `client_ca_file` a client must show a certificate that it signed.

    Raises SettingsError for files that cannot be used. Later a pair that cannot be read leaves the old one in force.
    """

    def __init__(self, certificate_file: str, key_file: str, client_ca_file: str = "") -> None:
        self._files = (certificate_file, key_file)
        self._lock = threading.Lock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen: tuple[int, ...] = ()
        try:
            self._load()
            if client_ca_file:
                self._context.load_verify_locations(client_ca_file)
                self._context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (*self._files, client_ca_file) if name)
            raise SettingsError([f"tls: certificate, key or client CA ({files}) cannot be used: {error}"]) from error

    def wrap(self, connection: Any) -> ssl.SSLSocket:
        """The connection after its handshake, which is bound by the connection's timeout."""
        with self._lock:
            try:
                self._load()
            except (OSError, ssl.SSLError) as error:
                _log.warning("certificate not read again: the old one stays in force", reason=str(error))
        return self._context.wrap_socket(connection, server_side=True)

    def _load(self) -> None:
        changed = tuple(os.stat(name).st_mtime_ns for name in self._files)
        if changed != self._seen:
            self._context.load_cert_chain(*self._files)
            self._seen = changed

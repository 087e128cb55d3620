"""gRPC server of drills: a local socket that only its owner can open, or TLS with callers that are told apart.

Every call has a place in a small pool and a bounded length; keepalive finds callers that vanished, so that the
dead-man timer of their drill starts. Without certificates nothing is served over TCP.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Final

import grpc

from agent.drill_service import DrillService
from agent.drill_settings import DrillSettings
from slacktide.errors import SettingsError
from slacktide.sockets import parse_listen, private_files, remove_socket, remove_stale_socket
from slacktide.transport import CertificateFiles, server_credentials
from slacktide.transport.server import AGE_OPTIONS
from slacktide.transport.traced import server_interceptors
from slacktide.v1 import drill_pb2_grpc

_CALLS: Final = 8
_STOP_SECONDS: Final = 1.0


class DrillServer:
    """Serves `service` on the address of the settings. Raises SettingsError for one that cannot be served."""

    def __init__(self, settings: DrillSettings, service: DrillService) -> None:
        self._where = parse_listen(settings.listen, "drill.listen")
        self._takes_tokens = service.callers.takes_tokens
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=_CALLS, thread_name_prefix="drill"),
            maximum_concurrent_rpcs=_CALLS,
            interceptors=server_interceptors(),
            options=[
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_receive_message_length", 65_536),
                ("grpc.so_reuseport", 0),
                *(AGE_OPTIONS if settings.tls_client_ca_file else ()),
            ],
        )
        drill_pb2_grpc.add_DrillServiceServicer_to_server(service, self._server)
        self.port = self._bind(settings)

    def _bind(self, settings: DrillSettings) -> int:
        if self._where.path:
            remove_stale_socket(self._where.path, "drill.listen")
            os.makedirs(os.path.dirname(self._where.path), mode=0o700, exist_ok=True)
            with private_files():
                return self._bound(lambda: self._server.add_insecure_port(f"unix:{self._where.path}"), settings)
        target = (
            f"{f'[{self._where.host}]' if ':' in self._where.host else self._where.host or '[::]'}:{self._where.port}"
        )
        credentials = server_credentials(_files(settings, takes_tokens=self._takes_tokens))
        return self._bound(lambda: self._server.add_secure_port(target, credentials), settings)

    def _bound(self, bind: Callable[[], int], settings: DrillSettings) -> int:
        try:
            return bind()
        except RuntimeError as error:
            raise SettingsError([f"drill.listen = {settings.listen!r}: cannot listen there: {error}"]) from error

    def start(self) -> None:
        """Accept calls."""
        self._server.start()

    def stop(self) -> None:
        """End calls within a second and remove the socket."""
        self._server.stop(_STOP_SECONDS).wait(_STOP_SECONDS + 1.0)
        if self._where.path:
            remove_socket(self._where.path)


def _files(settings: DrillSettings, *, takes_tokens: bool) -> CertificateFiles:
    """Certificate, key and CA of callers. Raises SettingsError naming what is missing."""
    files: Mapping[str, str] = {
        "drill.tls_certificate_file": settings.tls_certificate_file,
        "drill.tls_key_file": settings.tls_key_file,
        # Without an API server that reviews tokens only certificates tell callers apart.
        **({} if takes_tokens else {"drill.tls_client_ca_file": settings.tls_client_ca_file}),
    }
    problems = [f"{name} is needed to serve drills on {settings.listen}" for name, path in files.items() if not path]
    if (settings.tls_client_ca_file or not takes_tokens) and not settings.allowed_callers:
        problems.append(f"drill.allowed_callers is empty: nobody could drill through {settings.listen}")
    if problems:
        raise SettingsError(problems)
    return CertificateFiles(
        settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file, setting="drill.tls"
    )

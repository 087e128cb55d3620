"""Settings of the embedded API server."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from slacktide.errors import SettingsError
from slacktide.settings import DaemonSettings
from slacktide.sockets import check_socket_path, is_loopback, parse_listen

GIB: Final = 1 << 30


class ApiSettings(DaemonSettings, frozen=True):
    """Settings of `python -m standalone.api`."""

    socket: Annotated[str, Meta(description="path of the Unix socket to serve on; made with mode 0600")] = ""
    database: Annotated[str, Meta(description="path of the SQLite file with all objects")] = ""
    database_limit_bytes: Annotated[
        int, Meta(ge=1 << 20, le=1024 * GIB, description="size beyond which writes are refused; reads go on")
    ] = GIB
    log_dir: Annotated[str, Meta(description="folder with the pods' logs, written by the node runner")] = ""
    listen: Annotated[str, Meta(description="HOST:PORT to serve on as well, loopback only; empty is nowhere")] = ""
    token_file: Annotated[
        str, Meta(description="file with the token that TCP clients send; made (mode 0600) when it is missing")
    ] = ""
    kubeconfig_file: Annotated[
        str, Meta(description="kubeconfig to write for kubectl (mode 0600), needs `listen`; empty is none")
    ] = ""


def check(settings: ApiSettings) -> ApiSettings:
    """`settings` when they fit together; SettingsError with all that is wrong."""
    needed = ("socket", "database", "log_dir")
    unset = [name for name in needed if not getattr(settings, name)]
    problems = [f"{name} is not set: give --{name.replace('_', '-')} PATH" for name in unset]
    try:
        if settings.socket:
            check_socket_path(settings.socket)
        if settings.listen:
            problems += _listen_problems(settings)
    except SettingsError as error:
        problems += error.problems
    if settings.kubeconfig_file and not settings.listen:
        problems.append("kubeconfig_file needs listen: kubectl cannot use a Unix socket, give --listen 127.0.0.1:PORT")
    if problems:
        raise SettingsError(problems)
    return settings


def _listen_problems(settings: ApiSettings) -> list[str]:
    problems = []
    listen = parse_listen(settings.listen)
    if listen.path:
        problems.append(f"listen {settings.listen!r}: a Unix socket is named by socket, listen is HOST:PORT")
    elif not is_loopback(listen.host):
        problems.append(
            f"listen {settings.listen!r} is not a loopback address: this server is for one machine, "
            f"use 127.0.0.1:{listen.port}"
        )
    if not settings.token_file:
        problems.append("listen needs token_file: TCP clients have no user id to check, give --token-file PATH")
    return problems

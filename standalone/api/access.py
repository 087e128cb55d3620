"""Who may talk to the server: processes of root and of the server's own user, or holders of the token over TCP."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import socket
import stat
import struct

import yaml
from aiohttp import web

from slacktide.disk import write_atomically
from slacktide.errors import SettingsError
from standalone.api.errors import forbidden, unauthorized

_CREDENTIALS = struct.Struct("3i")


class Access:
    """Checks the sender of each request."""

    def __init__(self, token: str) -> None:
        """`token` is what TCP clients must send; "" lets none in."""
        self._token = token.encode()
        self._users = frozenset({0, os.geteuid()})

    def check(self, request: web.Request) -> None:
        """ApiError 401 or 403 unless the sender may come in."""
        connection = request.get_extra_info("socket")
        if connection is None:
            raise unauthorized()
        if connection.family != socket.AF_UNIX:
            if not self._token or not hmac.compare_digest(_sent_token(request), self._token):
                raise unauthorized()
            return
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        if uid not in self._users:
            raise forbidden(None, f"user id {uid} may not use this server: only its own user and root may")


def _sent_token(request: web.Request) -> bytes:
    """The token of a Bearer header, or the password of a Basic one; kubectl sends Bearer over TLS only."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def load_token(path: str) -> str:
    """The token in a file, made when the file is missing; SettingsError when others could read it or it is empty."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as problem:
        raise SettingsError([f"token_file {path!r} cannot be made: {problem.strerror}"]) from problem
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def _read_token(path: str) -> str:
    try:
        with open(path) as file:
            mode, token = os.fstat(file.fileno()).st_mode, file.read().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError([f"token_file {path!r} cannot be read: {problem}"]) from problem
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError([f"token_file {path!r} can be read by others: chmod 600 it"])
    if not token or not token.isascii() or any(character in token for character in "@:/ \n"):
        raise SettingsError(
            [f"token_file {path!r} must hold one line without blanks, '@', ':' or '/'; remove it to get a new one"]
        )
    return token


def write_kubeconfig(path: str, address: str, token: str) -> None:
    """Write a kubeconfig with mode 0600 for the server at HOST:PORT.

    The token is put in the server's URL: kubectl drops tokens on plain http, and user and password it sends.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "slacktide", "cluster": {"server": f"http://slacktide:{token}@{address}"}}],
        "contexts": [{"name": "slacktide", "context": {"cluster": "slacktide", "user": ""}}],
        "current-context": "slacktide",
        "users": [],
    }
    try:
        write_atomically(path, yaml.safe_dump(config, sort_keys=False).encode(), durable=False)
    except OSError as problem:
        raise SettingsError([f"kubeconfig_file {path!r} cannot be written: {problem.strerror}"]) from problem

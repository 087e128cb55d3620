"""Addresses that our servers listen on: `HOST:PORT` or `unix:/path`, and the care that a socket file needs."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from slacktide.errors import SettingsError

MAX_SOCKET_PATH: Final = 107
"""Longest path of a Unix socket in bytes: sun_path has 108 with the closing NUL (unix(7))."""

_UNIX: Final = "unix:"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen: a Unix socket `path`, or `host` and `port` (0 is any free port, host "" every address)."""

    path: str = ""
    host: str = ""
    port: int = 0


def parse_listen(text: str, setting: str = "listen") -> Listen:
    """Read `unix:/path`, `HOST:PORT`, `[::1]:PORT` or `:PORT`. Raises SettingsError that names `setting`."""
    if text.startswith(_UNIX):
        return Listen(path=check_socket_path(text.removeprefix(_UNIX), setting))
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or (":" in host and bare == host):
        raise SettingsError([f"{setting} = {text!r}: expected HOST:PORT, [IPv6]:PORT or unix:/absolute/path"])
    return Listen(host=bare, port=int(port))


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone; an empty one is every address, and a name other than localhost unknown."""
    if host == "localhost":
        return True
    # A command that asks over a Unix socket has no use for it.
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_socket_path(path: str, setting: str = "socket") -> str:
    """`path` if a Unix socket can have it: absolute and at most 107 bytes. Raises SettingsError otherwise."""
    if not path.startswith("/"):
        raise SettingsError([f"{setting} = {path!r}: the path of a socket must be absolute"])
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        problem = f"{size} bytes long, and a socket path holds {MAX_SOCKET_PATH}; use a shorter directory"
        raise SettingsError([f"{setting} = {path!r}: {problem}"])
    return path


def remove_stale_socket(path: str, setting: str = "socket") -> None:
    """Make room for a socket at `path`: remove one that nobody serves. Raises SettingsError when it is in use."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(
            [f"{setting} = {path!r}: something that is no socket is there; move it or choose another path"]
        )
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        remove_socket(path)
    except OSError as error:
        raise SettingsError([f"{setting} = {path!r}: cannot tell whether it is in use: {error.strerror}"]) from error
    else:
        raise SettingsError([f"{setting} = {path!r}: another process listens there; stop it or choose another path"])
    finally:
        probe.close()


@contextmanager
def private_files() -> Iterator[None]:
    """A socket that is bound meanwhile is its owner's alone from its first moment on, also before any chmod.

    For the whole process, as a umask is: bind and nothing else.
    """
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def remove_socket(path: str) -> None:
    """Remove a socket file; one that is gone already is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return

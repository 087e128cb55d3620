"""Connections to a server on this machine, over its Unix socket. Source: unix(7)."""

from __future__ import annotations

import socket
import struct

from slacktide.cluster.exchange import NotConnected


class UnixConnection:
    """A connected socket as `exchange.Exchange` keeps it."""

    def __init__(self, path: str, seconds: float | None) -> None:
        self.sock = dial(path, seconds)

    def close(self) -> None:
        """Close it."""
        self.sock.close()


def dial(path: str, seconds: float | None) -> socket.socket:
    """Connect to the socket at `path` within `seconds` (None: for ever), also its timeout then. Raises NotConnected."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A socket with a Python timeout does not block, and then the kernel refuses at once while the server's
        # backlog is full, instead of waiting for room.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds or 0.0))
        sock.connect(path)
        sock.settimeout(seconds)
    except BlockingIOError:
        sock.close()
        raise NotConnected("nobody accepts", late=True) from None
    except OSError as error:
        sock.close()
        raise NotConnected(error.strerror or str(error)) from error
    return sock


def _timeval(seconds: float) -> bytes:
    """struct timeval of the kernel; zero is no timeout."""
    return struct.pack("ll", int(seconds), int(seconds % 1.0 * 1_000_000))

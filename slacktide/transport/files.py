"""Certificates, keys and tokens in files that somebody replaces while we run.

A mounted Secret is replaced by moving a symbolic link, so that all its files change at once; other tools rewrite the
files one after the other. What is read is therefore only believed when certificate and key fit each other and nothing
changed meanwhile; until then what was read before stays in force.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from slacktide.errors import SettingsError, SlacktideError
from slacktide.observe import get_logger
from slacktide.transport.expiry import bundle_expiry, chain_expiry

_LOG: Final = get_logger("transport")
_READS: Final = 3
_TOKEN_BYTES: Final = 16 * 1024
"""A bound token has about 1,200 bytes; gRPC takes 16 KiB of metadata."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Modification time (ns), inode and size of each file; None for one that is not there."""


class TransportError(SlacktideError):
    """What a connection needs cannot be had now, such as a token file that is empty; another try may do better."""


@dataclass(frozen=True, slots=True)
class Pems:
    """Contents of certificate files; empty where no file was named. The key is in no representation."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    ca: bytes = b""


def stamp(paths: Iterable[str]) -> Stamp:
    """What tells a file from the one that was there before; symbolic links are followed."""
    return tuple(_stamp(path) for path in paths if path)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class CertificateFiles:
    """A certificate with its key and a CA, each optional; safe to use from several threads.

    `setting` names the group in messages. Nothing is read before `load`.
    """

    def __init__(self, certificate_file: str = "", key_file: str = "", ca_file: str = "", setting: str = "tls") -> None:
        self.certificate_file = certificate_file
        self.key_file = key_file
        self.ca_file = ca_file
        self.setting = setting
        self._lock = threading.Lock()
        self._seen: Stamp | None = None
        self._dated: Stamp | None = None
        self._expiries: dict[str, float] = {}

    def load(self) -> Pems:
        """What the files hold now. Raises SettingsError that names the files and what is wrong."""
        with self._lock:
            return self._load()

    def renewed(self) -> Pems | None:
        """What the files hold when they changed since they were read last; None when they did not.

        Files that cannot be used are told once in the log, and count as not changed: the old ones stay in force.
        """
        with self._lock:
            found = stamp(self._paths())
            if found == self._seen:
                return None
            try:
                return self._load()
            except SettingsError as error:
                self._seen = found
                _LOG.warning("certificates not read again: the old ones stay in force", reason=str(error))
                return None

    def expiries(self) -> dict[str, float]:
        """When `certificate` and `ca` end (seconds since the epoch): those that the next connection would begin with.

        What is not named is absent, and while the files cannot be used what they held before counts.
        """
        with self._lock:
            found = stamp(self._paths())
            if found != self._dated:
                self._dated = found
                with contextlib.suppress(OSError, ValueError):
                    self._expiries = _expiries(self._read()[0])
            return dict(self._expiries)

    def _paths(self) -> tuple[str, str, str]:
        return (self.certificate_file, self.key_file, self.ca_file)

    def _load(self) -> Pems:
        try:
            pems, self._seen = self._read()
        except (OSError, ValueError) as error:
            files = ", ".join(name for name in self._paths() if name)
            detail = _detail(error)
            problem = f"{self.setting}: certificate, key or CA ({files}) cannot be used: {detail}"
            raise SettingsError([problem]) from None
        return pems

    def _read(self) -> tuple[Pems, Stamp]:
        for _ in range(_READS):
            before = stamp(self._paths())
            pems = Pems(*(_content(path) for path in self._paths()))
            problem: Exception | None = None
            try:
                self._check(pems)
            except (OSError, ValueError) as error:
                problem = error
            if stamp(self._paths()) != before:
                continue
            if problem is not None:
                raise problem
            return pems, before
        raise ValueError("they change faster than they can be read")

    def _check(self, pems: Pems) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if pems.certificate or pems.key:
            context.load_cert_chain(self.certificate_file, self.key_file, password=_no_password)
        if self.ca_file:
            context.load_verify_locations(cadata=pems.ca.decode("ascii"))


def _expiries(pems: Pems) -> dict[str, float]:
    found = {"certificate": chain_expiry(pems.certificate), "ca": bundle_expiry(pems.ca)}
    return {part: at for part, at in found.items() if at is not None}


def _no_password() -> str:
    """An encrypted key is refused instead of asking whoever sits at the terminal."""
    raise ValueError("the key is encrypted")


def _detail(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _content(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.read()


def read_token(path: str) -> str:
    """The token in a file. Raises TransportError; its message holds nothing of what the file holds."""
    try:
        with open(path, "rb") as file:
            content = file.read(_TOKEN_BYTES + 1)
    except OSError as error:
        raise TransportError(f"token file {path!r}: {error.strerror}") from None
    text = content.strip()
    if not text:
        raise TransportError(f"token file {path!r} is empty")
    if len(content) > _TOKEN_BYTES or not text.isascii() or not text.decode("ascii").isprintable() or b" " in text:
        raise TransportError(f"token file {path!r} holds something that is no token")
    return text.decode("ascii")

"""Until when certificates are good, read from their PEM text; no more of X.509 than that.

The standard library tells the dates of a certificate only once a connection has shown it, and those of our own never.
Source: RFC 5280, section 4.1 (Certificate, Validity), 4.1.2.5 (UTCTime until 2049, GeneralizedTime after); X.690 (DER).
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_BEFORE_VALIDITY: Final = 3
"""Serial number, signature algorithm and issuer stand before the validity."""

_PIVOT: Final = 2050


def expiries(pem: bytes) -> list[float]:
    """When each certificate of a PEM text ends (seconds since the epoch), in order. Raises ValueError."""
    return [_not_after(ssl.PEM_cert_to_DER_cert(one.decode("ascii"))) for one in _PEM.findall(pem)]


def chain_expiry(pem: bytes) -> float | None:
    """When a certificate with its chain is no longer good: with the first of them. None where there is none."""
    return min(expiries(pem), default=None)


def bundle_expiry(pem: bytes) -> float | None:
    """When nothing in a bundle of authorities is good any more: with the last, for old ones stay in it while they are
    exchanged. None where there is none.
    """
    return max(expiries(pem), default=None)


def _not_after(der: bytes) -> float:
    inside = _content(_content(der, _SEQUENCE), _SEQUENCE)
    tag, content, rest = _element(inside)
    # The version is left out of certificates of version 1.
    for _ in range(_BEFORE_VALIDITY if tag == _VERSION else _BEFORE_VALIDITY - 1):
        tag, content, rest = _element(rest)
    _, _, rest = _element(_content(rest, _SEQUENCE))
    tag, content, _ = _element(rest)
    if tag not in _FORMATS:
        raise ValueError("a certificate has no end of its validity")
    found = datetime.strptime(content.decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC)
    if tag == _UTC_TIME and found.year >= _PIVOT:
        found = found.replace(year=found.year - 100)
    return found.timestamp()


def _content(der: bytes, wanted: int) -> bytes:
    tag, content, _ = _element(der)
    if tag != wanted:
        raise ValueError("not a certificate")
    return content


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and what follows of the first element. Raises ValueError where it is cut off."""
    if len(der) < 2:
        raise ValueError("a certificate is cut off")
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start])
    if length > len(der) - start:
        raise ValueError("a certificate is cut off")
    return der[0], der[start : start + length], der[start + length :]

"""Where the predictors are: addresses as the operator wrote them, and what their names stand for.

A name may stand for several replicas (a headless service has an address for each); each of them gets the samples.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Final

Resolve = Callable[[str, int], list[str]]

_UNIX: Final = "unix:"


def split(text: str) -> list[str]:
    """The addresses in a comma separated list."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def has_names(targets: list[str]) -> bool:
    """Whether any of them must be looked up."""
    return any(_name_of(target) is not None for target in targets)


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name as `IP:PORT`; none when it cannot be looked up now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = {str(sockaddr[0]): family for family, _, _, _, sockaddr in found}
    return [f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}" for ip, family in addresses.items()]


def endpoints(targets: list[str], look_up: Resolve = resolve) -> dict[str, str]:
    """What to connect to, each with the host that its certificate must be for (empty for a socket).

    A name with one address or none stays a name: gRPC looks it up at each connect.
    """
    found: dict[str, str] = {}
    for target in targets:
        named = _name_of(target)
        addresses = sorted(look_up(*named)) if named is not None else []
        # Both families of one host are one host: replicas are told apart within a family.
        families = [[a for a in addresses if a.startswith("[") is six] for six in (False, True)]
        several = max(families, key=len)
        for address in several if len(several) > 1 else [target]:
            found.setdefault(address, host_of(target))
    return found


def host_of(target: str) -> str:
    """The host of an address as it is written; empty for a socket."""
    return "" if target.startswith(_UNIX) else target.rpartition(":")[0].strip("[]")


def _name_of(target: str) -> tuple[str, int] | None:
    host, _, port = target.rpartition(":")
    if target.startswith(_UNIX) or not host or not port.isdigit():
        return None
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host, int(port)
    return None

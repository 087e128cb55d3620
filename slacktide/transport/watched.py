"""Until when the certificates of a daemon are good, for alerts, and one line in its log when that is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from slacktide.observe import get_logger
from slacktide.transport.files import CertificateFiles

_LOG: Final = get_logger("transport")


class ExpiryMetrics:
    """Metrics of the certificates that are followed. They are looked at when they are asked for: two calls of stat."""

    def __init__(self, registry: CollectorRegistry, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._told: dict[tuple[str, str], float] = {}
        self._gauge = Gauge(
            "slacktide_certificate_expiry_timestamp_seconds",
            "When a certificate ends, as Unix time: the first of a chain, the last of a bundle of authorities.",
            ["setting", "part"],
            registry=registry,
        )

    def follow(self, files: CertificateFiles) -> None:
        """Show `files` from now on, under the name of their settings. Those of one setting are followed once."""
        for part, path in (("certificate", files.certificate_file), ("ca", files.ca_file)):
            if path:
                look = partial(self._look, files, part, path)
                look()
                self._gauge.labels(files.setting, part).set_function(look)

    def _look(self, files: CertificateFiles, part: str, path: str) -> float:
        end = files.expiries().get(part)
        if end is None:
            return math.nan
        key = (files.setting, part)
        # Said once for each certificate, however often it is asked for.
        if end <= self._wall() and self._told.get(key) != end:
            self._told[key] = end
            since = datetime.fromtimestamp(end, UTC).isoformat()
            _LOG.warning("certificate has expired: connections fail until it is renewed", file=path, since=since)
        return end

"""Settings of ingest, a group of the predictor's."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from slacktide.settings import Settings

_RELOADABLE: Final = {"reloadable": True}


class IngestSettings(Settings, frozen=True):
    """How much one node may send. A spool that is replayed is slowed down to this, nothing is dropped."""

    node_samples_per_second: Annotated[
        float, Meta(gt=0, le=100_000, description="samples a second that one node may send for long", extra=_RELOADABLE)
    ] = 100.0
    node_burst_samples: Annotated[
        int, Meta(ge=1, le=1_000_000, description="samples that one node may send at once", extra=_RELOADABLE)
    ] = 1000

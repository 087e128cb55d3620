"""Settings of drills on this node: who may ask for one, within which bounds and hours."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from agent.drill_hours import parse, zone
from slacktide.settings import Settings


class DrillSettings(Settings, frozen=True, kw_only=True):
    """Who may drill this node, and within which bounds."""

    listen: Annotated[
        str, Meta(description="gRPC address of drills: unix:/path, or HOST:PORT with certificates; empty serves none")
    ] = ""
    tls_certificate_file: Annotated[str, Meta(description="certificate chain of the server (PEM), for HOST:PORT")] = ""
    tls_key_file: Annotated[str, Meta(description="private key of the server (PEM)")] = ""
    tls_client_ca_file: Annotated[
        str, Meta(description="authority that callers' certificates must be from (PEM); empty: callers show a token")
    ] = ""
    allowed_callers: Annotated[
        tuple[str, ...], Meta(description="common or alternative names in callers' certificates that may drill")
    ] = ()
    audience: Annotated[str, Meta(min_length=1, description="audience that the token of a caller must be for")] = (
        "slacktide-drill"
    )
    duration_max_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="longest pressure that may be asked for")
    ] = 600.0
    victims_max: Annotated[int, Meta(ge=0, le=1000, description="most pods that one drill may evict")] = 10
    dead_man_seconds: Annotated[
        float, Meta(ge=1, le=600, description="a drill that nobody watches for this long ends and restores")
    ] = 10.0
    recover_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a drill fails when BE has no room back this long after the pressure")
    ] = 120.0
    load: Annotated[
        bool, Meta(description="keep a helper process ready that can burn CPU, for drills with real load")
    ] = False
    refuse_in_trouble: Annotated[
        bool,
        Meta(
            description="no drill while LS is short or a rung beyond the mild ones is in force",
            extra={"reloadable": True},
        ),
    ] = True
    hours: Annotated[
        tuple[str, ...],
        Meta(
            description="drills may start within these only, as `Mon-Fri 09:00-17:00`; empty: always",
            extra={"reloadable": True},
        ),
    ] = ()
    time_zone: Annotated[
        str,
        Meta(min_length=1, description="time zone of `drill.hours`, as Europe/Berlin", extra={"reloadable": True}),
    ] = "UTC"

    def __post_init__(self) -> None:
        """Hours and time zone must make sense. Raises ValueError."""
        for text in self.hours:
            parse(text)
        if self.hours:
            zone(self.time_zone)
